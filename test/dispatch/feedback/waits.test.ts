/** The wait that a refusal states, in the spelling of each provider. How a time may be written is in `../stated-time.test.ts`. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { error, limits, nowMs, throttleOf, waitOf } from './learning.ts';
import type { Fields, Response, Who } from './learning.ts';

const at = (ms: number): Date => new Date(nowMs + ms);
const epoch = (seconds: number): string => String(nowMs / 1000 + seconds);
const half = at(30_000);
const iso = half.toISOString();
const instant = half.getTime();
const dated = (fields: Fields): Fields => ({ date: at(0).toUTCString(), ...fields });
const words = (text: string): readonly string[] => text.split(' ');

test.each<[Who, string, number]>([
  ['language-model', 'Please try again in 1.9s.', 1_900],
  ['generic', 'Please try again in 1.9s.', 1_900],
  ['generic', 'Please try again in 2.4s.', 1_000],
  ['generic', 'Please try again in 900ms.', 1_000],
])('a `Retry-After: 1` of a %s upstream that says "%s" means %i ms', (who, message, waitMs) => {
  const body = error(message, { code: 'rate_limit_exceeded' });
  expect(waitOf(who, { fields: { 'retry-after': '1' }, body })).toBe(waitMs);
});

describe('the wait in the fields of a refusal', () => {
  test.each<[string, Fields, number | null]>([
    ['Okta', limits('x-rate-limit', '600, 1', '599, 0', `${epoch(6)}, ${epoch(12)}`), 12_000],
    ['Reddit', { 'x-ratelimit-remaining': '0.0', 'x-ratelimit-reset': '42' }, 42_000],
    ['Jira Cloud', limits('x-ratelimit', 100, 0, '2026-09-01T12:01Z'), 60_000],
    ['Cloudflare', { 'x-ratelimit-reset': half.toUTCString() }, 30_000],
    ['Twitch', limits('ratelimit', 800, 0, epoch(9)), 9_000],
    ['Discord', { 'x-ratelimit-remaining': '0', 'x-ratelimit-reset-after': '1.257' }, 1_257],
    ['WooCommerce', { ...limits('ratelimit', 25, 0, epoch(8)), 'ratelimit-retry-after': '8' }, 8_000],
    ['Akamai', { 'x-ratelimit-remaining': '0', 'x-ratelimit-next': '2026-09-01T12:00:30Z' }, 30_000],
    ['Bybit', { 'x-bapi-limit-status': '0', 'x-bapi-limit-reset-timestamp': String(nowMs + 700) }, 700],
    ['Walmart', { 'x-current-token-count': '0', 'x-next-replenish-time': String(instant) }, 30_000],
    ['Etsy, a spent day', { 'x-remaining-today': '0', 'retry-after': '3600' }, 3_600_000],
    ['Meta', { 'x-app-usage': '{"7":[{"estimated_time_to_regain_access":19}]}' }, 1_140_000],
    ['a vendor’s own names', limits('x-acme-ratelimit', 10, 0, epoch(30)), 30_000],
    ['a vendor’s own names, with room', limits('x-acme-ratelimit', 10, 4, '30'), null],
    ['a reset with its unit', { 'x-rate-limit-reset-seconds': '30', 'x-rate-limit-remaining': '0' }, 30_000],
    ['an instant with the unit of a duration', { 'x-ratelimit-reset-ms': String(instant) }, 30_000],
    ['draft 07 with room', { ratelimit: 'limit=10, remaining=3, reset=30' }, null],
    ['Auth0, as the draft', { 'auth0-client-quota-limit': 'b=h;q=9;r=0;t=1800,b=d;q=9;r=2;t=6' }, 1_800_000],
    ['Jira, as the draft, with room', { 'beta-ratelimit': '"tenant-app-quota";r=17842;t=2107' }, null],
    ['Docker Hub', { 'ratelimit-limit': '100;w=21600', 'ratelimit-remaining': '0;w=21600' }, null],
    ['Brevo', limits('x-sib-ratelimit', 400, 0, '12'), 12_000],
    ['a limit of an unknown name', limits('x-ratelimit-complexity', 9, 0, '30'), 30_000],
    ['a limit of an unknown name, with room', limits('x-ratelimit-complexity', 9, 2, '30'), null],
    ['SAP Ariba', { 'x-ratelimit-remaining-minute': '0', 'x-ratelimit-reset-minute': '30' }, 30_000],
    ['a limit below zero', limits('x-ratelimit', 10, -3, '5'), 5_000],
    ['sent twice, once absurd', { 'retry-after': '5, 99999999999999' }, 5_000],
    ['zero', { 'retry-after': '0' }, null],
    ['negative', { 'retry-after': '-1' }, null],
    ['a reset that is over', limits('x-ratelimit', 100, 0, '2026-09-01T11:00Z'), null],
    ['a limit that has room', limits('x-ratelimit', 100, 7, '30'), null],
    ['no word of it', { 'content-type': 'text/html' }, null],
  ])('%s: %j is %p ms', (_, fields, expected) => {
    expect(waitOf('generic', { fields: dated(fields) })).toBe(expected);
  });

  const written: readonly (readonly [string, readonly string[]])[] = [
    ['30', words('x-throttle-wait-seconds x-ratelimit-ttl x-ratelimit-renews-in x-cool-down-seconds')],
    ['30', words('x-rl-reset x-ratelimit-reset-minute x-ratelimit-timeremaining x-penalty-seconds')],
    ['30', words('x-rate-limit-wait x-backoff x-rate-limit-seconds-remaining')],
    ['30,000', ['retry-after-ms']],
    [iso, words('x-ratelimit-next-request-at x-blocked-until x-ratelimit-reset-utc x-throttled-until')],
    [iso, words('retry-after x-ratelimit-resets-at')],
    [epoch(30), words('anthropic-ratelimit-unified-reset x-ratelimit-userreset x-ratelimit-reset-epoch')],
    [String(instant), ['x-next-replenishment-time']],
    [`${instant}000`, ['x-ratelimit-reset']],
    [`${instant}000000`, ['x-ratelimit-reset']],
    ['2026-09-01T12:00:30', ['x-ratelimit-reset']],
    ['limit=10, remaining=0, reset=30', ['x-ratelimit']],
  ];
  test.each(written.flatMap(([value, names]) => names.map((name) => [name, value] as const)))(
    'is half a minute in %s: %s',
    (name, value) => expect(waitOf('generic', { fields: dated({ [name]: value }) })).toBe(30_000),
  );

  test.each([
    '30 (seconds)',
    '30;reason=quota',
    '30 ; reason=quota',
    '30 Seconds.',
    'seconds=30',
    'in 30 seconds',
    '"30"',
    "'30'",
    '+30',
    '~30',
    '3e1',
    '2026-09-01T12:00:30Z[UTC]',
    half.toUTCString().replace('GMT', '+0000 (UTC)'),
    'Tue, 01 Sep 2026 08:00:30 EDT',
    'Tue, 01 Sep 2026 04:00:30 PST',
    'Tue, 1 September 2026 12:00:30 GMT',
    'Tue 01 Sep 2026 12:00:30 GMT',
    '01 Sep 2026 12:00:30 GMT',
    'Tuesday, September 1, 2026 12:00:30 UTC',
    'Tue Sep 01 12:00:30 UTC 2026',
    '9/1/2026 12:00:30 PM',
    '9/1/2026 12:00:30 PM +00:00',
    '2026/09/01 12:00:30',
  ])('is half a minute in Retry-After: %s', (value) => {
    expect(waitOf('generic', { fields: dated({ 'retry-after': value }) })).toBe(30_000);
  });

  const others: readonly (readonly [string, readonly string[]])[] = [
    ['30', words('age x-cache-ttl x-request-time x-retry-count x-retry-attempts x-next-page')],
    ['30', words('x-ratelimit-remaining-second x-ratelimit-remaining-audio-seconds x-ratelimit-last-reset')],
    ['30', words('x-ratelimit-interval-seconds x-ratelimit-reset-requests')],
    ['2026-09-01T12:00:30Z', ['x-token-expires-at']],
    ['2026-09-01T14:00:30', ['x-ratelimit-reset']],
    ['{"group":"a","max_age":30}', ['report-to']],
    ['limit=10, remaining=3, reset=30', ['x-ratelimit']],
    ['10 per 30 seconds, then wait', ['x-ratelimit-policy']],
    ['13/1/2026 12:00:30 PM +00:00', ['retry-after']],
  ];
  test.each(others.flatMap(([value, names]) => names.map((name) => [name, value] as const)))(
    'is not read of %s: %s',
    (name, value) => expect(waitOf('generic', { fields: dated({ [name]: value }) })).toBeNull(),
  );
});

describe('the wait in the body of a refusal', () => {
  const google = (retryDelay: unknown): object => ({ error: { code: 429, details: [{ retryDelay }] } });
  test.each<[string, unknown, number | null]>([
    ['Telegram', { ok: false, error_code: 429, parameters: { retry_after: 14 } }, 14_000],
    ['Discord', { message: 'You are being rate limited.', retry_after: 64.57, global: false }, 64_570],
    ['Dropbox', { error: { reason: { '.tag': 'too_many_requests' }, retry_after: 300 } }, 300_000],
    ['monday.com', { errors: [{ message: 'exhausted', extensions: { retry_in_seconds: 14 } }] }, 14_000],
    ['monday.com, once', 'budget remaining 747 out of 10000000 reset in 10 seconds', 10_000],
    ['Google', google('31.5s'), 31_500],
    ['Google, cut off', { e: google('58s'), message: 'quota.\nPlease retry in 58.934310785s.' }, 58_935],
    ['Stack Exchange', { error_name: 'throttle_violation', backoff: 10 }, 10_000],
    ['Django REST framework', { detail: 'Throttled. Expected available in 45 seconds.' }, 45_000],
    ['@fastify/rate-limit', { message: 'Rate limit exceeded, retry in 1 minute' }, 60_000],
    ['Azure', error('Please retry after 34 seconds. To raise it, see https://aka.ms'), 34_000],
    ['Groq', error('Rate limit reached. Please try again in 1m8.256s. Need more? Visit us'), 68_256],
    ['OpenAI, once', error('Limit: 3 / min. Please try again in 20s. Contact us.'), 20_000],
    ['Binance', { msg: `Too much weight used; IP banned until ${instant}. Please wait.` }, 30_000],
    ['Stability', ['150 requests within a 10 second period, timed out for 60 seconds.'], 60_000],
    ['Azure Resource Manager', error("Number of requests exceeded. Try again after '17' seconds."), 17_000],
    ['Dataverse', error('Requests exceeded the limit of 6000 over time window of 300 seconds.'), null],
    ['Supabase', { msg: 'For security purposes, you can only request this after 30 seconds.' }, 30_000],
    ['a day’s end somewhere', { message: 'Daily limit reached, it resets at midnight.' }, null],
    ['a member with its minutes', { retry_after_minutes: 2 }, 120_000],
    ['an instant', { error: { retry_at: iso } }, 30_000],
    ['an epoch', { resets_at: nowMs / 1000 + 21 }, 21_000],
    ['plain text', 'Too many requests, please try again in 15 minutes.', 900_000],
    ['a page', '<html><h1>429</h1>Please wait 30 seconds before trying again.</html>', 30_000],
    ['words', 'Please try again in 1 minute and 30 seconds.', 90_000],
    ['one of a unit', { message: 'Slow down. Please try again in a minute.' }, 60_000],
    ['Vimeo', { error: 'Too many API requests. Wait an hour or so, then try again.' }, null],
    ['one of a unit in words', 'Please try again in one minute', 60_000],
    ['hours, minutes and seconds', 'Retry after 00:01:30', 90_000],
    ['an object', google({ seconds: 30, nanos: 0 }), 30_000],
    ['a document within a text', { error: '{"retry_after":30}' }, 30_000],
    ['the unit before the name', { seconds_until_reset: 30 }, 30_000],
    ['a wait in words', { time_to_wait: 30 }, 30_000],
    ['a member of an instant', { error: { resetTime: iso } }, 30_000],
    ['the end of a block', { blocked_until: iso }, 30_000],
    ['how many are allowed', 'Only 5 requests are allowed in 60 seconds', null],
    ['when it was asked', { request_at: at(-1_000).toISOString() }, null],
    ['Chinese', { message: '请求过于频繁，请在 30 秒后重试' }, 30_000],
    ['how it counts', { message: 'Rate limit of 5 requests per 60 seconds exceeded, retry later' }, null],
    ['how it counts, in brackets', 'Try again later (limit: 100 requests per 60 seconds)', null],
    ['a price', 'This model is available on plans with 30 days of history', null],
    ['no time', { error: 'Quota exceeded' }, null],
    ['a page without one', '<html>error code: 1015</html>', null],
    ['zero', { retry_after: 0 }, null],
    ['negative', { retry_after: -5 }, null],
    ['absurd text', { retry_after: 'soon' }, null],
  ])('%s: %j is %p ms', (_, body, expected) => {
    expect(waitOf('generic', { body })).toBe(expected);
    expect(waitOf('language-model', { body })).toBe(expected);
  });

  test('is read of an overload as well, and yields to Retry-After', () => {
    expect(waitOf('generic', { body: { retry_after: 7 }, status: 503 })).toBe(7_000);
    expect(waitOf('generic', { fields: { 'retry-after': '3' }, body: { retry_after: 7 } })).toBe(3_000);
  });

  const members: readonly (readonly [unknown, readonly string[]])[] = [
    [30, words('retry_in_secs seconds_left delay_seconds window_reset_seconds lockoutSeconds')],
    [30_000, words('retryMs msBeforeNext throttle_time_ms')],
    [iso, words('nextRetry next_allowed_request ban_expires_at lockedUntil quotaResetTimeStamp not_before')],
    [nowMs / 1000 + 30, ['retry_after_timestamp']],
    ['30s', ['timeRemaining']],
    [{ in_seconds: 30 }, ['retry']],
    [[{ retry_after: 5 }, { retry_after: 30 }], ['errors']],
    [`/Date(${instant})/`, ['retryAt']],
    [{ $date: iso }, ['retry_at']],
    [{ seconds: instant / 1000, nanos: 0 }, ['reset_at']],
    [{ value: 30, unit: 'seconds' }, ['retry_after']],
    [{ after: 0.5, unit: 'minutes' }, ['retry']],
    [[30], ['wait']],
  ];
  test.each(members.flatMap(([value, names]) => names.map((name) => [name, value] as const)))(
    'is half a minute in the member %s: %j',
    (name, value) => expect(waitOf('generic', { body: { error: { [name]: value } } })).toBe(30_000),
  );

  test.each([
    '<Error><Code>Throttled</Code><RetryAfterSeconds>30</RetryAfterSeconds></Error>',
    '<error code="429" retry-after="30"/>',
    'error=rate_limited&retry_after=30',
    'callback({"retry_after":30})',
    'Next request allowed in 30 seconds',
    'You can make another request in 30 seconds',
    'This client is blocked for 30 seconds',
    'Wait for 30 more seconds',
    'Quota used up, try again at 2026-09-01T12:00:30Z.',
    `Retry after ${half.toUTCString()}`,
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
    'Try again after Sep 1, 2026 12:00:30 UTC',
    'Next call at 9/1/2026 12:00:30 PM, retry then',
  ])('is half a minute in "%s"', (body) => expect(waitOf('generic', { body })).toBe(30_000));

  test.each<unknown>([
    { retry_count: 30 },
    { retry: true },
    { attempts: 30, timestamp: nowMs / 1000 + 30, duration: 30, time: 30 },
    { date: iso, expires_in: 30 },
    { window_seconds: 60, time_limit: 60, limit_reset_interval: 3600 },
    { next: 2, next_page: 2, available: 5, allowed_requests: 30 },
    { credits_left: 30, tokens_remaining: 30, quota_remaining: 30 },
    { block_count: 3, throttle_rate: 30, last_reset: 30 },
    'You have sent too many requests in the last 60 seconds',
    'Available for 30 days',
    'Retry 3 times',
    'Timeout after 30 seconds, please retry',
    '5 requests are allowed in 60 seconds, please retry later',
    'Your plan allows 100 requests every 30 seconds, try again later',
    'Please try again later or contact support within 2 days',
    'The request of 2026-09-01T11:59:00Z was refused, try again later',
    'Too many attempts within 30 minutes, please try again later',
  ])('is not read of %j', (body) => {
    expect(waitOf('generic', { body })).toBeNull();
    if (typeof body !== 'string') expect(waitOf('language-model', { body })).toBeNull();
  });
});

describe('a refusal with another status than 429', () => {
  const nine = { 'retry-after': '9' };
  test.each<[string, Response, number | null]>([
    ['in words', { status: 403, body: { message: 'rate limit exceeded. Try again in 30 seconds.' } }, 30_000],
    ['of Twitter', { status: 420, body: 'Too many requests', fields: nine }, 9_000],
    ['of Podio', { status: 420, body: 'You have hit the rate limit. Please wait 3600 seconds' }, 3_600_000],
    ['of Mashery', { status: 403, body: 'Developer Over Qps', fields: { 'retry-after': '1' } }, 1_000],
    ['of an hour', { status: 403, body: 'exceeded your hourly rate limit', fields: nine }, 9_000],
    ['of Bybit', { status: 403, body: 'access too frequent', fields: { 'retry-after': '600' } }, 600_000],
    ['of Binance', { status: 418, body: { code: -1003 }, fields: { 'retry-after': '120' } }, 120_000],
    ['of Binance, in words', { status: 418, body: `weight; IP banned until ${instant}.` }, 30_000],
    ['of a right', { status: 403, body: 'No right to change rate limits', fields: nine }, null],
    ['of a teapot', { status: 418, body: 'I am a teapot' }, null],
  ])('%s: %j states %p ms', (_, refusal, expected) => {
    expect(waitOf('generic', refusal)).toBe(expected);
    expect(throttleOf('generic', refusal) === null).toBe(expected === null);
  });
});

test('a wait is a whole number of milliseconds up to a day or nothing, whatever a body says', () => {
  const name = fc.constantFrom(...words('retry_after retryDelay message error reset_at parameters x'));
  const parts = 'try again| in |retry after |20|s| minutes|.|2026-09-01T12:00Z|a '.split('|');
  const text = fc.array(fc.constantFrom(...parts), { maxLength: 8 }).map((list) => list.join(''));
  const value = fc.oneof(text, fc.string(), fc.double(), fc.integer(), fc.constant(null));
  const member = fc.oneof(value, fc.dictionary(name, value), fc.array(value));
  fc.assert(
    fc.property(fc.oneof(text, fc.dictionary(name, member)), (body) => {
      const waitMs = waitOf('generic', { body }) ?? 1;
      expect(Number.isInteger(waitMs) && waitMs >= 1 && waitMs <= 86_400_000).toBe(true);
    }),
    { numRuns: 1_000 },
  );
});
