import { describe, expect, test } from '@jest/globals';
import { returningFields } from '../../src/dispatch/returning.policy.ts';
import type { ReturningInput, ViaRewrite } from '../../src/dispatch/returning.policy.ts';

const returning = (rawFields: readonly string[], changes: Partial<ReturningInput> = {}): string[] =>
  returningFields({ rawFields, status: 200, addsRateLimit: true, via: null, ...changes });

describe('fields returned to the client', () => {
  test('keep the upstream’s spelling, order and repeats', () => {
    const rawFields = [
      'Set-Cookie', 'a=1', 'X-RateLimit-Remaining-Tokens', '7', 'set-cookie', 'b=2', 'X-Request-Id', 'r', 'Date', 'now',
      'Retry-After', '5', 'Content-Length', '3', 'X-Shopify-Shop-Api-Call-Limit', '1/40', 'X-Empty', '',
    ]; // prettier-ignore
    expect(returning(rawFields)).toEqual(rawFields);
  });
  test.each([
    'Connection', 'Keep-Alive', 'Proxy-Authenticate', 'Proxy-Connection', 'Proxy-Authentication-Info', 'TE', 'Trailer',
    'Transfer-Encoding', 'Upgrade', 'Sluice-Error', 'SLUICE-Admission', 'Alt-Svc', 'RateLimit', 'RateLimit-Policy',
  ])('never include %s', (name) => {
    expect(returning([name, 'x', 'A', 'b'])).toEqual(['A', 'b']);
  }); // prettier-ignore
  test('keep the upstream’s RateLimit when Sluice adds none', () => {
    const rawFields = ['RateLimit', 'x', 'RateLimit-Policy', 'y'];
    expect(returning(rawFields, { addsRateLimit: false })).toEqual(rawFields);
  });
  test('lose the fields that the response’s Connection names', () => {
    const rawFields = [
      'Connection',
      'close, X-Hop',
      'x-hop',
      '1',
      'connection',
      ' Other ',
      'OTHER',
      '2',
      'A',
      'b',
    ];
    expect(returning(rawFields)).toEqual(['A', 'b']);
  });
  test('keep framing and content description although Connection names them', () => {
    const rest = ['Content-Length', '3', 'Content-Type', 'text/plain', 'Content-Encoding', 'gzip'];
    expect(
      returning(['Connection', 'content-length, content-type, content-encoding, transfer-encoding', ...rest]),
    ).toEqual(rest);
  });
  test('carry no length on 204 and length 0 on 205', () => {
    expect(returning(['Content-Length', '3', 'A', 'b'], { status: 204 })).toEqual(['A', 'b']);
    expect(returning(['Content-Length', '3', 'A', 'b'], { status: 205 })).toEqual([
      'A',
      'b',
      'content-length',
      '0',
    ]);
    expect(returning(['Content-Length', '3'], { status: 304 })).toEqual(['Content-Length', '3']);
  });
});

describe('URLs in responses to /via/ calls', () => {
  const via: ViaRewrite = {
    origin: 'https://acme.shop.example',
    baseFor: (url) =>
      url.protocol === 'https:' && url.host.endsWith('.shop.example') ? `https://gate.example/via/shop/${url.host}` : null,
  };
  const value = (name: string, text: string): string | undefined => returning([name, text], { via })[1];
  test.each([
    ['https://acme.shop.example/a?b=c%2f#d', 'https://gate.example/via/shop/acme.shop.example/a?b=c%2f#d'],
    ['https://other.shop.example/a', 'https://gate.example/via/shop/other.shop.example/a'],
    ['HTTPS://ACME.shop.example:443/A', 'https://gate.example/via/shop/acme.shop.example/A'],
    ['https://acme.shop.example', 'https://gate.example/via/shop/acme.shop.example'],
    ['//acme.shop.example/a', 'https://gate.example/via/shop/acme.shop.example/a'],
    ['/a/b?c', 'https://gate.example/via/shop/acme.shop.example/a/b?c'],
    ['next/page', 'next/page'],
    ['?page=2', '?page=2'],
    ['https://evil.example/https://acme.shop.example/', 'https://evil.example/https://acme.shop.example/'],
    ['https://acme.shop.example.evil.example/', 'https://acme.shop.example.evil.example/'],
    ['http://acme.shop.example/', 'http://acme.shop.example/'],
    ['https://[broken/', 'https://[broken/'],
    ['', ''],
  ])('are rewritten: Location %j becomes %j', (text, expected) => {
    expect(value('Location', text)).toBe(expected);
  });
  test('are rewritten in Link, except for its parameters and foreign targets', () => {
    const text = '<https://acme.shop.example/p?page_info=a>; rel="previous", <https://cdn.example/x>; rel="icon", </p?b>; rel="next"';
    expect(value('link', text)).toBe(
      '<https://gate.example/via/shop/acme.shop.example/p?page_info=a>; rel="previous", <https://cdn.example/x>; rel="icon", <https://gate.example/via/shop/acme.shop.example/p?b>; rel="next"',
    );
  });
  test('stay as they are in other fields and for other call forms', () => {
    expect(value('X-Link', 'https://acme.shop.example/')).toBe('https://acme.shop.example/');
    expect(returning(['Location', 'https://acme.shop.example/'])).toEqual(['Location', 'https://acme.shop.example/']);
  });
}); // prettier-ignore
