/** What a refusal says, and the structured fields of Sluice in every response. */
import { describe, expect, test } from '@jest/globals';
import { parseDictionary, parseList, serializeDictionary } from 'structured-headers';
import type { AdmissionRecord, RateLimitState } from '../../src/call.ts';
import { refusals, type RefusalCode, type RefusalDetails } from '../../src/errors.ts';
import {
  knownFields,
  proxyMethods,
  refusalResponse,
  type ProblemResponse,
} from '../../src/ingress/respond.ts';

const requestId = '0123456789abcdef0123456789abcdef';
const codes = Object.keys(refusals) as RefusalCode[];
const responseTo = (code: RefusalCode, details: RefusalDetails = {}, known = {}): ProblemResponse =>
  refusalResponse({ code, details }, requestId, known);
const documentOf = ({ body }: ProblemResponse): unknown => JSON.parse(body.toString());
function fieldsOf({ fields }: ProblemResponse): Record<string, string> {
  const pairs = fields.flatMap((name, at) => (at % 2 === 0 ? [[name, fields[at + 1] ?? ''] as const] : []));
  expect(new Set(pairs.map(([name]) => name)).size).toBe(pairs.length);
  return Object.fromEntries(pairs);
}
const typeOf = (status: number): string => {
  if (status >= 500) return 'server_error';
  return { 401: 'authentication_error', 429: 'rate_limit_error' }[status] ?? 'invalid_request_error';
};

describe.each(codes)('a refusal with the code %s', (code) => {
  const { status, title, family } = refusals[code];

  test('has every member of a problem and nothing else', () => {
    const response = responseTo(code, { detail: 'Do this.', param: 'target' });
    const type = typeOf(status);
    expect(response.status).toBe(status);
    expect(documentOf(response)).toEqual({
      type: `urn:sluice:error:${code}`,
      title,
      status,
      detail: 'Do this.',
      code,
      requestId,
      error: { message: 'Do this.', type, code, param: 'target' },
    });
  });

  test('names the code, the call and the length in its fields, and may not be cached', () => {
    const response = responseTo(code);
    const isLater = status === 429 || status === 503;
    expect(fieldsOf(response)).toEqual({
      'Content-Type': 'application/problem+json',
      'Content-Length': String(response.body.length),
      'Cache-Control': 'no-store',
      'Sluice-Error': code,
      'Sluice-Request-Id': requestId,
      ...(status === 401 && { 'WWW-Authenticate': 'Bearer' }),
      ...(status === 405 && { Allow: proxyMethods }),
      ...(status === 426 && { Upgrade: 'HTTP/1.1' }),
      // Whoever must change something is told not to repeat.
      ...(family === 'rejected' && { 'x-should-retry': 'false' }),
      ...(isLater && { 'Retry-After': '1', 'retry-after-ms': '1000' }),
    });
  });
});

describe('a refusal', () => {
  test('falls back to its title as a sentence, and to no parameter', () => {
    const error = { message: 'No such route.', param: null };
    expect(documentOf(responseTo('not_found'))).toMatchObject({ detail: 'No such route.', error });
  });

  test.each([
    [undefined, '1', '1000', undefined],
    [0, '1', '1', undefined],
    [-5, '1', '1', undefined],
    [Number.NaN, '1', '1000', undefined],
    [Number.POSITIVE_INFINITY, '1', '1000', undefined],
    [1, '1', '1', undefined],
    [999.2, '1', '1000', undefined],
    [1_000, '1', '1000', undefined],
    [1_000.5, '2', '1001', undefined],
    [59_000, '59', '59000', undefined],
    [59_001, '60', '59001', 'false'],
    [86_400_000, '86400', '86400000', 'false'],
    [2_147_483_647, '2147484', '2147483647', 'false'],
    [2_147_483_648, '2147484', undefined, 'false'],
  ])('says when to retry after %p ms, never too early', (retryInMs, seconds, ms, shouldRetry) => {
    const fields = fieldsOf(responseTo('queue_full', retryInMs === undefined ? {} : { retryInMs }));
    const told = [fields['Retry-After'], fields['retry-after-ms'], fields['x-should-retry']];
    expect(told).toEqual([seconds, ms, shouldRetry]);
  });

  test('passes on that a retry is unsafe, and never that a call with a too long wait should be retried', () => {
    const shouldRetry = (code: RefusalCode, details: RefusalDetails) =>
      fieldsOf(responseTo(code, details))['x-should-retry'];
    expect(shouldRetry('upstream_timeout', { shouldRetry: false })).toBe('false');
    expect(shouldRetry('day_quota_exhausted', { shouldRetry: true, retryInMs: 3_600_000 })).toBe('false');
  });

  test('carries another status of the same code, and Allow', () => {
    const late = responseTo('request_invalid', { status: 408 });
    expect([late.status, documentOf(late)]).toEqual([408, expect.objectContaining({ status: 408 })]);
    expect(fieldsOf(late)).not.toHaveProperty('x-should-retry');
    expect(fieldsOf(responseTo('method_not_allowed', { allow: 'GET, HEAD' }))['Allow']).toBe('GET, HEAD');
  });
});

describe('the structured fields of Sluice', () => {
  const all = (n: number) => ({ limit: n, remaining: n, nextSlotMs: n * 1_000 });
  const admitted = (n: number) => ({ waitedMs: n, attempts: n, absorbed: n, held: [] });
  const [admissionField, ceilingFields] = [
    (record: AdmissionRecord) => knownFields({ record })[1] ?? '',
    (rateLimit: RateLimitState | null) => knownFields({ rateLimit }).filter((_, at) => at % 2 === 1),
  ];

  test('name what held a call as an inner list, in whole milliseconds', () => {
    const held = [
      { cause: 'requests', ms: 1_200.4 },
      { cause: 'ceiling_minute', ms: 299.6 },
    ] as const;
    const field = admissionField({ waitedMs: 1_500, attempts: 2, absorbed: 1, held });
    const list = 'held=(requests;ms=1200 ceiling_minute;ms=300)';
    expect(field).toBe(`waited=1500, attempts=2, absorbed=1, ${list}`);
    expect(serializeDictionary(parseDictionary(field))).toBe(field);
  });

  test.each([-1, 0, 0.4, 1.6, 1e20, Number.NaN, Number.POSITIVE_INFINITY])(
    'stay parsable integers for %p, and never state more than there is',
    (value) => {
      const fields = ceilingFields(all(value));
      const numbers = fields.flatMap((field) => [...(parseList(field)[0]?.[1].values() ?? [])]);
      expect([numbers.length, numbers.every(Number.isSafeInteger)]).toEqual([4, true]);
      if (value === 1.6) expect(fields[1]).toBe('"workspace";r=1;t=2');
      expect(parseDictionary(admissionField(admitted(value))).size).toBe(3);
    },
  );

  test.each([
    [60_000, 60],
    [60_001, 61],
  ])('never state a slot before it is free: in %d ms is t=%d', (nextSlotMs, seconds) => {
    expect(ceilingFields({ limit: 500, remaining: 0, nextSlotMs })[1]).toBe(`"workspace";r=0;t=${seconds}`);
  });
});
