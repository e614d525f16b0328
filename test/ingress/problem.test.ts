import { describe, expect, test } from '@jest/globals';
import { refusals } from '../../src/errors.ts';
import type { RefusalCode, RefusalDetails } from '../../src/errors.ts';
import { bugResponse, refusalResponse } from '../../src/ingress/problem.ts';
import type { ProblemResponse } from '../../src/ingress/problem.ts';

const requestId = '0123456789abcdef0123456789abcdef';
const codes = Object.keys(refusals) as RefusalCode[];
const responseTo = (code: RefusalCode, details: RefusalDetails = {}): ProblemResponse =>
  refusalResponse({ code, details, requestId });
function fieldsOf(response: ProblemResponse): Map<string, string> {
  const fields = new Map<string, string>();
  for (let at = 0; at < response.fields.length; at += 2) {
    const name = response.fields[at] ?? '';
    expect(fields.has(name)).toBe(false);
    fields.set(name, response.fields[at + 1] ?? '');
  }
  return fields;
}

describe('the problem document', () => {
  test.each(codes)('of %s has every member and nothing else', (code) => {
    const response = responseTo(code, { detail: 'Do this.', param: 'target' });
    const { status, title } = refusals[code];
    const type =
      status === 429
        ? 'rate_limit_error'
        : status === 401
          ? 'authentication_error'
          : status < 500
            ? 'invalid_request_error'
            : 'server_error';
    expect(response.status).toBe(status);
    expect(JSON.parse(response.body.toString())).toEqual({
      type: `urn:sluice:error:${code}`,
      title,
      status,
      detail: 'Do this.',
      code,
      requestId,
      error: { message: 'Do this.', type, code, param: 'target' },
    });
  });

  test('falls back to the title as a sentence, and to no parameter', () => {
    expect(JSON.parse(responseTo('not_found').body.toString())).toMatchObject({
      detail: 'No such route.',
      error: { message: 'No such route.', param: null },
    });
  });

  test('of a bug says nothing about the bug', () => {
    const response = bugResponse(requestId);
    expect(response.status).toBe(500);
    expect(JSON.parse(response.body.toString())).toMatchObject({
      code: 'internal',
      status: 500,
      error: { type: 'server_error', code: 'internal' },
    });
    expect(fieldsOf(response).get('Sluice-Error')).toBe('internal');
  });
});

describe('the fields of a refusal', () => {
  test.each(codes)('of %s name the code, the call and the length, and may not be cached', (code) => {
    const response = responseTo(code);
    const fields = fieldsOf(response);
    expect(fields.get('Content-Type')).toBe('application/problem+json');
    expect(fields.get('Content-Length')).toBe(String(response.body.length));
    expect(fields.get('Cache-Control')).toBe('no-store');
    expect(fields.get('Sluice-Error')).toBe(code);
    expect(fields.get('Sluice-Request-Id')).toBe(requestId);
    expect(fields.get('WWW-Authenticate')).toBe(response.status === 401 ? 'Bearer' : undefined);
    // Whoever must change something is told not to repeat.
    expect(fields.get('x-should-retry')).toBe(refusals[code].family === 'rejected' ? 'false' : undefined);
    expect(fields.has('Retry-After')).toBe(response.status === 429 || response.status === 503);
    expect(fields.has('retry-after-ms')).toBe(response.status === 429 || response.status === 503);
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
  ])('say when to retry after %p ms, never too early', (retryInMs, seconds, ms, shouldRetry) => {
    const fields = fieldsOf(responseTo('queue_full', retryInMs === undefined ? {} : { retryInMs }));
    expect(fields.get('Retry-After')).toBe(seconds);
    expect(fields.get('retry-after-ms')).toBe(ms);
    expect(fields.get('x-should-retry')).toBe(shouldRetry);
  });

  test('pass on that a retry is unsafe, and never that a call with a too long wait should be retried', () => {
    expect(fieldsOf(responseTo('upstream_timeout', { shouldRetry: false })).get('x-should-retry')).toBe(
      'false',
    );
    const long = responseTo('day_quota_exhausted', { shouldRetry: true, retryInMs: 3_600_000 });
    expect(fieldsOf(long).get('x-should-retry')).toBe('false');
  });

  test('state the ceiling and the wait when they are known', () => {
    const response = refusalResponse({
      code: 'wait_expired',
      details: { retryInMs: 2_500 },
      requestId,
      known: {
        record: { waitedMs: 45_000.4, attempts: 2, absorbed: 2, held: [] },
        rateLimit: { limit: 500, windowSeconds: 60, remaining: 412, resetSeconds: 0.2 },
      },
    });
    const fields = fieldsOf(response);
    expect(fields.get('Sluice-Admission')).toBe('waited=45000, attempts=2, absorbed=2');
    expect(fields.get('RateLimit-Policy')).toBe('"workspace";q=500;w=60');
    expect(fields.get('RateLimit')).toBe('"workspace";r=412;t=1');
  });

  test('carry another status of the same code, and Allow', () => {
    const late = refusalResponse({ code: 'request_invalid', status: 408, details: {}, requestId });
    expect([late.status, JSON.parse(late.body.toString())]).toEqual([
      408,
      expect.objectContaining({ status: 408 }),
    ]);
    expect(fieldsOf(late).has('x-should-retry')).toBe(false);
    const wrong = refusalResponse({ code: 'method_not_allowed', details: {}, requestId, allow: 'GET, HEAD' });
    expect(fieldsOf(wrong).get('Allow')).toBe('GET, HEAD');
  });
});
