/** Which heads the guard refuses by itself, whatever the parser in front of it lets through. */
import { describe, expect, test } from '@jest/globals';
import { judgeHead, type RequestHead } from '../../src/ingress/guard.policy.ts';

const host = ['Host', 'sluice.test'];
function statusOf(changes: Partial<RequestHead>): number | null {
  const head = { method: 'GET', url: '/proxy?target=x', httpVersion: '1.1', rawHeaders: host, ...changes };
  return judgeHead(head, new Set(['x-api-key']))?.status ?? null;
}
const fields = (...lines: string[]): Partial<RequestHead> => ({ rawHeaders: [...host, ...lines] });

describe('the request guard', () => {
  test.each([
    ['a plain request', {}],
    ['HTTP/1.0 without Host', { httpVersion: '1.0', rawHeaders: [] }],
    ['an expectation of HTTP/1.0, which has none', { ...fields('Expect', 'x'), httpVersion: '1.0' }],
    ['a chunked body', fields('Transfer-Encoding', 'Chunked')],
    ['the expectation that is understood', fields('Expect', '100-Continue')],
    ['an offer of h2c', fields('Connection', 'Upgrade, HTTP2-Settings', 'Upgrade', 'h2c')],
    ['one injected field', fields('X-Api-Key', 'a')],
    ['a field twice that may be', fields('Accept', 'a', 'Accept', 'b')],
    ['an address as Host', { rawHeaders: ['Host', '[::1]:8080'] }],
  ])('lets %s pass', (_what, head) => {
    expect(statusOf(head)).toBeNull();
  });

  // What the parser lets through as well is sent to it in `test/wire/client-framing.test.ts`.
  test.each([
    ['HTTP/0.9', { httpVersion: '0.9', rawHeaders: [] }, 400],
    ['a blank in the target', { url: '/a b' }, 400],
    ['no Host', { rawHeaders: [] }, 400],
    ['two Content-Length fields', fields('Content-Length', '1', 'content-length', '1'), 400],
    ['two codings', fields('Transfer-Encoding', 'chunked', 'transfer-encoding', 'chunked'), 400],
    ...['Host', 'Authorization', 'Sluice-Key', 'Sluice-Upstream-Authorization', 'X-Api-Key'].map(
      (name) => [`${name} twice`, fields(name, 'a', name.toLowerCase(), 'a'), 400] as const,
    ),
  ])('refuses %s', (_what, head, status) => {
    expect(statusOf(head)).toBe(status);
  });
});
