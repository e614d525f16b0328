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

  test.each([
    ['HTTP/2.0', { httpVersion: '2.0' }, 400],
    ['HTTP/0.9', { httpVersion: '0.9', rawHeaders: [] }, 400],
    ['TRACE', { method: 'TRACE' }, 405],
    ['CONNECT', { method: 'CONNECT' }, 405],
    ['an absolute target', { url: 'http://a/' }, 400],
    ['the asterisk', { method: 'OPTIONS', url: '*' }, 400],
    ['a fragment', { url: '/a#b' }, 400],
    ['a blank in the target', { url: '/a b' }, 400],
    ['no Host', { rawHeaders: [] }, 400],
    ['a Host with a path', { rawHeaders: ['Host', 'a/b'] }, 400],
    ['a Host with user information', { rawHeaders: ['Host', 'u@a'] }, 400],
    ['two Host fields', fields('hOST', 'sluice.test'), 400],
    ['two Authorization fields', fields('Authorization', 'a', 'authorization', 'a'), 400],
    ['two Content-Length fields', fields('Content-Length', '1', 'content-length', '1'), 400],
    [
      'two Transfer-Encoding fields',
      fields('Transfer-Encoding', 'chunked', 'transfer-encoding', 'chunked'),
      400,
    ],
    ['two Sluice-Key fields', fields('Sluice-Key', 'a', 'sluice-key', 'b'), 400],
    [
      'two Sluice-Upstream-Authorization fields',
      fields('Sluice-Upstream-Authorization', 'a', 'sluice-upstream-authorization', 'b'),
      400,
    ],
    ['two injected fields', fields('X-Api-Key', 'a', 'x-api-key', 'b'), 400],
    ['another coding before chunked', fields('Transfer-Encoding', 'gzip, chunked'), 400],
    ['a coding in HTTP/1.0', { ...fields('Transfer-Encoding', 'chunked'), httpVersion: '1.0' }, 400],
    ['a Connection option that names a field', fields('Connection', 'close, Authorization'), 400],
    ['another protocol', fields('Upgrade', 'h2c, websocket'), 426],
    ['an unknown expectation', fields('Expect', '100-continue, x'), 417],
  ])('refuses %s', (_what, head, status) => {
    expect(statusOf(head)).toBe(status);
  });
});
