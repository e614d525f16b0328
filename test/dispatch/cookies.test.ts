import { describe, expect, test } from '@jest/globals';
import { cookieScope, returnedCookie, type CookieScope } from '../../src/dispatch/response-fields.policy.ts';

const under = (prefix: string, path: string): CookieScope => ({ kind: 'under', prefix, path });

describe('a cookie that is set on /via', () => {
  const scope = under('/via/erp', '/b1s/v1/Login');

  test.each([
    [
      'B1SESSION=x; HttpOnly; SameSite=None; Path=/b1s/v1',
      'B1SESSION=x; HttpOnly; SameSite=None; Path=/via/erp/b1s/v1',
    ],
    ['sid=x; Path=/', 'sid=x; Path=/via/erp/'],
    ['sid=x;path=/', 'sid=x; Path=/via/erp/'],
    ['sid=x; PATH = /a ; Secure', 'sid=x; Secure; Path=/via/erp/a'],
    ['sid=x; Path="/"', 'sid=x; Path=/via/erp/'],
    ['sid=x; Path=/a; Path=/', 'sid=x; Path=/via/erp/'],
    ['sid=x; Path=/; Path=/a', 'sid=x; Path=/via/erp/a'],
    ['sid=x; Path=/; Domain=erp.example', 'sid=x; Path=/via/erp/'],
    ['sid=x; domain=.gateway.example; DOMAIN=gateway.example', 'sid=x; Path=/via/erp/b1s/v1'],
    ['sid=x', 'sid=x; Path=/via/erp/b1s/v1'],
    ['sid=x; Path', 'sid=x; Path=/via/erp/b1s/v1'],
    ['sid=x; Path=', 'sid=x; Path=/via/erp/b1s/v1'],
    ['sid=x; Path=relative', 'sid=x; Path=/via/erp/b1s/v1'],
    ['sid=x; Path=../', 'sid=x; Path=/via/erp/b1s/v1'],
    [
      'sid=a=b; Max-Age=5; Expires=Fri, 01 Jan 2100 00:00:00 GMT',
      'sid=a=b; Max-Age=5; Expires=Fri, 01 Jan 2100 00:00:00 GMT; Path=/via/erp/b1s/v1',
    ],
    ['__Secure-sid=x; Secure; Path=/', '__Secure-sid=x; Secure; Path=/via/erp/'],
    ['__Host-sid=x; Secure; Path=/', '__Host-sid=x; Secure; Path=/via/erp/'],
    ['sid=x; Secure; Partitioned;; ', 'sid=x; Secure; Partitioned; Path=/via/erp/b1s/v1'],
    ['', '; Path=/via/erp/b1s/v1'],
  ])('%j reaches the client as %j', (value, expected) => {
    expect(returnedCookie(value, scope)).toBe(expected);
  });

  test.each([
    ['/Login', '/via/erp/'],
    ['/', '/via/erp/'],
    ['/a/', '/via/erp/a'],
    ['/a/b', '/via/erp/a'],
  ])('without a path has that of the call up to its last slash: %s has %s', (path, expected) => {
    expect(returnedCookie('sid=x', under('/via/erp', path))).toBe(`sid=x; Path=${expected}`);
  });

  test.each([
    ['/via/erp/b1s/v1/Login', '/b1s/v1/Login', '/via/erp', '/b1s/v1/Login'],
    ['/via/erp/b1s?a=/b1s', '/b1s?a=/b1s', '/via/erp', '/b1s'],
    ['/via/shop/acme.example/admin/', '/admin/', '/via/shop/acme.example', '/admin/'],
    ['/via/shop/ACME.example:8443/admin', '/admin', '/via/shop/ACME.example:8443', '/admin'],
    ['/via/shop/acme.example', '/', '/via/shop/acme.example', '/'],
    ['/via/shop/acme.example?x=1', '/?x=1', '/via/shop/acme.example', '/'],
    ['/via/erp//a', '//a', '/via/erp', '//a'],
  ])('belongs to the client’s own spelling of the upstream: %s', (rawUrl, pathAndQuery, prefix, path) => {
    expect(cookieScope({ form: 'via', rawUrl }, pathAndQuery, 'scoped')).toEqual(under(prefix, path));
    expect(cookieScope({ form: 'via', rawUrl }, pathAndQuery, 'pass')).toEqual(under(prefix, path));
  });
});

test('a cookie that is set on /proxy reaches the client where the configuration says so, and then unchanged', () => {
  const rawUrl = '/proxy?target=https%3A%2F%2Ferp.example%2Fa';
  const value = 'sid=x; Path=/; Domain=erp.example';
  expect(returnedCookie(value, cookieScope({ form: 'proxy', rawUrl }, '/a', 'scoped'))).toBeNull();
  expect(returnedCookie(value, cookieScope({ form: 'proxy', rawUrl }, '/a', 'pass'))).toBe(value);
});
