import { describe, expect, test } from '@jest/globals';
import { Refusal } from '../../src/errors.ts';
import { createRouteFinder } from '../../src/target/route.ts';
import { passedThrough } from '../../src/target/target.policy.ts';
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
const call = (rawUrl: string, rawFields: readonly string[] = []) =>
  ({ form: rawUrl.startsWith('/via') ? 'via' : 'proxy', rawUrl, rawFields }) as const;
function codeOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof Refusal) return error.code;
    throw error;
  }
  return 'none';
}

describe('the route of a call', () => {
  test('carries the upstream’s credential', () => {
    const route = finder.find(call('/via/api/v1?x'), { workspace: workspaceSettings('acme', ['api']) });
    expect(route).toMatchObject({
      origin: 'https://api.example:8443',
      host: 'api.example:8443',
      pathAndQuery: '/v1?x',
      credential: shared,
    });
  });
  test('carries the workspace’s own credential before it', () => {
    const workspace = workspaceSettings('acme', ['api'], { credentials: new Map([['api', own]]) });
    expect(finder.find(call('/via/api/v1'), { workspace }).credential).toBe(own);
  });
  test.each([
    '/via/api/v1?key=own&page=2&api_key=own',
    `/proxy?target=${encodeURIComponent('https://api.example:8443/v1?key=own&page=2&api_key=own')}`,
  ])('leaves the client’s own credential out of the query, whoever’s is injected (%s)', (url) => {
    for (const credentials of [new Map(), new Map([['api', own]])]) {
      const workspace = workspaceSettings('acme', ['api'], { credentials });
      expect(finder.find(call(url), { workspace }).pathAndQuery).toBe('/v1?page=2');
    }
  });
  test('keeps the query byte for byte where the client brings its own', () => {
    const workspace = workspaceSettings('acme', ['open']);
    const route = finder.find(call('/via/open/v1?key=own&page=2&api_key=%6fwn&'), { workspace });
    expect(route.pathAndQuery).toBe('/v1?key=own&page=2&api_key=%6fwn&');
  });
  test('carries none where none is configured', () => {
    const workspace = workspaceSettings('acme', ['open'], { credentials: new Map([['api', own]]) });
    expect(finder.find(call('/via/open/v1'), { workspace }).credential).toBeNull();
  });
  test.each(['/via/api/v1', '/proxy?target=https%3A%2F%2Fapi.example%3A8443%2F'])(
    'is refused to a workspace that may not use the upstream (%s)',
    (url) => {
      const workspace = workspaceSettings('acme', ['open']);
      expect(codeOf(() => finder.find(call(url), { workspace }))).toBe('target_forbidden');
    },
  );
  test('says what is wrong with the name: the upstream that was probably meant, of those that the workspace may use, or a host', () => {
    const detailOf = (url: string, ...allowed: readonly string[]): string => {
      try {
        finder.find(call(url), { workspace: workspaceSettings('acme', allowed) });
        return 'a route';
      } catch (error) {
        return error instanceof Refusal ? (error.details.detail ?? '') : String(error);
      }
    };
    expect(detailOf('/via/opne/v1', 'open')).toContain('did you mean open?');
    expect(detailOf('/via/opne/v1', 'api')).not.toContain('open');
    expect(detailOf('/via/shops/admin/api/products.json', 'shops')).toContain(
      '/via/{upstream}/{host}/{path}',
    );
    expect(detailOf('/via/quite-different/v1', 'open', 'api')).not.toContain('did you mean');
  });
  test('is refused when the call has already passed through this gateway', () => {
    const workspace = workspaceSettings('acme', ['open']);
    const fields = ['Accept', '*/*', 'VIA', '1.0 fred, 1.1 Sluice (comment)'];
    expect(codeOf(() => finder.find(call('/via/open/', fields), { workspace }))).toBe('loop_detected');
  });
  test('is refused without quoting the target', () => {
    const workspace = workspaceSettings('acme', ['open']);
    const target = encodeURIComponent('https://user:canary@open.example/canary');
    try {
      finder.find(call(`/proxy?target=${target}`), { workspace });
    } catch (error) {
      expect(error).toBeInstanceOf(Refusal);
      expect(JSON.stringify(error) + String(error)).not.toContain('canary');
      return;
    }
    throw new Error('not refused');
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
  ])('returns, for %j, %s', (fields, expected) => {
    expect(passedThrough(fields)).toBe(expected);
  });
});
