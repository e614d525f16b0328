/** Where an API key is found in a request, whose it is, and which fields may therefore not be sent upstream. */
import { describe, expect, test } from '@jest/globals';
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import {
  authenticate,
  injectedFields,
  unauthenticated,
  keyIndexOf,
  createKeyring,
  type Keyring,
} from '../../src/auth/authenticate.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import { Refusal } from '../../src/errors.ts';

const secret = (letter: string): string => letter.repeat(43);
const acmeKey = `slc_a1_${secret('A')}`;
const otherKey = `slc_b2_${secret('_')}`;
const expiringKey = `slc_c3_${secret('-')}`;
const expiry = Date.UTC(2027, 0, 1);
const hash = (text: string): string => `'sha256:${createHash('sha256').update(text).digest('hex')}'`;
const bearer = (key: string): string => `Bearer ${key}`;
const basic = (text: string): string => `Basic ${Buffer.from(text).toString('base64')}`;
const encoded = (text: string): string => Buffer.from(text).toString('hex').replaceAll(/../g, '%$&');

const settingsWith = (acme: string, other: string): Settings =>
  parseSettings(
    `upstreams:
  claude: { origins: ['https://api.anthropic.com'], credential: { header: X-Api-Key, value: v1 } }
  shop: { kind: commerce, origins: ['https://*.myshopify.com'] }
workspaces:
  acme: { keys: [${acme}], credentials: { shop: own-token } }
  other: { keys: [${other}] }
`,
    { path: 'test', env: {} },
  );
const expiring = `{ hash: ${hash(expiringKey)}, expires: 2027-01-01T00:00:00Z }`;
const settings = settingsWith(`${hash(acmeKey)}, ${expiring}`, hash(otherKey));
const injected = injectedFields(settings);

/** A keyring whose time and configuration a test can change. */
function keyringOf(given: Settings) {
  const state = { now: expiry - 1, keys: keyIndexOf(given) };
  const ring = createKeyring(() => state.keys, { now: () => state.now });
  return { state, ring };
}
const { ring: keyring } = keyringOf(settings);

interface Where {
  readonly ring?: Keyring;
  readonly fields?: ReadonlySet<string>;
  readonly rawUrl?: string;
}
const who = (rawFields: readonly string[], { ring = keyring, fields = injected, rawUrl = '/' }: Where = {}) =>
  authenticate(rawFields, ring, fields, rawUrl);

/** The refusal, or the caller found. */
function attempt(rawFields: readonly string[], where: Where = {}) {
  try {
    return who(rawFields, where);
  } catch (error) {
    if (error instanceof Refusal) return error;
    throw error;
  }
}
/** Code of the refusal, or the workspace found. */
function outcome(rawFields: readonly string[], where: Where = {}): string {
  const found = attempt(rawFields, where);
  return found instanceof Refusal ? found.code : found.workspace.id;
}

test('the injected fields are those of all configured credentials', () => {
  expect([...injected].toSorted()).toEqual(['x-api-key', 'x-shopify-access-token']);
});

describe('an API key', () => {
  test.each([
    ['Authorization', bearer(acmeKey)],
    ['AUTHORIZATION', `bEARER ${acmeKey}`],
    ['Authorization', `token ${acmeKey}`],
    ['Authorization', `Bot ${acmeKey}`],
    ['Sluice-Key', acmeKey],
    ['X-Api-Key', acmeKey],
    ['x-shopify-access-token', acmeKey],
  ])('is found in %s: %.12s…', (name, value) => {
    const { workspace, keyFields } = who(['Host', 'gw', name, value, 'Accept', '*/*']);
    expect([workspace.id, keyFields[0]]).toEqual(['acme', name.toLowerCase()]);
  });

  test.each([
    ['nothing'],
    ['an unknown key', 'Authorization', bearer(`slc_a1_${secret('B')}`)],
    ['an empty field', 'Sluice-Key', ''],
    ['no scheme', 'Authorization', acmeKey],
    ['two blanks', 'Authorization', `Bearer  ${acmeKey}`],
    ['a tab', 'Authorization', `Bearer\t${acmeKey}`],
    ['a blank behind', 'Authorization', `Bearer ${acmeKey} `],
    ['a second value', 'Authorization', `Bearer ${acmeKey}, Bearer ${acmeKey}`],
    ['Basic', 'Authorization', basic(`${acmeKey}:`)],
    ['Basic with the key', 'Authorization', `Basic ${acmeKey}`],
    ['a scheme of two words', 'Authorization', `API token ${acmeKey}`],
    ['a scheme that is not Bearer, with another key', 'Authorization', 'token ghp_own'],
    ['a field that is not injected', 'X-Other-Key', acmeKey],
    ['a query-like suffix', 'Sluice-Key', `${acmeKey}?`],
    ['more than 256 bytes', 'Sluice-Key', `slc_${'a'.repeat(300)}`],
    ['a key of another case', 'Sluice-Key', acmeKey.toLowerCase()],
    ['an upstream credential in an injected field', 'X-Api-Key', 'sk-ant-1'],
  ])('is not found in %s', (_, ...rawFields) => {
    expect(outcome(rawFields)).toBe('unauthenticated');
  });

  test.each([
    ['acme', 'as password of Basic', basic(`AC123:${acmeKey}`)],
    ['acme', 'as password of Basic without a user', basic(`:${acmeKey}`)],
    ['acme', 'as user of Basic', basic(`${acmeKey}:`)],
    ['acme', 'as user of Basic with a word for a password', basic(`${acmeKey}:x`)],
    ['acme', 'as both', basic(`${acmeKey}:${acmeKey}`)],
    ['acme', 'without a scheme', acmeKey],
    ['acme', 'behind another scheme', `ApiKey ${acmeKey}`],
    ['unauthenticated', 'as an unknown password', basic(`AC123:slc_a1_${secret('B')}`)],
    ['unauthenticated', 'without a colon', basic(`AC123 ${acmeKey}`)],
    ['unauthenticated', 'as another password', basic('AC123:own')],
    ['unauthenticated', 'in what is no base64', 'Basic !!!'],
    ['unauthenticated', 'in nothing', 'Basic'],
    ['unauthenticated', 'with a letter before it', `x${acmeKey}`],
    ['request_invalid', 'beside another one', basic(`${acmeKey}:${otherKey}`)],
  ])('where an upstream’s credential is sent in Authorization is %s %s', (expected, _, value) => {
    const fields = new Set([...injected, 'authorization']);
    expect(outcome(['Authorization', value], { fields })).toBe(expected);
    if (expected === 'acme')
      expect(who(['Authorization', value], { fields }).keyFields).toContain('authorization');
  });

  test('in Basic beside the one that counts is not forwarded either, whoever’s it is', () => {
    for (const text of [`${acmeKey}:`, `user:${acmeKey}`, `user:${otherKey}`])
      for (const field of ['Authorization', 'Sluice-Upstream-Authorization', 'X-Other'])
        expect(who(['Sluice-Key', acmeKey, field, basic(text)]).keyFields).toContain(field.toLowerCase());
  });

  test.each([bearer(`slc_zz_${secret('A')}`), bearer(`slc_a1_${secret('Z')}`), 'Bearer x', 'Basic eA=='])(
    'that is wrong is refused without a hint which part was wrong: %s',
    (value) => {
      const { code, details } = unauthenticated();
      expect(attempt(['Authorization', value])).toMatchObject({ code, details });
    },
  );

  test('of another form counts when it is configured, within the bounds of a token', () => {
    const [short, long, odd] = ['slc_short', `slc_${'a'.repeat(253)}`, 'slc_odd key'];
    const { ring } = keyringOf(settingsWith([short, long, odd].map(hash).join(), hash('z')));
    const { keyFields } = who(['Sluice-Key', short, 'Cookie', `k=${short}`], { ring });
    expect(keyFields.toSorted()).toEqual(['cookie', 'sluice-key']);
    for (const key of [long, odd]) {
      expect(ring(key)).not.toBeNull();
      expect(outcome(['Sluice-Key', key], { ring })).toBe('unauthenticated');
    }
  });
});

describe('a request with several identity fields', () => {
  test.each(['Authorization', 'Sluice-Key', 'X-Api-Key', 'X-Shopify-Access-Token'])(
    'of the name %s is refused, in any case and with equal values',
    (name) => {
      const value = name === 'Authorization' ? bearer(acmeKey) : acmeKey;
      expect(outcome([name, value, name.toLowerCase(), value])).toBe('request_invalid');
      expect(outcome([name, 'x', 'Sluice-Keys', 'y', name.toUpperCase(), value])).toBe('request_invalid');
    },
  );

  test.each([
    ['Sluice-Key', acmeKey, 'Authorization', bearer(otherKey)],
    ['Sluice-Key', acmeKey, 'Authorization', `token ${otherKey}`],
    ['Sluice-Key', acmeKey, 'X-Api-Key', otherKey],
    ['X-Api-Key', acmeKey, 'Authorization', bearer(otherKey)],
    ['X-Api-Key', acmeKey, 'X-Shopify-Access-Token', otherKey],
  ])('with different keys is refused (%s, …)', (...rawFields) => {
    expect(outcome(rawFields)).toBe('request_invalid');
  });

  const own = bearer('sk-client-own');
  const [ofAcme, ofOther] = [bearer(acmeKey), bearer(otherKey)];
  test.each<[string, string, string, string[]]>([
    [
      'of one key: all of them carry it',
      `Authorization|${ofAcme}|Sluice-Key|${acmeKey}|X-Api-Key|${acmeKey}`,
      'acme',
      ['sluice-key', 'authorization', 'x-api-key'],
    ],
    [
      'and Sluice-Key keeps Authorization',
      `Sluice-Key|${acmeKey}|Authorization|${own}`,
      'acme',
      ['sluice-key'],
    ],
    ['and a wrong Sluice-Key is refused', `Sluice-Key|wrong|Authorization|${own}`, 'unauthenticated', []],
    [
      'and an injected field with something else keeps that',
      `X-Api-Key|sk-ant-1|Authorization|${ofOther}`,
      'other',
      ['authorization'],
    ],
    [
      'and any API key in other fields: they carry one, too',
      `Authorization|${ofAcme}|Cookie|a=1; key=${acmeKey}|Sluice-Upstream-Authorization|${ofOther}|X-Note|slc_`,
      'acme',
      ['authorization', 'cookie', 'sluice-upstream-authorization'],
    ],
  ])('%s', (_, fields, expected, carrying) => {
    const rawFields = fields.split('|');
    expect(outcome(rawFields)).toBe(expected);
    if (expected === 'unauthenticated') return;
    const { keyFields } = who(rawFields);
    expect(keyFields[0]).toBe(carrying[0]);
    // Never forwarded, whatever it holds.
    expect(new Set(keyFields)).toEqual(new Set(['sluice-key', ...carrying]));
  });

  test('never has its API key outside of the fields that are not forwarded', () => {
    const identity = fc.constantFrom(
      ['Authorization', bearer(acmeKey)],
      ['Sluice-Key', acmeKey],
      ['X-Api-Key', acmeKey],
    );
    const names = 'Cookie X-A X-B Sluice-Upstream-Authorization X-Shopify-Access-Token'.split(' ');
    const texts = [acmeKey, bearer(acmeKey), `bearer ${acmeKey}`, `a ${acmeKey} b`, 'Bearer x', 'x', ''];
    const others = fc.uniqueArray(fc.tuple(fc.constantFrom(...names), fc.constantFrom(...texts)), {
      maxLength: 4,
      selector: ([name]) => name,
    });
    fc.assert(
      fc.property(identity, others, (first, rest) => {
        const fields = [first, ...rest];
        const { keyFields } = who(fields.flat());
        for (const [field = '', text = ''] of fields)
          expect(keyFields.includes(field.toLowerCase()) || !text.includes(acmeKey)).toBe(true);
      }),
    );
  });
});

describe('the authentication of a waiting call', () => {
  test('ends when its API key expires', () => {
    const { state, ring } = keyringOf(settings);
    const caller = who(['Sluice-Key', expiringKey], { ring });
    expect(caller.stillValid()).toBe(true);
    state.now = expiry;
    expect(caller.stillValid()).toBe(false);
    expect(outcome(['Sluice-Key', expiringKey], { ring })).toBe('unauthenticated');
  });

  test('ends when its API key is removed or given to another workspace, and survives a reload that keeps it', () => {
    const { state, ring } = keyringOf(settings);
    const callers = [acmeKey, otherKey].map((key) => who(['Sluice-Key', key], { ring }));
    const valid = () => callers.map((caller) => caller.stillValid());
    state.keys = keyIndexOf(settingsWith(`${hash(acmeKey)}, ${hash('new')}`, hash(otherKey)));
    expect(valid()).toEqual([true, true]);
    expect(ring('new')?.workspace.id).toBe('acme');
    state.keys = keyIndexOf(settingsWith(hash(otherKey), hash('something else')));
    expect(valid()).toEqual([false, false]);
    expect(ring(otherKey)?.workspace.id).toBe('acme');
  });
});

describe('a request target', () => {
  const at = (rawUrl: string, key = acmeKey): string => outcome(['Authorization', bearer(key)], { rawUrl });

  test.each([
    ['in the path', `/via/claude/v1/${acmeKey}/x`],
    ['in the query', `/via/claude/v1?key=${acmeKey}`],
    ['percent-encoded', `/via/claude/v1?key=${encoded(acmeKey)}`],
    ['percent-encoded in part', `/via/claude/v1?key=${acmeKey.replace('_', '%5F')}`],
    ['in a target', `/proxy?target=${encodeURIComponent(`https://a.test/?key=${acmeKey}`)}`],
    ['encoded in a target', `/proxy?target=${encodeURIComponent(`https://a.test/?key=${encoded(acmeKey)}`)}`],
    ['beside a broken encoding', `/via/claude/%zz%?key=%73${acmeKey.slice(1)}`],
    ['of somebody else', `/via/claude/v1?key=${otherKey}`],
  ])('with an API key is refused: %s', (_, rawUrl) => {
    expect(at(rawUrl)).toBe('request_invalid');
  });

  test.each([
    '/via/claude/v1/slc_a1_/x',
    `/via/claude/v1?key=${acmeKey.toLowerCase()}`.replace('slc_', 'SLC_'),
    `/via/claude/v1?key=${acmeKey.slice(0, -1)}`,
    '/via/claude/%zz%',
  ])('without an API key passes: %s', (rawUrl) => {
    expect(at(rawUrl)).toBe('acme');
  });

  test('reveals nothing to a client without a valid API key', () => {
    expect(at(`/via/claude/v1?key=${acmeKey}`, `slc_a1_${secret('B')}`)).toBe('unauthenticated');
  });
});
