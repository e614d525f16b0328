import { describe, expect, test } from '@jest/globals';
import type { UpstreamCredential } from '../../src/config/settings.ts';
import { Refusal } from '../../src/errors.ts';
import { createRouteFinder, passedThrough } from '../../src/target/route.ts';
import {
  byName,
  fixedCredential,
  upstreamSettings,
  workspaceSettings,
} from '../support/upstream-settings.ts';

const shared = fixedCredential('authorization', 'Bearer shared');
const own = fixedCredential('authorization', 'Bearer own');
const finder = createRouteFinder(
  byName(
    upstreamSettings('api', ['https://api.example:8443'], { credential: shared }),
    upstreamSettings('open', ['https://open.example']),
    upstreamSettings('shops', ['https://*.shop.example']),
  ),
);
interface Asked {
  readonly allowed?: readonly string[];
  readonly credentials?: ReadonlyMap<string, UpstreamCredential>;
  readonly rawFields?: readonly string[];
}
const find = (rawUrl: string, { allowed = ['api', 'open'], credentials, rawFields = [] }: Asked = {}) =>
  finder.find(
    { form: rawUrl.startsWith('/via') ? 'via' : 'proxy', rawUrl, rawFields },
    { workspace: workspaceSettings('acme', allowed, credentials && { credentials }) },
  );
function refusalOf(...call: Parameters<typeof find>): Refusal {
  try {
    find(...call);
  } catch (error) {
    if (error instanceof Refusal) return error;
    throw error;
  }
  throw new Error('not refused');
}
const ofItsOwn = { credentials: new Map([['api', own]]) };

describe('the route of a call', () => {
  test('carries the upstream’s credential, before it the workspace’s own, and none where none is configured', () => {
    expect(find('/via/api/v1?x')).toMatchObject({
      origin: 'https://api.example:8443',
      host: 'api.example:8443',
      pathAndQuery: '/v1?x',
      credential: shared,
    });
    expect(find('/via/api/v1', ofItsOwn).credential).toBe(own);
    expect(find('/via/open/v1', ofItsOwn).credential).toBeNull();
  });
  test.each([
    '/via/api/v1?key=own&page=2&api_key=own',
    `/proxy?target=${encodeURIComponent('https://api.example:8443/v1?key=own&page=2&api_key=own')}`,
  ])('leaves the client’s own credential out of the query, whoever’s is injected (%s)', (url) => {
    for (const asked of [{}, ofItsOwn]) expect(find(url, asked).pathAndQuery).toBe('/v1?page=2');
  });
  test('keeps the query byte for byte where the client brings its own', () => {
    const query = '/v1?key=own&page=2&api_key=%6fwn&';
    expect(find(`/via/open${query}`).pathAndQuery).toBe(query);
  });
  test.each(['/via/api/v1', '/proxy?target=https%3A%2F%2Fapi.example%3A8443%2F'])(
    'is refused to a workspace that may not use the upstream (%s)',
    (url) => expect(refusalOf(url, { allowed: ['open'] }).code).toBe('target_forbidden'),
  );
  test('says what is wrong with the name: the upstream that was probably meant, of those that the workspace may use, or a host', () => {
    const detailOf = (url: string, ...allowed: readonly string[]) =>
      refusalOf(url, { allowed }).details.detail ?? '';
    expect(detailOf('/via/opne/v1', 'open')).toContain('did you mean open?');
    expect(detailOf('/via/opne/v1', 'api')).not.toContain('open');
    expect(detailOf('/via/shops/admin/api/products.json', 'shops')).toContain(
      '/via/{upstream}/{host}/{path}',
    );
    expect(detailOf('/via/quite-different/v1', 'open', 'api')).not.toContain('did you mean');
  });
  test('is refused when the call has already passed through this gateway', () => {
    const rawFields = ['Accept', '*/*', 'VIA', '1.0 fred, 1.1 Sluice (comment)'];
    expect(refusalOf('/via/open/', { rawFields }).code).toBe('loop_detected');
  });
  test('is refused without quoting the target', () => {
    const target = encodeURIComponent('https://user:canary@open.example/canary');
    const error = refusalOf(`/proxy?target=${target}`);
    expect(JSON.stringify(error) + String(error)).not.toContain('canary');
  });
});

describe('the loop check of Via fields', () => {
  test.each([
    [['via', '1.1 sluice'], true],
    [['Via', 'HTTP/1.1 sluice'], true],
    [['Via', '1.1 a', 'Via', '1.1 b,1.1 sluice'], true],
    [['Via', '1.1 sluice2'], false],
    [['Via', '1.1 other (sluice)'], false],
    [['Via', 'sluice'], false],
    [['Via', ''], false],
    [['X-Via', '1.1 sluice'], false],
    [['X', 'via', 'Y', '1.1 sluice'], false],
    [[], false],
  ])('returns, for %j, %s', (fields, expected) => expect(passedThrough(fields)).toBe(expected));
});
