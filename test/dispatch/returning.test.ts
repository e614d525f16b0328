import { describe, expect, test } from '@jest/globals';
import { returningFields, type ReturningInput } from '../../src/dispatch/fields.policy.ts';

const keyFields = ['authorization', 'sluice-key'];
const everything = (rawFields: readonly string[], changes: Partial<ReturningInput> = {}): string[] =>
  returningFields({
    rawFields,
    status: 200,
    addsRateLimit: true,
    keyFields,
    cookies: { kind: 'unchanged' },
    links: { target: 'https://acme.shop.example/orders/1?a=b', baseFor: null },
    ...changes,
  });

/** The fields without what caches are told, which is the same for all responses without such fields. */
const returning = (rawFields: readonly string[], changes: Partial<ReturningInput> = {}): string[] => {
  const fields = everything(rawFields, changes);
  const at = fields.indexOf('Cache-Control');
  expect(fields.slice(at, at + 4)).toEqual(['Cache-Control', 'private', 'Vary', 'authorization, sluice-key']);
  return fields.toSpliced(at, 4);
};

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
    'Transfer-Encoding', 'Upgrade', 'Sluice-Error', 'Sluice_Error', 'SLUICE-Admission', 'Alt-Svc', 'RateLimit', 'RateLimit-Policy',
  ])('never include %s', (name) => {
    expect(returning([name, 'x', 'A', 'b'])).toEqual(['A', 'b']);
  }); // prettier-ignore
  test('keep the upstream’s RateLimit when Sluice adds none', () => {
    const rawFields = ['RateLimit', 'x', 'RateLimit-Policy', 'y'];
    expect(returning(rawFields, { addsRateLimit: false })).toEqual(rawFields);
  });
  test.each<[string, string, string, number?]>([
    ['lose what Connection names', 'Connection close,X-Hop x-hop 1 connection ,Other, OTHER 2 A b', 'A b'],
    [
      'keep framing and description although Connection names them',
      'Connection content-length,content-type,content-encoding Content-Length 3 Content-Type a/b Content-Encoding gzip',
      'Content-Length 3 Content-Type a/b Content-Encoding gzip',
    ],
    ['carry no length on 204', 'Content-Length 3 A b', 'A b', 204],
    ['carry length 0 on 205', 'Content-Length 3 A b', 'A b content-length 0', 205],
    ['carry the length of what 304 does not send', 'Content-Length 3', 'Content-Length 3', 304],
  ])('%s: %s', (_, rawFields, expected, status = 200) => {
    expect(returning(rawFields.split(' '), { status })).toEqual(expected.split(' '));
  });
});

describe('fields that act beyond their response', () => {
  const withheld = [
    'X-Accel-Redirect', 'X-Accel-Expires', 'X-Accel-Limit-Rate', 'X-Accel-Buffering', 'X-Accel-Charset', 'X-Sendfile', 'X-SendFile-Type',
    'X-Send-File', 'X-Lighttpd-Send-File', 'X-LIGHTTPD-send-tempfile', 'X-LiteSpeed-Location', 'X-LiteSpeed-Cache-Control', 'X-LSADC-Cache-Control',
    'X-Reproxy-URL', 'X-Reproxy-File', 'X-Proxy-Cache-Control', 'X-Proxy-Pass', 'X-Envoy-Immediate-Health-Check-Fail', 'X-Envoy-Upstream-Service-Time',
    'X-AppEngine-BlobKey', 'X-Middleware-Rewrite', 'l5d-retryable', 'X-Forwarded-Host', 'X-Forwarded-Proto', 'Forwarded',
    'Surrogate-Control', 'Surrogate-Key', 'CDN-Cache-Control', 'Cloudflare-CDN-Cache-Control', 'Vercel-CDN-Cache-Control', 'Netlify-Vary',
    'Fastly-Debug-Path', 'Edge-Control', 'Edge-Cache-Tag', 'Cache-Tag', 'xkey',
    'Alt-Svc', 'Strict-Transport-Security', 'Public-Key-Pins', 'Expect-CT', 'Clear-Site-Data', 'NEL', 'Report-To', 'Reporting-Endpoints',
    'Service-Worker-Allowed', 'Accept-CH', 'Critical-CH', 'Origin-Agent-Cluster', 'Set-Login', 'Use-As-Dictionary', 'No-Vary-Search',
    'Sec-Session-Registration', 'Secure-Session-Registration', 'Set-Cookie2',
  ]; // prettier-ignore

  test.each(withheld)('are withheld, whatever their spelling: %s', (name) => {
    for (const spelling of [name, name.toLowerCase(), name.toUpperCase(), name.replaceAll('-', '_')]) {
      expect(returning([spelling, 'canary', 'A', 'b', spelling, 'canary'])).toEqual(['A', 'b']);
    }
  });

  test.each([
    'X-RateLimit-Limit', 'X-Request-Id', 'CF-Ray', 'X-Cache', 'X-Served-By', 'X-Vercel-Id', 'X-Amz-Cf-Id', 'ETag', 'Age', 'Expires', 'Pragma',
    'Last-Modified', 'Server-Timing', 'Content-Security-Policy', 'Access-Control-Allow-Origin', 'X-Shopify-Shop-Api-Call-Limit',
    'HTTP_X_SHOPIFY_SHOP_API_CALL_LIMIT', 'OpenAI-Processing-Ms', 'Anthropic-RateLimit-Requests-Remaining', 'WWW-Authenticate', 'X-Acceleration',
    'X-Surrogate-Key-Of-Mine', 'Reported-To', 'x-ms-client-request-id',
  ])('are no others: %s passes', (name) => {
    expect(returning([name, 'x'])).toEqual([name, 'x']);
  }); // prettier-ignore
});

describe('what caches are told', () => {
  const told = (lines: readonly (readonly [string, string])[], name: string): string[] => {
    const fields = everything(lines.flat());
    return fields.filter((_, at) => at % 2 === 1 && fields[at - 1]?.toLowerCase() === name);
  };

  test.each([
    [[], 'private'],
    [[''], 'private'],
    [['public'], 'private'],
    [['PUBLIC, Max-Age=3600'], 'private, Max-Age=3600'],
    [['public, max-age=3600'], 'private, max-age=3600'],
    [['max-age=3600'], 'private, max-age=3600'],
    [['max-age=30, s-maxage=600'], 'private, max-age=30'],
    [['s-maxage=600'], 'private'],
    [['S-MaxAge="600"'], 'private'],
    [['s-maxage = 600 , public'], 'private'],
    [['must-revalidate, max-age=0'], 'private, must-revalidate, max-age=0'],
    [['no-cache'], 'private, no-cache'],
    [['no-store'], 'no-store'],
    [['no-store, public, s-maxage=1'], 'no-store'],
    [['must-understand, no-store'], 'private, must-understand, no-store'],
    [['max-age=0, private, must-revalidate'], 'max-age=0, private, must-revalidate'],
    [['private="x-a", max-age=60'], 'private, max-age=60'],
    [['private, public'], 'private'],
    [['no-cache="set-cookie, x", public'], 'private, no-cache="set-cookie, x"'],
    [['max-age=60', 'public'], 'private, max-age=60'],
    [['public', 's-maxage=1', 'immutable'], 'private, immutable'],
    [['x="public, max-age=60'], 'private, x="public, max-age=60'],
    [['x="private, no-store'], 'private, x="private, no-store'],
    [['x="\\", public, s-maxage=9'], 'private, x="\\"'],
  ])('is, for Cache-Control %j, %j', (lines, expected) => {
    expect(told(lines.map((line) => ['cache-Control', line] as const), 'cache-control')).toEqual([expected]);
  });

  test.each([
    [[], 'authorization, sluice-key'],
    [['Accept-Encoding'], 'Accept-Encoding, authorization, sluice-key'],
    [['Origin, AUTHORIZATION'], 'Origin, AUTHORIZATION, authorization, sluice-key'],
    [['Accept', 'Origin'], 'Accept, Origin, authorization, sluice-key'],
    [['Accept, *'], 'Accept, *, authorization, sluice-key'],
  ])('names the fields of the API key: Vary %j becomes %j', (lines, expected) => {
    expect(told(lines.map((line) => ['VARY', line] as const), 'vary')).toEqual([expected]);
  });

  test('is private also where the response names only Expires, or its Connection field names Cache-Control', () => {
    expect(told([['Expires', 'Fri, 01 Jan 2100 00:00:00 GMT']], 'cache-control')).toEqual(['private']);
    const hidden = [['Connection', 'cache-control'], ['Cache-Control', 'public']] as const;
    expect(told(hidden, 'cache-control')).toEqual(['private']);
  });
}); // prettier-ignore

describe('URLs in responses to /via/ calls', () => {
  const via: ReturningInput['links'] = {
    target: 'https://acme.shop.example/a?b',
    baseFor: (url) =>
      url.protocol === 'https:' && url.host.endsWith('.shop.example') ? `https://gate.example/via/shop/${url.host}` : null,
  };
  const value = (name: string, text: string): string | undefined => everything([name, text], { links: via })[1];
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
  test.each(['X-Goog-Upload-URL', 'Operation-Location', 'Azure-AsyncOperation', 'x-next'])('are rewritten in %s', (name) => {
    expect(value(name, 'https://acme.shop.example/up?id=1')).toBe('https://gate.example/via/shop/acme.shop.example/up?id=1');
    expect(value(name, 'https://cdn.example/up')).toBe('https://cdn.example/up');
    expect(value(name, '/up')).toBe('/up');
    expect(value(name, 'see https://acme.shop.example/')).toBe('see https://acme.shop.example/');
  });
  test('stay as they are where they say which pages may read the response', () => {
    expect(value('Access-Control-Allow-Origin', 'https://acme.shop.example')).toBe('https://acme.shop.example');
  });
}); // prettier-ignore

test.each([
  ['/orders/2', 'https://acme.shop.example/orders/2'],
  ['../carts?x=1#y', 'https://acme.shop.example/carts?x=1#y'],
  ['?page=2', 'https://acme.shop.example/orders/1?page=2'],
  ['https://acme.shop.example/a%2fb', 'https://acme.shop.example/a%2fb'],
  ['https://cdn.example/x', 'https://cdn.example/x'],
  ['https://[broken/', 'https://[broken/'],
])('a Location %j in the response to a /proxy call leads the client to %j', (text, expected) => {
  expect(returning(['Location', text])).toEqual(['Location', expected]);
});
