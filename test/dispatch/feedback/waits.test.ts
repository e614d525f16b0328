/** The wait that a refusal states, in the spelling of each provider: documented fields and bodies, or recorded ones. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { UpstreamKind } from '../../../src/call.ts';
import { dialectOf, type SpeaksInput } from '../../../src/config/speaks.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const nowMs = Date.UTC(2026, 8, 1, 12, 0, 0);
const endsAt = (seconds: number): Date => new Date(nowMs + seconds * 1000);
const epoch = (seconds: number): string => String(nowMs / 1000 + seconds);

interface Refusal {
  readonly kind?: UpstreamKind;
  readonly fields?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  readonly status?: number;
}

function waitOf({ kind = 'generic', fields = {}, body = null, status = 429 }: Refusal): number | null {
  const text = body === null || typeof body === 'string' ? body : JSON.stringify(body);
  const all = new Map(Object.entries({ date: new Date(nowMs).toUTCString(), ...fields }));
  return (
    learnFrom(kind, { status, fields: all, body: text, callClass: 'default', nowMs }).throttle?.waitMs ?? null
  );
}

const limits = (prefix: string, limit: string, remaining: string, reset: string): Record<string, string> => ({
  [`${prefix}-limit`]: limit,
  [`${prefix}-remaining`]: remaining,
  [`${prefix}-reset`]: reset,
});

test.each([
  ['language-model', 'Please try again in 1.9s.', 1_900],
  ['generic', 'Please try again in 1.9s.', 1_900],
  ['generic', 'Please try again in 2.4s.', 1_000],
  ['generic', 'Please try again in 900ms.', 1_000],
] as const)('a `Retry-After: 1` of a %s upstream that says "%s" means %i ms', (kind, message, waitMs) => {
  const body = { error: { code: 'rate_limit_exceeded', message } };
  expect(waitOf({ kind, fields: { 'retry-after': '1' }, body })).toBe(waitMs);
});

describe('the wait in the fields of a refusal', () => {
  const rows: readonly (readonly [string, Record<string, string>, number | null])[] = [
    ['Okta, X', limits('x-rate-limit', '600', '0', epoch(12)), 12_000],
    ['Okta, two limits', limits('x-rate-limit', '600, 1', '599, 0', `${epoch(6)}, ${epoch(12)}`), 12_000],
    [
      'Reddit',
      { 'x-ratelimit-used': '600', 'x-ratelimit-remaining': '0.0', 'x-ratelimit-reset': '42' },
      42_000,
    ],
    ['Jira Cloud', limits('x-ratelimit', '100', '0', '2026-09-01T12:01Z'), 60_000],
    [
      'lemlist',
      limits('x-ratelimit', '20', '0', 'Tue Sep 01 2026 12:00:07 GMT+0000 (Coordinated Universal Time)'),
      7000,
    ],
    ['Vimeo', limits('x-ratelimit', '100', '0', '2026-09-01T12:00:30+00:00'), 30_000],
    ['Cloudflare', { 'x-ratelimit-reset': endsAt(20).toUTCString() }, 20_000],
    ['Twitch', limits('ratelimit', '800', '0', epoch(9)), 9000],
    ['Mailgun', limits('x-ratelimit', '500', '0', String(nowMs + 1500)), 1500],
    [
      'Discord',
      { 'x-ratelimit-limit': '5', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset-after': '1.257' },
      1257,
    ],
    [
      'WooCommerce Store',
      { ...limits('ratelimit', '25', '0', epoch(8)), 'ratelimit-retry-after': '8' },
      8000,
    ],
    ['BigCommerce', { 'x-retry-after': '15' }, 15_000],
    ['Akamai', { 'x-ratelimit-remaining': '0', 'x-ratelimit-next': '2026-09-01T12:00:30Z' }, 30_000],
    ['Bybit', { 'x-bapi-limit-status': '0', 'x-bapi-limit-reset-timestamp': String(nowMs + 700) }, 700],
    ['Walmart', { 'x-current-token-count': '0', 'x-next-replenish-time': String(nowMs + 30_000) }, 30_000],
    ['Azure Cosmos DB', { 'x-ms-retry-after-ms': '534' }, 534],
    [
      'Etsy, a spent day',
      { 'x-limit-per-day': '10000', 'x-remaining-today': '0', 'retry-after': '3600' },
      3_600_000,
    ],
    ['Zoom', { 'retry-after': '2026-09-01T12:00:11Z' }, 11_000],
    ['a vendor’s own names', limits('x-acme-ratelimit', '10', '0', epoch(30)), 30_000],
    ['a vendor’s own names, of a limit that has room', limits('x-acme-ratelimit', '10', '4', '30'), null],
    ['a reset in another spelling', { 'x-ratelimit-resets-at': '2026-09-01T12:00:30Z' }, 30_000],
    ['a reset with its unit', { 'x-rate-limit-reset-seconds': '30', 'x-rate-limit-remaining': '0' }, 30_000],
    ['an instant with the unit of a duration', { 'x-ratelimit-reset-ms': String(nowMs + 30_000) }, 30_000],
    ['a wait by name', { 'x-rate-limit-wait': '30' }, 30_000],
    ['a back-off by name', { 'x-backoff': '30' }, 30_000],
    ['draft 07 of the IETF', { ratelimit: 'limit=10, remaining=0, reset=30' }, 30_000],
    ['draft 07 with room', { ratelimit: 'limit=10, remaining=3, reset=30' }, null],
    ['quotes', { 'retry-after': '"30"' }, 30_000],
    ['single quotes', { 'retry-after': "'30'" }, 30_000],
    ['a sign', { 'retry-after': '+30' }, 30_000],
    ['about', { 'retry-after': '~30' }, 30_000],
    ['a power of ten', { 'retry-after': '3e1' }, 30_000],
    ['a parameter behind a blank', { 'retry-after': '30 ; reason=quota' }, 30_000],
    [
      'Auth0, in the form of the draft',
      { 'auth0-client-quota-limit': 'b=per_hour;q=100;r=0;t=1800,b=per_day;q=300;r=200;t=60000' },
      1_800_000,
    ],
    [
      'Jira, in the form of the draft, with room',
      { 'beta-ratelimit': '"tenant-app-quota";r=17842;t=2107' },
      null,
    ],
    ['Docker Hub', { 'ratelimit-limit': '100;w=21600', 'ratelimit-remaining': '0;w=21600' }, null],
    ['Brevo', limits('x-sib-ratelimit', '400', '0', '12'), 12_000],
    ['a limit of an unknown name', limits('x-ratelimit-complexity', '9', '0', '30'), 30_000],
    ['a limit of an unknown name that has room', limits('x-ratelimit-complexity', '9', '2', '30'), null],
    [
      'SAP Ariba',
      {
        'x-ratelimit-remaining-minute': '0',
        'x-ratelimit-reset-minute': '30',
        'x-ratelimit-remaining-hour': '500',
        'x-ratelimit-reset-hour': '1800',
      },
      30_000,
    ],
    ['a date without its day', { 'retry-after': '01 Sep 2026 12:00:30 GMT' }, 30_000],
    ['a date without its comma', { 'retry-after': 'Tue 01 Sep 2026 12:00:30 GMT' }, 30_000],
    ['a limit below zero', limits('x-ratelimit', '10', '-3', '5'), 5000],
    ['HTTP-date in UTC', { 'retry-after': endsAt(5).toUTCString().replace('GMT', 'UTC') }, 5000],
    ['HTTP-date with an offset', { 'retry-after': endsAt(5).toUTCString().replace('GMT', '+0000') }, 5000],
    ['seconds with their unit', { 'retry-after': '30s' }, 30_000],
    ['seconds in words', { 'retry-after': '30 seconds' }, 30_000],
    ['minutes and seconds', { 'retry-after': '1m30s' }, 90_000],
    ['milliseconds', { 'retry-after': '500ms' }, 500],
    ['ISO 8601', { 'retry-after': 'PT1M30S' }, 90_000],
    ['sent twice', { 'retry-after': '2, 5' }, 5000],
    ['sent twice, once absurd', { 'retry-after': '5, 99999999999999' }, 5000],
    ['zero', { 'retry-after': '0' }, null],
    ['negative', { 'retry-after': '-1' }, null],
    ['a reset that is over', limits('x-ratelimit', '100', '0', '2026-09-01T11:00Z'), null],
    ['a limit that has room', limits('x-ratelimit', '100', '7', '30'), null],
    ['no word of it', { 'content-type': 'text/html' }, null],
  ];

  test.each(rows)('%s: %j is %p ms', (_, fields, expected) => {
    expect(waitOf({ fields })).toBe(expected);
  });
});

describe('the wait in the body of a refusal', () => {
  const rows: readonly (readonly [string, unknown, number | null])[] = [
    [
      'Telegram',
      {
        ok: false,
        error_code: 429,
        description: 'Too Many Requests: retry after 14',
        parameters: { retry_after: 14 },
      },
      14_000,
    ],
    [
      'Telegram, its sentence alone',
      { ok: false, error_code: 429, description: 'Too Many Requests: retry after 14' },
      14_000,
    ],
    ['Discord', { message: 'You are being rate limited.', retry_after: 64.57, global: false }, 64_570],
    [
      'Dropbox',
      {
        error_summary: 'too_many_requests/..',
        error: { reason: { '.tag': 'too_many_requests' }, retry_after: 300 },
      },
      300_000,
    ],
    [
      'monday.com',
      {
        errors: [
          {
            message: 'Complexity budget exhausted',
            extensions: { code: 'COMPLEXITY_BUDGET_EXHAUSTED', retry_in_seconds: 14 },
          },
        ],
      },
      14_000,
    ],
    [
      'monday.com, an earlier form',
      {
        error_code: 'ComplexityException',
        error_message:
          'Complexity budget exhausted, query cost 222080 budget remaining 747 out of 10000000 reset in 10 seconds',
      },
      10_000,
    ],
    [
      'Google',
      {
        error: {
          code: 429,
          details: [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '31.5s' }],
        },
      },
      31_500,
    ],
    [
      'Google, whose delay is cut off',
      {
        error: {
          code: 429,
          message: 'You exceeded your current quota.\nPlease retry in 58.934310785s.',
          details: [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '58s' }],
        },
      },
      58_935,
    ],
    ['Stack Exchange', { error_id: 502, error_name: 'throttle_violation', backoff: 10 }, 10_000],
    ['Django REST framework', { detail: 'Request was throttled. Expected available in 45 seconds.' }, 45_000],
    [
      '@fastify/rate-limit',
      { statusCode: 429, error: 'Too Many Requests', message: 'Rate limit exceeded, retry in 1 minute' },
      60_000,
    ],
    [
      'Azure',
      {
        error: {
          code: '429',
          message:
            'Requests have exceeded call rate limit. Please retry after 34 seconds. To raise it, see https://aka.ms',
        },
      },
      34_000,
    ],
    [
      'Groq',
      { error: { message: 'Rate limit reached. Please try again in 1m8.256s. Need more? Visit us' } },
      68_256,
    ],
    [
      'OpenAI, an early form',
      { error: { message: 'Limit: 3 / min. Please try again in 20s. Contact us.' } },
      20_000,
    ],
    [
      'Binance',
      {
        code: -1003,
        msg: `Way too much request weight used; IP banned until ${nowMs + 30_000}. Please wait.`,
      },
      30_000,
    ],
    [
      'Stability',
      {
        errors: [
          'You have exceeded the rate limit of 150 requests within a 10 second period, and have been timed out for 60 seconds.',
        ],
      },
      60_000,
    ],
    [
      'Azure Resource Manager',
      { error: { message: "Number of 'read' requests exceeded. Please try again after '17' seconds." } },
      17_000,
    ],
    [
      'Dataverse, how its limit counts',
      {
        error: { message: 'Number of requests exceeded the limit of 6000 over time window of 300 seconds.' },
      },
      null,
    ],
    ['Supabase', { msg: 'For security purposes, you can only request this after 30 seconds.' }, 30_000],
    ['a day’s end', { message: 'Daily limit reached, it resets at midnight UTC.' }, 43_200_000],
    ['a day’s end somewhere', { message: 'Daily limit reached, it resets at midnight.' }, null],
    ['a member in camel case', { error: { retryAfterMs: 1500 } }, 1500],
    ['a member with its minutes', { retry_after_minutes: 2 }, 120_000],
    ['an instant', { error: { retry_at: endsAt(9).toISOString() } }, 9000],
    ['an epoch', { resets_at: nowMs / 1000 + 21 }, 21_000],
    ['plain text', 'Too many requests, please try again in 15 minutes.', 900_000],
    ['a page', '<html><body><h1>429</h1>Please wait 30 seconds before trying again.</body></html>', 30_000],
    ['words', 'Please try again in 1 minute and 30 seconds.', 90_000],
    ['one of a unit', { message: 'Slow down. Please try again in a minute.' }, 60_000],
    ['an instant in a sentence', 'Quota used up, try again at 2026-09-01T12:00:40Z.', 40_000],
    ['hours, minutes and seconds', 'Retry after 00:01:30', 90_000],
    ['an HTTP date in a sentence', `Retry after ${endsAt(30).toUTCString()}`, 30_000],
    ['one of a unit in words', 'Please try again in one minute', 60_000],
    ['the next call', 'Next request allowed in 30 seconds', 30_000],
    ['another call', 'You can make another request in 30 seconds', 30_000],
    ['a block', 'This client is blocked for 30 seconds', 30_000],
    ['more of it', 'Wait for 30 more seconds', 30_000],
    ['an object', { error: { details: [{ retryDelay: { seconds: 30, nanos: 0 } }] } }, 30_000],
    ['a document within a text', { error: '{"retry_after":30}' }, 30_000],
    ['the unit before the name', { seconds_until_reset: 30 }, 30_000],
    ['a wait in words', { time_to_wait: 30 }, 30_000],
    ['a member of an instant', { error: { resetTime: endsAt(30).toISOString() } }, 30_000],
    ['the end of a block', { blocked_until: endsAt(30).toISOString() }, 30_000],
    ['how many are allowed', 'Only 5 requests are allowed in 60 seconds', null],
    ['when it was asked', { request_at: endsAt(-1).toISOString() }, null],
    ['Chinese', { message: '请求过于频繁，请在 30 秒后重试' }, 30_000],
    [
      'how the limit counts',
      { message: 'Rate limit of 5 requests per 60 seconds exceeded, please retry later' },
      null,
    ],
    ['how the limit counts, in brackets', 'Try again later (limit: 100 requests per 60 seconds)', null],
    ['a price', 'This model is available on plans with 30 days of history', null],
    ['no time', { error: 'Quota exceeded' }, null],
    ['a page without one', '<html>error code: 1015</html>', null],
    ['zero', { retry_after: 0 }, null],
    ['negative', { retry_after: -5 }, null],
    ['absurd text', { retry_after: 'soon' }, null],
  ];

  test.each(rows)('%s: %j is %p ms', (_, body, expected) => {
    expect(waitOf({ body })).toBe(expected);
    expect(waitOf({ body, kind: 'language-model' })).toBe(expected);
  });

  test('is read of an overload as well', () => {
    expect(waitOf({ body: { retry_after: 7 }, status: 503 })).toBe(7000);
  });

  test('yields to Retry-After', () => {
    expect(waitOf({ fields: { 'retry-after': '3' }, body: { retry_after: 7 } })).toBe(3000);
  });
});

describe('a wait of half a minute', () => {
  const at = endsAt(30);
  const fields: readonly (readonly [string, string])[] = [
    ['retry-after', '30 (seconds)'],
    ['retry-after', '30;reason=quota'],
    ['retry-after', '30 Seconds.'],
    ['retry-after', 'seconds=30'],
    ['retry-after', '2026-09-01T12:00:30Z[UTC]'],
    ['retry-after', at.toUTCString().replace('GMT', '+0000 (UTC)')],
    ['retry-after-ms', '30,000'],
    ['x-throttle-wait-seconds', '30'],
    ['x-ratelimit-ttl', '30'],
    ['x-ratelimit-renews-in', '30'],
    ['x-ratelimit-next-request-at', at.toISOString()],
    ['x-next-replenishment-time', String(at.getTime())],
    ['x-cool-down-seconds', '30'],
    ['x-blocked-until', at.toISOString()],
    ['x-rl-reset', '30'],
    ['anthropic-ratelimit-unified-reset', epoch(30)],
    ['x-ratelimit-reset-minute', '30'],
    ['x-ratelimit-userreset', epoch(30)],
    ['x-ratelimit-reset', `${at.getTime()}000`],
    ['x-ratelimit-reset', `${at.getTime()}000000`],
    ['x-ratelimit-reset', '2026-09-01T12:00:30'],
    ['retry-after', 'in 30 seconds'],
    ['retry-after', 'Tue, 01 Sep 2026 08:00:30 EDT'],
    ['retry-after', 'Tue, 01 Sep 2026 04:00:30 PST'],
    ['retry-after', 'Tue, 1 September 2026 12:00:30 GMT'],
    ['retry-after', 'Tuesday, September 1, 2026 12:00:30 UTC'],
    ['retry-after', 'Tue Sep 01 12:00:30 UTC 2026'],
    ['retry-after', '9/1/2026 12:00:30 PM'],
    ['retry-after', '9/1/2026 12:00:30 PM +00:00'],
    ['retry-after', '2026/09/01 12:00:30'],
    ['retry-after', '20260901T120030Z'],
    ['x-ratelimit', 'limit=10, remaining=0, reset=30'],
    ['x-ratelimit-timeremaining', '30'],
    ['x-rate-limit-seconds-remaining', '30'],
    ['x-ratelimit-reset-utc', at.toISOString()],
    ['x-ratelimit-reset-epoch', epoch(30)],
    ['x-penalty-seconds', '30'],
    ['x-throttled-until', at.toISOString()],
  ];
  test.each(fields)('is read of %s: %s', (name, value) => {
    expect(waitOf({ fields: { [name]: value } })).toBe(30_000);
  });

  const members: readonly (readonly [string, unknown])[] = [
    ['retry_in_secs', 30],
    ['retryMs', 30_000],
    ['retry_after_timestamp', nowMs / 1000 + 30],
    ['nextRetry', at.toISOString()],
    ['next_allowed_request', at.toISOString()],
    ['msBeforeNext', 30_000],
    ['throttle_time_ms', 30_000],
    ['timeRemaining', '30s'],
    ['seconds_left', 30],
    ['delay_seconds', 30],
    ['ban_expires_at', at.toISOString()],
    ['lockedUntil', at.toISOString()],
    ['quotaResetTimeStamp', at.toISOString()],
    ['window_reset_seconds', 30],
    ['retry', { in_seconds: 30 }],
    ['errors', [{ retry_after: 5 }, { retry_after: 30 }]],
    ['not_before', at.toISOString()],
    ['lockoutSeconds', 30],
    ['retryAt', `/Date(${at.getTime()})/`],
    ['retry_at', { $date: at.toISOString() }],
    ['reset_at', { seconds: at.getTime() / 1000, nanos: 0 }],
    ['retry_after', { value: 30, unit: 'seconds' }],
    ['retry', { after: 0.5, unit: 'minutes' }],
    ['wait', [30]],
  ];
  test.each(members)('is read of a member %s: %j', (name, value) => {
    expect(waitOf({ body: { error: { [name]: value } } })).toBe(30_000);
  });

  test.each([
    '<Error><Code>Throttled</Code><RetryAfterSeconds>30</RetryAfterSeconds></Error>',
    '<error code="429" retry-after="30"/>',
    'error=rate_limited&retry_after=30',
    'callback({"retry_after":30})',
    'Please try again in 30.',
    'Come back in 30 seconds.',
    'Wait time: 30 seconds',
    'Time remaining: 30 seconds',
    'Please retry in 10 to 30 seconds',
    'Please retry in 10–30 seconds',
    'Your quota will be refilled in 30 seconds.',
    'The limit renews in 30 seconds.',
    'Account locked. Unlocks in 30 seconds',
    'No more calls for the next 30 seconds',
    'Try again after 2026-09-01 12:00:30 (UTC).',
    'FLOOD_WAIT_30',
    '30초 후에 다시 시도하세요',
    '请等待30秒',
    '30秒お待ちください',
    'Bitte versuchen Sie es in 30 Sekunden erneut.',
    'Veuillez réessayer dans 30 secondes.',
    'Inténtalo de nuevo en 30 segundos.',
    'Tente novamente em 30 segundos.',
    'Riprova tra 30 secondi.',
    'Повторите попытку через 30 секунд',
    'In 30 seconds you can try again.',
    'You have 30 seconds until your limit resets',
    '30 seconds remaining until reset',
    'Seconds until reset: 30',
    '<wait>30</wait>',
    'Throttled for 30 seconds',
    'Your quota will reset after 0h0m30s.',
    'Try again in PT30S',
    'try again in 30 second(s)',
    'Limit of 10 per 60s exceeded for UserByModelByMinute. Please wait 30 seconds before retrying.',
    'Limit of 10 per 60s exceeded, please wait 30 seconds',
    'Upgrade your plan or wait 30 seconds',
    'The limit resets at 12:00:30 UTC',
    'Try again after Sep 1, 2026 12:00:30 UTC',
    'Next call at 9/1/2026 12:00:30 PM, retry then',
  ])('is read of "%s"', (body) => {
    expect(waitOf({ body })).toBe(30_000);
  });

  test('is read of a field that holds JSON: Meta states minutes', () => {
    const usage = JSON.stringify({ 17: [{ call_count: 100, estimated_time_to_regain_access: 19 }] });
    expect(waitOf({ fields: { 'x-business-use-case-usage': usage } })).toBe(1_140_000);
  });
});

describe('no wait', () => {
  test.each([
    ['age', '30'],
    ['x-cache-ttl', '30'],
    ['x-request-time', '30'],
    ['x-ratelimit-remaining-second', '30'],
    ['x-ratelimit-remaining-audio-seconds', '30'],
    ['x-ratelimit-interval-seconds', '30'],
    ['x-ratelimit-reset-requests', '30'],
    ['x-ratelimit-last-reset', '30'],
    ['x-retry-count', '30'],
    ['x-retry-attempts', '30'],
    ['x-token-expires-at', '2026-09-01T12:00:30Z'],
    ['x-next-page', '30'],
    ['report-to', '{"group":"a","max_age":30}'],
    ['x-ratelimit-reset', '2026-09-01T14:00:30'],
    ['x-ratelimit', 'limit=10, remaining=3, reset=30'],
    ['x-ratelimit-policy', '10 per 30 seconds, then wait'],
    ['retry-after', 'Tue, 31 Sep 2026 12:00:30 EDT'],
    ['retry-after', '13/1/2026 12:00:30 PM +00:00'],
  ])('is read of %s: %s', (name, value) => {
    expect(waitOf({ fields: { [name]: value } })).toBeNull();
  });

  test.each([
    { retry_count: 30 },
    { retry: true },
    { attempts: 30, timestamp: nowMs / 1000 + 30, duration: 30, time: 30 },
    { date: endsAt(30).toISOString(), expires_in: 30 },
    { window_seconds: 60, time_limit: 60, limit_reset_interval: 3600 },
    { next: 2, next_page: 2, available: 5, allowed_requests: 30 },
    { credits_left: 30, tokens_remaining: 30, quota_remaining: 30 },
    { block_count: 3, throttle_rate: 30, last_reset: 30 },
  ])('is read of %j', (body) => {
    expect(waitOf({ body })).toBeNull();
    expect(waitOf({ body, kind: 'language-model' })).toBeNull();
  });

  test.each([
    'You have sent too many requests in the last 60 seconds',
    'Available for 30 days',
    'Retry 3 times',
    'Timeout after 30 seconds, please retry',
    '5 requests are allowed in 60 seconds, please retry later',
    'Your plan allows 100 requests every 30 seconds, try again later',
    'Please try again later or contact support within 2 days',
    'The request of 2026-09-01T11:59:00Z was refused, try again later',
    'Too many attempts within 30 minutes, please try again later',
  ])('is read of "%s"', (body) => {
    expect(waitOf({ body })).toBeNull();
  });
});

describe('the wait of a described dialect', () => {
  const described = (speaks: SpeaksInput, { fields = {}, body = null }: Refusal): number | null => {
    const text = body === null || typeof body === 'string' ? body : JSON.stringify(body);
    const facts = {
      status: 429,
      fields: new Map(Object.entries(fields)),
      body: text,
      callClass: 'default',
      nowMs,
    };
    return learnFrom('generic', facts, dialectOf(speaks).dialect).throttle?.waitMs ?? null;
  };
  const waitIn: SpeaksInput['waitIn'] = [
    { field: 'X-Acme-Retry', as: 'duration' },
    { field: 'x-acme-quota', member: 'resets', as: 'milliseconds' },
    { body: '/errors/0/wait', as: 'milliseconds' },
    { body: 'come back in (\\d+) ticks', as: 'milliseconds' },
    { body: '/until', as: 'epoch-seconds' },
  ];

  test.each<readonly [string, Refusal, number | null]>([
    ['in a field', { fields: { 'x-acme-retry': '1m30s' } }, 90_000],
    ['in a member of a field', { fields: { 'x-acme-quota': 'left=0; resets=700' } }, 700],
    ['behind a pointer', { body: { errors: [{ wait: 1500 }] } }, 1500],
    ['in a pattern', { body: 'Come back in 250 ticks.' }, 250],
    ['as an epoch', { body: { until: nowMs / 1000 + 4 } }, 4000],
    ['before Retry-After', { fields: { 'x-acme-retry': '2s', 'retry-after': '9' } }, 2000],
    ['beside Retry-After', { fields: { 'x-acme-retry': 'never', 'retry-after': '9' } }, 9000],
    ['beside a usual body', { body: { retry_after: 3 } }, 3000],
    ['beside limits that are used up', { fields: limits('x-ratelimit', '5', '0', '6') }, 6000],
    ['nowhere', { body: { errors: [{ wait: 'long' }] } }, null],
  ])('is read %s', (_, refusal, expected) => {
    expect(described({ waitIn }, refusal)).toBe(expected);
  });

  test('is not guessed from its windows where it says how long an unstated one is', () => {
    const windows: SpeaksInput['windows'] = [{ requests: 5, seconds: 10, kind: 'rolling' }];
    expect(described({ windows }, {})).toBe(10_000);
    expect(described({ windows, hintlessSeconds: 2 }, {})).toBeNull();
  });

  test('makes bodies of successes worth reading where those refuse', () => {
    const throttledBy: SpeaksInput['throttledBy'] = [{ status: [200, 400], field: 'x-refused' }];
    expect(dialectOf({ throttledBy }).dialect.bodyStatuses).toEqual([]);
    expect(dialectOf({ throttledBy, waitIn }).dialect.bodyStatuses).toEqual([200]);
  });
});

describe('a wait, however it is written,', () => {
  const wordsOf = (ms: number): string => (ms % 1000 === 0 ? `${ms / 1000} seconds` : `${ms} milliseconds`);
  const goOf = (ms: number): string => {
    const minutes = Math.floor(ms / 60_000);
    return `${minutes > 0 ? `${minutes}m` : ''}${(ms % 60_000) / 1000}s`;
  };
  const at = (ms: number): Date => new Date(nowMs + ms);
  const whole = (ms: number): number => Math.ceil(ms / 1000);
  const spellings: readonly ((ms: number) => Refusal)[] = [
    (ms) => ({ fields: { 'retry-after': String(whole(ms)) } }),
    (ms) => ({ fields: { 'retry-after': (ms / 1000).toFixed(3) } }),
    (ms) => ({ fields: { 'retry-after': `${whole(ms)}s` } }),
    (ms) => ({ fields: { 'retry-after': goOf(ms) } }),
    (ms) => ({ fields: { 'retry-after': wordsOf(ms) } }),
    (ms) => ({ fields: { 'retry-after': `PT${ms / 1000}S` } }),
    (ms) => ({ fields: { 'retry-after': at(whole(ms) * 1000).toUTCString() } }),
    (ms) => ({
      fields: {
        'retry-after': at(whole(ms) * 1000)
          .toUTCString()
          .replace('GMT', '+0000'),
      },
    }),
    (ms) => ({ fields: { 'retry-after': at(ms).toISOString() } }),
    (ms) => ({ fields: { 'retry-after-ms': String(ms) } }),
    (ms) => ({ fields: { 'x-retry-after': String(whole(ms)) } }),
    (ms) => ({ fields: { 'x-ms-retry-after-ms': String(ms) } }),
    (ms) => ({ fields: { 'retry-after': `1, ${whole(ms)}` } }),
    (ms) => ({ fields: limits('x-rate-limit', '9', '0', epoch(whole(ms))) }),
    (ms) => ({ fields: limits('x-ratelimit', '9', '0', String(nowMs + ms)) }),
    (ms) => ({ fields: limits('ratelimit', '9', '0', String(whole(ms))) }),
    (ms) => ({ fields: limits('x-ratelimit', '9', '0', goOf(ms)) }),
    (ms) => ({ fields: limits('x-ratelimit', '9', '0', at(whole(ms) * 1000).toString()) }),
    (ms) => ({ fields: { 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': String(whole(ms)) } }),
    (ms) => ({ fields: { ratelimit: `"a";r=0;t=${whole(ms)}` } }),
    (ms) => ({ body: { retry_after: ms / 1000 } }),
    (ms) => ({ body: { error: { retryAfterMs: ms } } }),
    (ms) => ({ body: { error: { details: [{ retryDelay: `${(ms / 1000).toFixed(9)}s` }] } } }),
    (ms) => ({ body: { resetAt: at(ms).toISOString() } }),
    (ms) => ({ body: { errors: [{ message: `Please try again in ${goOf(ms)}. Thanks.` }] } }),
    (ms) => ({ body: { message: `Too Many Requests: retry after ${whole(ms)}` } }),
    (ms) => ({ body: `Please retry after ${wordsOf(ms)}.` }),
    (ms) => ({ body: `Try again at ${at(ms).toISOString()}` }),
    (ms) => ({ fields: limits('x-acme-ratelimit', '9', '0', String(whole(ms))) }),
    (ms) => ({ fields: { ratelimit: `limit=9, remaining=0, reset=${whole(ms)}` } }),
    (ms) => ({ fields: { 'x-ratelimit-reset-ms': String(nowMs + ms) } }),
    (ms) => ({ body: { retry_after: { seconds: ms / 1000 } } }),
    (ms) => ({ body: { seconds_until_retry: ms / 1000 } }),
    (ms) => ({ body: `Retry after ${at(whole(ms) * 1000).toUTCString()}` }),
    (ms) => ({ kind: 'commerce', body: { errors: `Please wait ${wordsOf(ms)}` } }),
    (ms) => ({ kind: 'language-model', status: 503, body: { error: { retry_after: ms / 1000 } } }),
    (ms) => ({ kind: 'language-model', fields: { ratelimit: `"a";r=0;t=${whole(ms)}` } }),
  ];

  test('is never undercut, and never exceeded by more than a second', () => {
    const waits = fc.integer({ min: 1001, max: 80_000_000 });
    fc.assert(
      fc.property(waits, fc.constantFrom(...spellings.keys()), (ms, index) => {
        const waitMs = waitOf(spellings[index]?.(ms) ?? {}) ?? NaN;
        expect(waitMs - ms).toBeGreaterThanOrEqual(0);
        expect(waitMs - ms).toBeLessThanOrEqual(1000);
      }),
      { numRuns: 2000 },
    );
  });

  test('is read of a 403 that says in words that calls come too fast, and of no other', () => {
    const body = { message: 'API rate limit exceeded. Try again in 30 seconds.' };
    expect(waitOf({ status: 403, body })).toBe(30_000);
    expect(waitOf({ status: 420, body: 'Too many requests', fields: { 'retry-after': '9' } })).toBe(9000);
    expect(
      waitOf({ status: 403, body: 'No right to change rate limits', fields: { 'retry-after': '9' } }),
    ).toBeNull();
  });

  test.each<readonly [string, Refusal, number]>([
    [
      'Podio',
      { status: 420, body: 'You have hit the rate limit. Please wait 3600 seconds before trying again' },
      3_600_000,
    ],
    ['Mashery', { status: 403, body: '<h1>Developer Over Qps</h1>', fields: { 'retry-after': '1' } }, 1000],
    [
      'another',
      { status: 403, body: 'You have exceeded your hourly rate limit.', fields: { 'retry-after': '9' } },
      9000,
    ],
    ['Bybit', { status: 403, body: 'access too frequent', fields: { 'retry-after': '600' } }, 600_000],
    ['Binance', { status: 418, body: { code: -1003 }, fields: { 'retry-after': '120' } }, 120_000],
    [
      'Binance, in its sentence',
      { status: 418, body: { msg: `Way too much request weight used; IP banned until ${nowMs + 30_000}.` } },
      30_000,
    ],
  ])('is read of a refusal of %s: %j', (_, refusal, expected) => {
    expect(waitOf(refusal)).toBe(expected);
  });

  test('is none of a teapot', () => {
    const facts = { status: 418, fields: new Map(), body: 'I am a teapot', callClass: 'default', nowMs };
    expect(learnFrom('generic', facts).throttle).toBeNull();
  });

  test('is a whole number of milliseconds up to a day or nothing, whatever a body says', () => {
    const name = fc.constantFrom(
      'retry_after',
      'retryDelay',
      'message',
      'error',
      'reset_at',
      'parameters',
      'x',
    );
    const words = fc.constantFrom(
      'try again',
      ' in ',
      'retry after ',
      '20',
      's',
      ' minutes',
      '.',
      '2026-09-01T12:00Z',
      'a ',
    );
    const text = fc.array(words, { maxLength: 8 }).map((list) => list.join(''));
    const value = fc.oneof(text, fc.string(), fc.double(), fc.integer(), fc.constant(null));
    const body = fc.oneof(
      text,
      fc.dictionary(name, fc.oneof(value, fc.dictionary(name, value), fc.array(value))),
    );
    fc.assert(
      fc.property(body, (stated) => {
        const waitMs = waitOf({ body: stated });
        expect(waitMs === null || (Number.isInteger(waitMs) && waitMs >= 1 && waitMs <= 86_400_000)).toBe(
          true,
        );
      }),
      { numRuns: 1000 },
    );
  });
});

test('fields of a success are not searched for waits', () => {
  let searches = 0;
  class Fields extends Map<string, string> {
    override [Symbol.iterator](): MapIterator<[string, string]> {
      searches += 1;
      return super[Symbol.iterator]();
    }
  }
  const read = (status: number): unknown =>
    learnFrom('generic', {
      status,
      fields: new Fields([['content-type', 'application/json']]),
      body: null,
      callClass: '',
      nowMs: 0,
    });
  read(200);
  expect(searches).toBe(0);
  read(429);
  expect(searches).toBeGreaterThan(0);
});
