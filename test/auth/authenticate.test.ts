import { describe, expect, test } from '@jest/globals';
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { authenticate, unauthenticated } from '../../src/auth/authenticate.ts';
import type { Caller } from '../../src/call.ts';
import { Keyring } from '../../src/auth/keyring.ts';
import { injectedFields, keyIndexOf } from '../support/keys.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import { Refusal } from '../../src/errors.ts';

const secret = (letter: string): string => letter.repeat(43);
const acmeKey = `slc_a1_${secret('A')}`;
const otherKey = `slc_b2_${secret('_')}`;
const expiringKey = `slc_c3_${secret('-')}`;
const expiry = Date.UTC(2027, 0, 1);
const sha256 = (text: string): string => `sha256:${createHash('sha256').update(text).digest('hex')}`;

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
const settings = settingsWith(
  `'${sha256(acmeKey)}', { hash: '${sha256(expiringKey)}', expires: 2027-01-01T00:00:00Z }`,
  `'${sha256(otherKey)}'`,
);
const injected = injectedFields(settings);
let wallClock = expiry - 1;
const clock = { now: () => wallClock };
const keyringOf = (given: Settings): Keyring => {
  const keys = keyIndexOf(given);
  return new Keyring(() => keys, clock);
};
const keyring = keyringOf(settings);

const who = (...rawFields: string[]): Caller => authenticate(rawFields, keyring, injected);

/** Code of the refusal, or the workspace found. */
function outcome(...rawFields: string[]): string {
  try {
    return who(...rawFields).workspace.id;
  } catch (error) {
    if (error instanceof Refusal) return error.code;
    throw error;
  }
}

test('the injected fields are those of all configured credentials', () => {
  expect([...injected].toSorted()).toEqual(['x-api-key', 'x-shopify-access-token']);
});

describe('an API key', () => {
  test.each([
    ['Authorization', `Bearer ${acmeKey}`, 'authorization'],
    ['AUTHORIZATION', `bEARER ${acmeKey}`, 'authorization'],
    ['Authorization', `token ${acmeKey}`, 'authorization'],
    ['Authorization', `Bot ${acmeKey}`, 'authorization'],
    ['Sluice-Key', acmeKey, 'sluice-key'],
    ['X-Api-Key', acmeKey, 'x-api-key'],
    ['x-shopify-access-token', acmeKey, 'x-shopify-access-token'],
  ])('is found in %s: %.12s…', (name, value, field) => {
    const caller = who('Host', 'gw', name, value, 'Accept', '*/*');
    expect(caller.workspace.id).toBe('acme');
    expect(caller.keyFields[0]).toBe(field);
    expect(caller.keyFields).toContain(field);
  });

  test.each([
    ['nothing'],
    ['an unknown key', 'Authorization', `Bearer slc_a1_${secret('B')}`],
    ['an empty field', 'Sluice-Key', ''],
    ['no scheme', 'Authorization', acmeKey],
    ['two blanks', 'Authorization', `Bearer  ${acmeKey}`],
    ['a tab', 'Authorization', `Bearer\t${acmeKey}`],
    ['a blank behind', 'Authorization', `Bearer ${acmeKey} `],
    ['a second value', 'Authorization', `Bearer ${acmeKey}, Bearer ${acmeKey}`],
    ['Basic', 'Authorization', `Basic ${Buffer.from(`${acmeKey}:`).toString('base64')}`],
    ['Basic with the key', 'Authorization', `Basic ${acmeKey}`],
    ['a scheme of two words', 'Authorization', `API token ${acmeKey}`],
    ['a scheme that is not Bearer, with another key', 'Authorization', 'token ghp_own'],
    ['a field that is not injected', 'X-Other-Key', acmeKey],
    ['a query-like suffix', 'Sluice-Key', `${acmeKey}?`],
    ['more than 256 bytes', 'Sluice-Key', `slc_${'a'.repeat(300)}`],
    ['a key of another case', 'Sluice-Key', acmeKey.toLowerCase()],
    ['an upstream credential in an injected field', 'X-Api-Key', 'sk-ant-1'],
  ])('is not found in %s', (_title, ...rawFields) => {
    expect(outcome(...rawFields)).toBe('unauthenticated');
  });

  describe('in Authorization, where an upstream’s credential is sent there', () => {
    const withAuthorization = new Set([...injected, 'authorization']);
    const basic = (text: string): string => `Basic ${Buffer.from(text).toString('base64')}`;
    const found = (value: string): string => {
      try {
        return authenticate(['Authorization', value], keyring, withAuthorization).workspace.id;
      } catch (error) {
        if (error instanceof Refusal) return error.code;
        throw error;
      }
    };
    test.each([
      ['as password of Basic', basic(`AC123:${acmeKey}`)],
      ['as password of Basic without a user', basic(`:${acmeKey}`)],
      ['as user of Basic', basic(`${acmeKey}:`)],
      ['as user of Basic with a word for a password', basic(`${acmeKey}:x`)],
      ['as both', basic(`${acmeKey}:${acmeKey}`)],
      ['without a scheme', acmeKey],
      ['behind another scheme', `ApiKey ${acmeKey}`],
    ])('is found %s, and the field is not forwarded', (_, value) => {
      expect(found(value)).toBe('acme');
      const caller = authenticate(['Authorization', value], keyring, withAuthorization);
      expect(caller.keyFields).toContain('authorization');
    });
    test.each([
      ['unauthenticated', basic(`AC123:slc_a1_${secret('B')}`)],
      ['unauthenticated', basic(`AC123 ${acmeKey}`)],
      ['unauthenticated', basic('AC123:own')],
      ['unauthenticated', 'Basic !!!'],
      ['unauthenticated', 'Basic'],
      ['unauthenticated', `x${acmeKey}`],
      ['request_invalid', basic(`${acmeKey}:${otherKey}`)],
    ])('is %s otherwise: %.24s…', (code, value) => expect(found(value)).toBe(code));
  });

  test('in Basic beside the one that counts is not forwarded either, whoever’s it is', () => {
    for (const text of [`${acmeKey}:`, `user:${acmeKey}`, `user:${otherKey}`]) {
      const value = `Basic ${Buffer.from(text).toString('base64')}`;
      for (const field of ['Authorization', 'Sluice-Upstream-Authorization', 'X-Other']) {
        expect(who('Sluice-Key', acmeKey, field, value).keyFields).toContain(field.toLowerCase());
      }
    }
  });

  test('that is wrong is refused without a hint which part was wrong', () => {
    const details = [
      `Bearer slc_zz_${secret('A')}`,
      `Bearer slc_a1_${secret('Z')}`,
      'Bearer x',
      'Basic eA==',
    ].map((value) => {
      try {
        who('Authorization', value);
      } catch (error) {
        if (error instanceof Refusal) return { code: error.code, ...error.details };
      }
      return null;
    });
    const { code, details: words } = unauthenticated();
    for (const detail of details) expect(detail).toEqual({ code, ...words });
  });
});

describe('a request with several identity fields', () => {
  test.each(['Authorization', 'Sluice-Key', 'X-Api-Key', 'X-Shopify-Access-Token'])(
    'of the name %s is refused, in any case and with equal values',
    (name) => {
      const value = name === 'Authorization' ? `Bearer ${acmeKey}` : acmeKey;
      expect(outcome(name, value, name.toLowerCase(), value)).toBe('request_invalid');
      expect(outcome(name, 'x', 'Sluice-Keys', 'y', name.toUpperCase(), value)).toBe('request_invalid');
    },
  );

  test('with the same key is of one workspace, and none of these fields is forwarded', () => {
    const caller = who('Authorization', `Bearer ${acmeKey}`, 'Sluice-Key', acmeKey, 'X-Api-Key', acmeKey);
    expect(caller.keyFields[0]).toBe('sluice-key');
    expect(caller.keyFields.toSorted()).toEqual(['authorization', 'sluice-key', 'x-api-key']);
  });

  test.each([
    ['Sluice-Key', acmeKey, 'Authorization', `Bearer ${otherKey}`],
    ['Sluice-Key', acmeKey, 'Authorization', `token ${otherKey}`],
    ['Sluice-Key', acmeKey, 'X-Api-Key', otherKey],
    ['X-Api-Key', acmeKey, 'Authorization', `Bearer ${otherKey}`],
    ['X-Api-Key', acmeKey, 'X-Shopify-Access-Token', otherKey],
  ])('with different keys is refused (%s, …)', (...rawFields) => {
    expect(outcome(...rawFields)).toBe('request_invalid');
  });

  test('keeps Authorization for the upstream when Sluice-Key holds the API key', () => {
    const caller = who('Sluice-Key', acmeKey, 'Authorization', 'Bearer sk-client-own');
    expect(caller.keyFields).toEqual(['sluice-key']);
  });

  test('is judged by Sluice-Key, even when that is wrong', () => {
    expect(outcome('Sluice-Key', 'wrong', 'Authorization', 'Bearer sk-client-own')).toBe('unauthenticated');
  });

  test('is judged by Authorization when an injected field holds something else', () => {
    const caller = who('X-Api-Key', 'sk-ant-1', 'Authorization', `Bearer ${otherKey}`);
    expect([caller.workspace.id, caller.keyFields[0]]).toEqual(['other', 'authorization']);
    expect(caller.keyFields).not.toContain('x-api-key');
  });
});

test('every field that holds the API key, or any API key, is named as one that must not be forwarded', () => {
  const caller = who(
    'Authorization',
    `Bearer ${acmeKey}`,
    'Cookie',
    `session=1; key=${acmeKey}`,
    'Sluice-Upstream-Authorization',
    `Bearer ${otherKey}`,
    'X-Note',
    'slc_ is a prefix',
  );
  expect(caller.keyFields.toSorted()).toEqual([
    'authorization',
    'cookie',
    'sluice-key',
    'sluice-upstream-authorization',
  ]);
});

test('an API key of another form counts when it is configured, within the bounds of a token', () => {
  const short = 'slc_short';
  const long = `slc_${'a'.repeat(253)}`;
  const odd = 'slc_odd key';
  const ring = keyringOf(
    settingsWith([short, long, odd].map((key) => `'${sha256(key)}'`).join(), `'${sha256('z')}'`),
  );
  const caller = authenticate(['Sluice-Key', short, 'Cookie', `k=${short}`], ring, injected);
  expect(caller.keyFields.toSorted()).toEqual(['cookie', 'sluice-key']);
  for (const key of [long, odd]) {
    expect(ring.find(key)).not.toBeNull();
    expect(() => authenticate(['Sluice-Key', key], ring, injected)).toThrow('unauthenticated');
  }
});

test('no field outside keyFields ever holds the API key', () => {
  const identity = fc.constantFrom(
    ['Authorization', `Bearer ${acmeKey}`],
    ['Sluice-Key', acmeKey],
    ['X-Api-Key', acmeKey],
  );
  const others = fc.uniqueArray(
    fc.tuple(
      fc.constantFrom('Cookie', 'X-A', 'X-B', 'Sluice-Upstream-Authorization', 'X-Shopify-Access-Token'),
      fc.constantFrom(
        acmeKey,
        `Bearer ${acmeKey}`,
        `bearer ${acmeKey}`,
        `a ${acmeKey} b`,
        'Bearer x',
        'x',
        '',
      ),
    ),
    { maxLength: 4, selector: ([name]) => name },
  );
  fc.assert(
    fc.property(fc.tuple(identity, others), ([first, rest]) => {
      const fields = [first, ...rest];
      const { keyFields } = who(...fields.flat());
      for (const [field = '', text = ''] of fields) {
        expect(keyFields.includes(field.toLowerCase()) || !text.includes(acmeKey)).toBe(true);
      }
    }),
  );
});

describe('the authentication of a waiting call', () => {
  test('ends when its API key expires', () => {
    wallClock = expiry - 1;
    const caller = who('Sluice-Key', expiringKey);
    expect(caller.stillValid()).toBe(true);
    wallClock = expiry;
    expect(caller.stillValid()).toBe(false);
    expect(outcome('Sluice-Key', expiringKey)).toBe('unauthenticated');
    wallClock = expiry - 1;
  });

  test('ends when its API key is removed or given to another workspace', () => {
    let keys = keyIndexOf(settings);
    const ring = new Keyring(() => keys, clock);
    const acme = authenticate(['Sluice-Key', acmeKey], ring, injected);
    const other = authenticate(['Sluice-Key', otherKey], ring, injected);
    keys = keyIndexOf(settingsWith(`'${sha256(otherKey)}'`, `'${sha256('something else')}'`));
    expect([acme.stillValid(), other.stillValid()]).toEqual([false, false]);
    expect(ring.find(otherKey)?.workspace.id).toBe('acme');
  });

  test('survives a reload that keeps its API key', () => {
    let keys = keyIndexOf(settings);
    const ring = new Keyring(() => keys, clock);
    const caller = authenticate(['Sluice-Key', acmeKey], ring, injected);
    keys = keyIndexOf(settingsWith(`'${sha256(acmeKey)}', '${sha256('new')}'`, `'${sha256(otherKey)}'`));
    expect(caller.stillValid()).toBe(true);
    expect(ring.find('new')?.workspace.id).toBe('acme');
  });
});

describe('a request target', () => {
  const encoded = (text: string): string => Buffer.from(text).toString('hex').replaceAll(/../g, '%$&');
  const at = (rawUrl: string, key = acmeKey): string => {
    try {
      return authenticate(['Authorization', `Bearer ${key}`], keyring, injected, rawUrl).workspace.id;
    } catch (error) {
      if (error instanceof Refusal) return error.code;
      throw error;
    }
  };

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
