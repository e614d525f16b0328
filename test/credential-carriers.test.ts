import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { CredentialCarriers } from '../src/config/settings.ts';
import {
  broughtAccount,
  isCarrier,
  readCarriers,
  usualCarriers,
  withoutCredentials,
  type CarryingRequest,
} from '../src/credential-carriers.policy.ts';

/** Fields that providers document for a credential. */
const fields = [
  'Authorization', 'X-Api-Key', 'api-key', 'apikey', 'x-goog-api-key', 'xi-api-key', 'Ocp-Apim-Subscription-Key',
  'PRIVATE-TOKEN', 'JOB-TOKEN', 'X-Auth-Token', 'X-Shopify-Access-Token', 'X-Shopify-Storefront-Access-Token',
  'X-RapidAPI-Key', 'X-Access-Token', 'x-functions-key', 'X-Amz-Security-Token', 'x-amz-access-token', 'DD-API-KEY',
  'X-Figma-Token', 'X-Vault-Token', 'Circle-Token', 'X-GitHub-Token', 'X-GitLab-Token', 'Fastly-Key',
  'AccessKey', 'X-Access-Key', 'CB-ACCESS-KEY', 'AuthToken', 'X-Auth-Key', 'X-Auth_Token', 'AuthenticationToken', 'X-Bearer-Token', 'Secret-Key',
  'Authentication', 'X-Auth', 'JWT', 'Session-Token', 'X-TrackerToken', 'X-Hasura-Admin-Secret', 'X-JWT-Assertion',
  'X-Algolia-API-Key', 'X-Subscription-Token', 'X-CMC_PRO_API_KEY', 'x-acme-api-key',
]; // prettier-ignore

/** Fields that look like them and carry none. */
const others = [
  'idempotency-key', 'x-idempotency-key', 'accept', 'cookie', 'x-csrf-token', 'stripe-account', 'openai-organization',
  'anthropic-version', 'x-goog-user-project', 'x-request-id', 'sec-websocket-key', 'x-recaptcha-token', 'x-goog-encryption-key', 'x-push-token', 'author-key', 'page-token', 'etag-key', 'x-shopify-webhook-id',
]; // prettier-ignore

const query = [
  'key', 'api_key', 'apikey', 'apiKey', 'api-key', 'access_token', 'token', 'auth', 'client_secret', 'hapikey',
  'subscription-key', 'private_token', 'auth_key', 'access_key', 'X-Amz-Credential', 'consumer_key',
]; // prettier-ignore

const account = (
  parts: Partial<CarryingRequest> & { readonly carriers?: CredentialCarriers } = {},
): string | null => {
  const { carriers = usualCarriers, ...request } = parts;
  return broughtAccount(
    { workspaceId: 'acme', rawFields: [], pathAndQuery: '/v1', keyFields: ['sluice-key'], ...request },
    carriers,
  );
};

describe('a field that carries a credential', () => {
  test.each(fields)('is known: %s', (name) =>
    expect(isCarrier(name.toLowerCase(), usualCarriers)).toBe(true),
  );
  test.each(others)('is not seen in %s', (name) => expect(isCarrier(name, usualCarriers)).toBe(false));
  test('is added or taken out by the configuration, whatever its case', () => {
    const carriers = readCarriers(['X-Acme', '-Authorization', 'query:acme', '-query:KEY'], 'generic');
    expect(['x-acme', 'authorization', 'x-api-key'].map((name) => isCarrier(name, carriers))).toEqual([
      true,
      false,
      true,
    ]);
    expect(withoutCredentials('/a?acme=1&key=2&token=3', carriers)).toBe('/a?key=2');
  });
});

describe('beside an injected credential', () => {
  test.each(query)('the query member %s is taken out, and no other byte', (name) => {
    const rest = 'page_token=p&q=%2Ftoken%3D1&pageToken=&&x';
    expect(withoutCredentials(`/v1/a?${name}=own&${rest}`, usualCarriers)).toBe(`/v1/a?${rest}`);
    expect(withoutCredentials(`/v1/a?${rest}&${name}=own`, usualCarriers)).toBe(`/v1/a?${rest}`);
    expect(withoutCredentials(`/v1/a?${name}=1&${name.toUpperCase()}=2`, usualCarriers)).toBe('/v1/a');
  });
  test.each(['k%65y', '%6bey', 'KEY', 'api%5Fkey'])('%s is read as the upstream reads it', (name) =>
    expect(withoutCredentials(`/a?${name}=own`, usualCarriers)).toBe('/a'),
  );
  test.each(['page_token', 'pageToken', 'next_token', 'monkey', 'keys', 'keyword', 'authuser', 'author', 'sig',
    'signature', 'appid', 'idempotency_key', '%zz', 'cursor'])(
    'the query member %s stays',
    (name) => expect(withoutCredentials(`/a?${name}=1`, usualCarriers)).toBe(`/a?${name}=1`),
  ); // prettier-ignore
  test('of a commerce platform, whose filters have such names, key, token and auth stay unless the configuration adds them', () => {
    const path = '/metafields.json?key=size&namespace=n&token=t&api_key=own';
    expect(withoutCredentials(path, readCarriers([], 'commerce'))).toBe(
      '/metafields.json?key=size&namespace=n&token=t',
    );
    expect(withoutCredentials(path, readCarriers(['query:key'], 'commerce'))).toBe(
      '/metafields.json?namespace=n&token=t',
    );
    for (const kind of ['generic', 'language-model'] as const)
      expect(withoutCredentials(path, readCarriers([], kind))).toBe('/metafields.json?namespace=n');
  });
  test('a path is left as it is, whatever is in it', () =>
    expect(withoutCredentials('/key=1/token=2&key=3', usualCarriers)).toBe('/key=1/token=2&key=3'));
});

describe('the account of a credential that the client brings', () => {
  test.each(fields)('is another for another value of %s', (name) => {
    const [a, b] = ['sk-a', 'sk-b'].map((value) => account({ rawFields: [name, value] }));
    expect(a).not.toBeNull();
    expect(b).not.toBeNull();
    expect(a).not.toBe(b);
    expect(account({ rawFields: [name.toUpperCase(), 'sk-a'] })).toBe(a);
  });
  test.each(query)('is another for another value of the query member %s', (name) => {
    const [a, b] = ['sk-a', 'sk-b'].map((value) => account({ pathAndQuery: `/v1?x=1&${name}=${value}` }));
    expect(a).not.toBeNull();
    expect(a).not.toBe(b);
    expect(account({ pathAndQuery: `/v2?${name}=sk-a&x=2` })).toBe(a);
  });
  test('is the same for a query value in any spelling of its bytes', () => {
    const of = (value: string): string | null => account({ pathAndQuery: `/v1?key=${value}` });
    expect(of('%73k%2da')).toBe(of('sk-a'));
    expect(of('sk%ZZ')).not.toBe(of('sk-a'));
  });
  test('is another for each token of a scheme that signs nothing, whatever characters it has', () => {
    const of = (value: string): string | null => account({ rawFields: ['Authorization', value] });
    for (const [scheme, ...tokens] of [
      ['Bearer', 'a.b-c_d~e+f/g==', 'u:a', 'u:b', 'a.b-c_d~e+f/h==', 'id=1;x', 'id=2;x'],
      ['Basic', 'dTpw', 'dTpx'],
      ['Token', 'token=a', 'token=b'],
    ])
      expect(new Set(tokens.map((token) => of(`${scheme} ${token}`))).size).toBe(tokens.length);
  });
  test.each(others)('is not named by %s', (name) => expect(account({ rawFields: [name, 'x'] })).toBeNull());
  test.each(['=', 'a=', '= ', '/12345678/', 'id="x"', ':'])(
    'is read in a time that grows with the length alone (%s, repeated)',
    (part) => {
      const from = performance.now();
      expect(account({ rawFields: ['Authorization', `x ${part.repeat(15_000)}`] })).not.toBeNull();
      expect(performance.now() - from).toBeLessThan(100);
    },
  );
  test('is not named by an empty value, nor by a key of Sluice', () => {
    const key = `slc_acme1_${'k'.repeat(43)}`;
    expect(
      account({ rawFields: ['x-api-key', '', 'Authorization', ' '], pathAndQuery: '/a?key=' }),
    ).toBeNull();
    expect(account({ rawFields: ['x-api-key', key, 'Sluice-Upstream-Authorization', key] })).toBeNull();
    expect(account({ rawFields: ['Authorization', 'Bearer x'], keyFields: ['authorization'] })).toBeNull();
  });
  test('is that of Sluice-Upstream-Authorization, which is sent as Authorization', () => {
    const own = account({ rawFields: ['Authorization', 'Bearer own'] });
    expect(account({ rawFields: ['Sluice-Upstream-Authorization', 'Bearer own'] })).toBe(own);
    const both = ['Sluice-Upstream-Authorization', 'Bearer own', 'Authorization', 'Bearer key'];
    expect(account({ rawFields: both, keyFields: ['authorization'] })).toBe(own);
    expect(account({ rawFields: both, keyFields: ['sluice-key'] })).toBe(own);
  });
  test('is the same for every order of the fields, and another where any of them differs', () => {
    const names = fc.uniqueArray(fc.constantFrom(...fields.map((name) => name.toLowerCase())), {
      minLength: 2,
      maxLength: 5,
    });
    fc.assert(
      fc.property(names, fc.nat(4), (given, at) => {
        const pairs = given.map((name) => [name, `v-${name}`]);
        const of = (list: readonly (readonly string[])[]): string | null =>
          account({ rawFields: list.flat() });
        expect(of(pairs.toReversed())).toBe(of(pairs));
        const changed = pairs.map(([name = '', value = ''], index) =>
          index === at % pairs.length ? [name, `${value}!`] : [name, value],
        );
        expect(of(changed)).not.toBe(of(pairs));
      }),
    );
  });
  test('is not split by a query member that may mean something else beside a credential in a field', () => {
    const of = (pathAndQuery: string): string | null =>
      account({ rawFields: ['Authorization', 'Bearer a'], pathAndQuery });
    expect(of('/entries?key=1&token=2')).toBe(of('/entries?key=3'));
    expect(of('/entries?api_key=1')).not.toBe(of('/entries?api_key=2'));
  });
  test('cannot be claimed by a value that spells the text of another one', () => {
    const both = account({ rawFields: ['x-auth-token', 'b'], pathAndQuery: '/?api_key=a' });
    expect(account({ pathAndQuery: '/?api_key=a%0Ax-auth-token%0Ab' })).not.toBe(both);
    const carriers = readCarriers(['account', 'workspace'], 'generic');
    for (const name of ['account', 'workspace'])
      expect(account({ rawFields: [name, 'acme'], carriers })).not.toBe(`${name}\nacme`);
  });

  const signed: readonly (readonly [string, (nonce: string, who: string) => Partial<CarryingRequest>])[] = [
    ['AWS in a field', (nonce, who) => ({ rawFields: ['Authorization', `AWS4-HMAC-SHA256 Credential=${who}/20261125/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature=${nonce}`] })],
    ['AWS in the query', (nonce, who) => ({ pathAndQuery: `/b?X-Amz-Credential=${who}%2F20261125%2Feu-west-1%2Fs3%2Faws4_request&X-Amz-Signature=${nonce}` })],
    ['OAuth 1.0', (nonce, who) => ({ rawFields: ['Authorization', `OAuth oauth_consumer_key="c", oauth_token="${who}", oauth_nonce="${nonce}", oauth_signature="s${nonce}"`] })],
    ['Digest', (nonce, who) => ({ rawFields: ['Authorization', `Digest username="${who}", realm="r", nonce="${nonce}", response="${nonce}"`] })],
    ['OAuth 1.0 in another order', (nonce, who) => ({ rawFields: ['Authorization', nonce === 'n1' ? `OAuth oauth_consumer_key="c",oauth_token="${who}",oauth_nonce="1"` : `OAuth realm="r",oauth_nonce="2",oauth_token="${who}",oauth_consumer_key="c"`] })],
    ['AWS of old', (nonce, who) => ({ rawFields: ['Authorization', `AWS ${who}:${nonce}=`] })],
    ['Azure, SharedKey', (nonce, who) => ({ rawFields: ['Authorization', `SharedKey ${who}:${nonce}+/=`] })],
    ['Azure, HMAC', (nonce, who) => ({ rawFields: ['Authorization', `HMAC-SHA256 Credential=${who}&SignedHeaders=host&Signature=${nonce}`] })],
    ['Huawei', (nonce, who) => ({ rawFields: ['Authorization', `SDK-HMAC-SHA256 Access=${who}, SignedHeaders=host, Signature=${nonce}`] })],
    ['Akamai', (nonce, who) => ({ rawFields: ['Authorization', `EG1-HMAC-SHA256 client_token=${who};access_token=a;timestamp=1;nonce=${nonce};signature=s${nonce}`] })],
    ['Baidu', (nonce, who) => ({ rawFields: ['Authorization', `bce-auth-v1/${who}/2026-11-25T00:00:00Z/1800/host/${nonce}`] })],
    ['an HTTP signature', (nonce, who) => ({ rawFields: ['Authorization', `Signature keyId="${who}", algorithm="hs2019", signature="${nonce}"`] })],
  ]; // prettier-ignore
  test.each(signed)('is that of the signer where each call is signed (%s), within its workspace', (_, of) => {
    const first = account(of('n1', 'AKIA1'));
    expect(first).not.toBeNull();
    expect(account(of('n2', 'AKIA1'))).toBe(first);
    expect(account(of('n1', 'AKIA2'))).not.toBe(first);
    // Who signs is no secret: another workspace that names the same one has not shown to be it.
    expect(account({ ...of('n1', 'AKIA1'), workspaceId: 'other' })).not.toBe(first);
  });
});
