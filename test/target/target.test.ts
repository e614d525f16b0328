import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { Refusal } from '../../src/errors.ts';
import { decideTarget, viaPrefix } from '../../src/target/route.ts';
import { byName, upstreamSettings } from '../support/upstream-settings.ts';

const shop = upstreamSettings('shop', ['https://api.shop.example']);
const index = byName(shop);
const everybody = (): boolean => true;

const decide = (target: string) =>
  decideTarget({ form: 'proxy', rawUrl: `/proxy?target=${encodeURIComponent(target)}` }, index, everybody);

function verdict(target: string): string {
  const decision = decide(target);
  return decision instanceof Refusal ? decision.code : `allow ${decision.pathAndQuery}`;
}

describe('the target of a call, with https://api.shop.example configured,', () => {
  const allowed: readonly (readonly [string, string])[] = [
    ['https://api.shop.example/v1/orders', '/v1/orders'],
    ['https://api.shop.example:443/x', '/x'],
    ['https://api.shop.example', '/'],
    ['https://api.shop.example?x=1', '/?x=1'],
    ["https://api.shop.example/a;b?a=$&b=$'", "/a;b?a=$&b=$'"],
    ['https://api.shop.example/a%0d%0aX:1', '/a%0d%0aX:1'],
    ['HTTPS://API.Shop.Example/Case', '/Case'],
    ['https://api.shop.example//evil.example/x', '//evil.example/x'],
    ['https://api.shop.example/?', '/?'],
    ['https://api.shop.example/x?', '/x?'],
    ['https://api.shop.example/x?a=../..&b=http://10.0.0.1/@', '/x?a=../..&b=http://10.0.0.1/@'],
    ['https://api.shop.example/...', '/...'],
    ['https://api.shop.example/a%2Fb%2f..%2fc', '/a%2Fb%2f..%2fc'],
    ['https://api.shop.example/x?q={"a":[1]}', '/x?q={"a":[1]}'],
    ['https://api.shop.example/+?a+b=c%2Bd', '/+?a+b=c%2Bd'],
  ];
  test.each(allowed)('is taken from %j and sent as %j', (target, path) => {
    expect(decide(target)).toEqual({
      upstream: shop,
      host: 'api.shop.example',
      origin: 'https://api.shop.example',
      pathAndQuery: path,
    });
  });

  const invalid = `
    https://api.shop.example:/x https://api.shop.example./x https://user:pass@api.shop.example/x
    https://api.shop.example@evil.example/x https://@api.shop.example/ //api.shop.example/x api.shop.example/x
    https:api.shop.example/x https:/api.shop.example/x https:///api.shop.example/x
    https://api.shop.example/%2e%2e/admin https://api.shop.example/%2E./admin https://api.shop.example/a/../../b
    https://api.shop.example/./b https://api.shop.example/b/.. https://api.shop.example/..?x
    https://api.shop.example/#frag https://api.shop.example/x?y#frag https://api.shop.example#
    https://api%2eshop.example/ https://api.shop.example:0443/ https://api.shop.example:+443/
    https://api.shop.example:443:443/ https://api.shop.example:99999/ https://[::1/ https://
    https%3A//api.shop.example/`;
  const invisible = [
    'https://evil.example\\@api.shop.example/',
    'https://\tapi.shop.example/x',
    ' https://api.shop.example/x',
    'https://api.shop.example/x ',
    'https://api\u00AD.shop.example/',
    'https://\u0430pi.shop.example/',
    'https://api.shop.example/a\r\nX: 1',
    'https://api.shop.example/a\u0000',
    'https://api.shop.example/a\u007f',
    'https://api.shop.example/caf\u00e9',
    'https://api.shop.example/a\\..\\b',
  ];
  test.each([...invalid.trim().split(/\s+/), ...invisible])('is invalid in %j', (target) =>
    expect(verdict(target)).toBe('target_invalid'),
  );

  const forbidden = `
    http://api.shop.example/x https://api.shop.example:8443/x https://api.shop.example:80/x
    https://api.shop.example%2eevil.example/ https://api.shop.example.evil.example/ https://xapi.shop.example/
    https://shop.example/ https://evil.example/api.shop.example https://evil.example/?api.shop.example
    http://127.0.0.1/ http://127.1/ http://0x7f.1/ http://0177.0.0.1/ http://0/ http://0.0.0.0/ http://[::]/
    http://[::1]/ http://[::ffff:127.0.0.1]/ http://[::127.0.0.1]/ http://[64:ff9b::a9fe:a9fe]/ http://[fe80::1]/
    http://[fc00::1]/ http://[ff02::1]/ http://169.254.169.254/latest/meta-data/ http://[fd00:ec2::254]/
    http://169.254.170.2/ http://localhost/ http://foo.localhost/ http://10.0.0.1/ http://100.64.0.1/
    http://198.18.0.1/ wss://api.shop.example/ file:///etc/passwd javascript:alert(1) https://a_b.shop.example/
    https://sluice.example/proxy`;
  const long = `https://${'a'.repeat(64)}.shop.example/`;
  test.each([...forbidden.trim().split(/\s+/), long])('is forbidden in %j', (target) =>
    expect(verdict(target)).toBe('target_forbidden'),
  );

  test('may have 8 KiB and not one byte more', () => {
    const prefix = 'https://api.shop.example/';
    expect(verdict(prefix + 'a'.repeat(8192 - prefix.length))).toMatch(/^allow/);
    expect(verdict(prefix + 'a'.repeat(8193 - prefix.length))).toBe('target_too_long');
  });
});

describe('the query that carries the target', () => {
  const code = (rawUrl: string): string => {
    const decision = decideTarget({ form: 'proxy', rawUrl }, index, everybody);
    return decision instanceof Refusal ? decision.code : decision.pathAndQuery;
  };
  test.each([
    ['/proxy', 'target_missing'],
    ['/proxy?', 'target_missing'],
    ['/proxy?target', 'target_missing'],
    ['/proxy?target=', 'target_missing'],
    ['/proxy?url=https%3A%2F%2Fapi.shop.example', 'target_missing'],
    ['/proxy?Target=https%3A%2F%2Fapi.shop.example', 'target_missing'],
    ['/proxy?target=https://api.shop.example/x&b=2', 'target_invalid'],
    ['/proxy?a=1&target=https://api.shop.example/x', 'target_invalid'],
    ['/proxy?target=https://api.shop.example/x&target=https://api.shop.example/y', 'target_invalid'],
    ['/proxy?target=https://api.shop.example/x&', 'target_invalid'],
    ['/proxy?target=https%3A%2F%2Fapi.shop.example%2Fx%', 'target_invalid'],
    ['/proxy?target=https%3A%2F%2Fapi.shop.example%2F%ff', 'target_invalid'],
    ['/proxy?target=https%3A%2F%2Fapi.shop.example%2F%ED%A0%80', 'target_invalid'],
    ['/proxy?target=https%253A%252F%252Fapi.shop.example%252Fx', 'target_invalid'],
    ['/proxy?target=https://api.shop.example/x?y=1', '/x?y=1'],
    ['/proxy?target=https%3A%2F%2Fapi.shop.example%2Fx%3Fa%3D1%26b%3D2', '/x?a=1&b=2'],
    ['/proxy?target=https%3A%2F%2Fapi.shop.example%2Fa+b%2Bc%2520d', '/a+b+c%20d'],
  ])('is read from %j as %s', (rawUrl, expected) => expect(code(rawUrl)).toBe(expected));
});

describe('the decision about a target', () => {
  const piece = fc.constantFrom(
    'a', 'Z', '/', '//', '.', '..', '%2e', '%2f', '%252e', '?', '&', '=', '+', "'", '"', '$&', '$1', ';', ':', '@',
    '[', ']', '{', '|', '~', '#', '\\', ' ', '\t', '\r\n', '\u0000', '\u00e9', '\u2025', '\ud800', '%', '%zz', '*',
  ); // prettier-ignore
  const tail = fc.array(piece, { maxLength: 12 }).map((pieces) => pieces.join(''));

  test('passes what follows the host byte for byte, or refuses the call', () => {
    const seen = { allowed: 0, refused: 0 };
    fc.assert(
      fc.property(tail, (text) => {
        let encoded: string;
        try {
          encoded = encodeURIComponent(`https://api.shop.example/${text}`);
        } catch {
          return; // a lone surrogate has no encoding, so no client can send it this way
        }
        const rawUrl = `/proxy?target=${encoded}`;
        const decision = decideTarget({ form: 'proxy', rawUrl }, index, everybody);
        if (decision instanceof Refusal) {
          seen.refused++;
          return;
        }
        seen.allowed++;
        expect(decision.pathAndQuery).toBe(`/${text}`);
        expect(decision.pathAndQuery).toMatch(/^\/[\x21-\x7e]*$/);
        expect(decision.pathAndQuery).not.toContain('#');
      }),
      { numRuns: 3000 },
    );
    expect(seen.allowed).toBeGreaterThan(100);
    expect(seen.refused).toBeGreaterThan(100);
  });

  test('reaches no other host than the configured one, whatever changes in the URL', () => {
    const base = 'https://api.shop.example/v1'.split('');
    const mutation = fc.tuple(
      fc.nat(base.length),
      fc.nat(2),
      fc.constantFrom('.', '@', ':', '/', '\\', '%2e', '%00', '\t', 'x', '\u3002', '#', '?', '[', ']', '0', ' ', '443', 'evil.example'),
    ); // prettier-ignore
    fc.assert(
      fc.property(fc.array(mutation, { minLength: 1, maxLength: 3 }), (mutations) => {
        const letters = [...base];
        for (const [at, remove, insert] of mutations) letters.splice(at, remove, insert);
        const text = letters.join('');
        const decision = decide(text);
        if (decision instanceof Refusal) return;
        expect(decision.origin).toBe('https://api.shop.example');
        expect(new URL(text).origin).toBe('https://api.shop.example');
        expect(text.toLowerCase()).toMatch(/^https:\/\/api\.shop\.example(?::443)?(?:[/?]|$)/);
      }),
      { numRuns: 5000 },
    );
  });

  test('never throws, whatever the string', () => {
    const texts = fc.string({ unit: 'binary', maxLength: 60 });
    fc.assert(
      fc.property(texts, fc.constantFrom('proxy', 'via'), (text, form) => {
        for (const rawUrl of [text, `/proxy?target=${text}`, `/via/shop${text}`, `/via/${text}`])
          decideTarget({ form, rawUrl }, index, everybody);
      }),
      { numRuns: 2000 },
    );
  });
});

describe('the upstream of a target', () => {
  const stores = upstreamSettings('stores', ['https://*.shop.example']);
  const local = upstreamSettings('local', ['http://127.0.0.1:9000', 'http://[::1]:9001'], {
    allowPrivateAddresses: true,
  });
  const plain = upstreamSettings('plain', ['http://plain.example']);
  const one = upstreamSettings('one', ['https://twin.example']);
  const two = upstreamSettings('two', ['https://twin.example']);
  const all = byName(stores, shop, local, plain, one, two);
  const find = (target: string, allowed: (upstream: { name: string }) => boolean = everybody): string => {
    const rawUrl = `/proxy?target=${encodeURIComponent(target)}`;
    const decision = decideTarget({ form: 'proxy', rawUrl }, all, allowed);
    return decision instanceof Refusal ? decision.code : `${decision.upstream.name} ${decision.origin}`;
  };
  test.each([
    ['https://api.shop.example/x', 'shop https://api.shop.example'],
    ['https://acme.shop.example/x', 'stores https://acme.shop.example'],
    ['https://a.b.shop.example/', 'target_forbidden'],
    ['https://shop.example/', 'target_forbidden'],
    ['https://.shop.example/', 'target_forbidden'],
    ['https://a-.shop.example/', 'target_forbidden'],
    ['https://a_b.shop.example/', 'target_forbidden'],
    ['https://acme.shop.example:8443/', 'target_forbidden'],
    ['http://acme.shop.example/', 'target_forbidden'],
    ['http://127.0.0.1:9000/', 'local http://127.0.0.1:9000'],
    ['http://127.1:9000/', 'target_invalid'],
    ['http://2130706433:9000/', 'target_invalid'],
    ['http://[::1]:9001/', 'local http://[::1]:9001'],
    ['http://[0::1]:9001/', 'target_invalid'],
    ['http://127.0.0.1/', 'target_forbidden'],
    ['http://plain.example/', 'target_forbidden'],
  ])('is, for %s, %s', (target, expected) => expect(find(target)).toBe(expected));
  test('is never one whose wildcard would match an address', () => {
    const odd = byName(upstreamSettings('odd', ['https://*.0.0.1']));
    const rawUrl = '/proxy?target=https%3A%2F%2F127.0.0.1%2F';
    expect(decideTarget({ form: 'proxy', rawUrl }, odd, everybody)).toBeInstanceOf(Refusal);
  });
  test('is not one with a wildcard when the exact entry is forbidden to the workspace', () =>
    expect(find('https://api.shop.example/', ({ name }) => name === 'stores')).toBe('target_forbidden'));
  test('is, among equal entries, one that the workspace may use', () => {
    expect(find('https://twin.example/', ({ name }) => name === 'two')).toBe('two https://twin.example');
    expect(find('https://twin.example/', () => false)).toBe('target_forbidden');
  });
});

describe('a /via/ path', () => {
  const stores = upstreamSettings('stores', ['https://*.shop.example']);
  const ofMixed = ['https://a.example', 'https://b.example:8443', 'https://*.c.example:8443'];
  const mixed = upstreamSettings('mixed', ofMixed);
  const all = byName(shop, stores, mixed);
  const via = (rawUrl: string, allowed: (upstream: { name: string }) => boolean = everybody): string => {
    const decision = decideTarget({ form: 'via', rawUrl }, all, allowed);
    return decision instanceof Refusal
      ? decision.code
      : `${decision.upstream.name} ${decision.origin} ${decision.pathAndQuery}`;
  };
  test.each([
    ['/via/shop/v1/chat?x=1', 'shop https://api.shop.example /v1/chat?x=1'],
    ['/via/shop', 'shop https://api.shop.example /'],
    ['/via/shop/', 'shop https://api.shop.example /'],
    ['/via/shop?x=1', 'shop https://api.shop.example /?x=1'],
    ["/via/shop/a'b+c%2f?$&=", "shop https://api.shop.example /a'b+c%2f?$&="],
    ['/via/shop//evil.example/x', 'shop https://api.shop.example //evil.example/x'],
    ['/via/shop/%2e%2e/x', 'target_invalid'],
    ['/via/shop/../x', 'target_invalid'],
    ['/via/shop/a\\b', 'target_invalid'],
    ['/via/shop/a b', 'target_invalid'],
    ['/via/shop/a#b', 'target_invalid'],
    ['/via/shop@evil.example/x', 'target_forbidden'],
    ['/via/shop:8443/x', 'target_forbidden'],
    ['/via/nobody/x', 'target_forbidden'],
    ['/via/__proto__/x', 'target_forbidden'],
    ['/via/', 'target_missing'],
    ['/via', 'target_missing'],
    ['/via//x', 'target_missing'],
    ['/via/stores/acme.shop.example/admin/x.json?y', 'stores https://acme.shop.example /admin/x.json?y'],
    ['/via/stores/ACME.shop.example/X', 'stores https://acme.shop.example /X'],
    ['/via/stores/acme.shop.example', 'stores https://acme.shop.example /'],
    ['/via/stores/acme.shop.example?y', 'stores https://acme.shop.example /?y'],
    ['/via/stores/acme.shop.example:443/y', 'stores https://acme.shop.example /y'],
    ['/via/stores/acme.shop.example:8443/y', 'target_forbidden'],
    ['/via/stores/api.shop.example/y', 'target_forbidden'],
    ['/via/stores/evil.example/y', 'target_forbidden'],
    ['/via/stores/evil.example%2f.shop.example/y', 'target_invalid'],
    ['/via/stores/user@acme.shop.example/y', 'target_invalid'],
    ['/via/stores/acme.shop.example./y', 'target_invalid'],
    ['/via/stores/../y', 'target_invalid'],
    ['/via/stores/', 'target_missing'],
    ['/via/stores', 'target_missing'],
    ['/via/stores//acme.shop.example/', 'target_missing'],
    ['/via/mixed/a.example/x', 'mixed https://a.example /x'],
    ['/via/mixed/b.example/x', 'mixed https://b.example:8443 /x'],
    ['/via/mixed/b.example:8443/x', 'mixed https://b.example:8443 /x'],
    ['/via/mixed/s.c.example/x', 'mixed https://s.c.example:8443 /x'],
    ['/via/mixed/x.example/x', 'target_forbidden'],
  ])('is resolved: %s leads to %s', (rawUrl, expected) => expect(via(rawUrl)).toBe(expected));
  test('to an upstream that the workspace may not use is refused like one to an unknown upstream', () =>
    expect(via('/via/shop/x', () => false)).toBe('target_forbidden'));
  test('of more than 8 KiB is too long', () =>
    expect(via(`/via/shop/${'a'.repeat(9000)}`)).toBe('target_too_long'));
  test('passes what follows the upstream byte for byte, or is refused', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary-ascii', maxLength: 30 }), (text) => {
        const decision = decideTarget({ form: 'via', rawUrl: `/via/shop/${text}` }, all, everybody);
        if (!(decision instanceof Refusal)) expect(decision.pathAndQuery).toBe(`/${text}`);
      }),
      { numRuns: 2000 },
    );
  });
  test.each([
    [shop, 'https://api.shop.example/a', '/via/shop'],
    [shop, 'https://evil.example/a', null],
    [shop, 'mailto:x@api.shop.example', null],
    [shop, 'http://api.shop.example/a', '/via/shop'],
    [shop, 'http://api.shop.example:8080/a', null],
    [stores, 'https://acme.shop.example/a', '/via/stores/acme.shop.example'],
    [stores, 'http://acme.shop.example/a', '/via/stores/acme.shop.example'],
    [stores, 'https://api.shop.example/a', null],
    [mixed, 'https://b.example:8443/a', '/via/mixed/b.example:8443'],
    [mixed, 'http://b.example:8443/a', '/via/mixed/b.example:8443'],
    [mixed, 'http://b.example/a', '/via/mixed/b.example:8443'],
    [mixed, 'http://b.example:81/a', null],
  ])('of an origin leads back to its upstream (sample %#)', (upstream, url, expected) => {
    const prefix = viaPrefix(all, upstream, new URL(url));
    expect(prefix).toBe(expected);
    const leadsTo = new RegExp(`^${upstream.name} https://${new URL(url).hostname}(:8443)? /a$`);
    if (prefix !== null) expect(via(`${prefix}/a`)).toMatch(leadsTo);
  });
});
