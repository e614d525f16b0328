/** With which credential a call goes upstream, and whose quota and breaker it is about. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { scripted } from './scripted.ts';
import { closeAll, type Reply, type Sending } from './world.ts';

afterEach(closeAll);

const whoMade = ({ status, error }: Reply) => [status, error ?? 'upstream'];
const served = [200, 'upstream'];

test.each(['authorization', 'x-api-key', 'x-goog-api-key', 'x-shopify-access-token'])(
  'the upstream’s credential in %s is the only one that goes upstream, from fields or query',
  async (field) => {
    const settings = `credential: { header: ${field}, value: "injected" }, credentialFields: [x-acme-secret, "query:acme", "-x-token"]`;
    const { ask, arrivals } = await scripted(undefined, { upstreams: { api: settings } });
    const carriers =
      'authorization x-api-key api-key x-goog-api-key private-token x-auth-token sluice-upstream-authorization x-acme-secret';
    const own = Object.fromEntries(carriers.split(' ').map((name) => [name, 'own']));
    const path = '/via/api/v1/x?key=own&page_token=p&access_token=own&acme=own&signature=s';
    const reply = await ask(path, { headers: { ...own, 'x-token': 'kept', 'x-plain': 'kept' } });
    expect([whoMade(reply), arrivals[0]?.path]).toEqual([served, '/v1/x?page_token=p&signature=s']);
    const headers = arrivals[0]?.headers;
    expect(headers).toMatchObject({ [field]: 'injected', 'x-token': 'kept', 'x-plain': 'kept' });
    expect(JSON.stringify(headers)).not.toContain('own');
  },
);

/** An upstream that refuses whoever shows `spent` for an hour, and whoever shows `broke` for good. */
async function start(settings: string, { workspace = '' } = {}) {
  const api = await scripted(
    ({ path, headers }) => {
      const shown = `${path} ${JSON.stringify(headers)}`;
      if (shown.includes('spent')) return { status: 429, headers: { 'retry-after': '3600' } };
      return { status: shown.includes('broke') ? 402 : 200 };
    },
    { upstreams: { api: settings }, workspaces: { a: workspace, b: workspace, c: workspace } },
  );
  const call = async (by: string, path: string, { headers, json }: Sending = {}) => {
    const sending = { workspace: by, json, headers: { prefer: 'wait=1', ...headers } };
    return whoMade(await api.ask(`/via/api${path}`, sending));
  };
  return { ...api, call };
}
type Request = (value: string) => readonly [path: string, sending?: Sending];
const field =
  (name: string): Request =>
  (value) => ['/v1/x', { headers: { [name]: value } }];

describe('a client’s own credential', () => {
  test.each<[string, Request]>([
    ['authorization', field('authorization')],
    ['x-api-key', field('x-api-key')],
    ['the query member key', (value) => [`/v1/x?a=1&key=${value}`]],
    ['the query member acme, which the configuration names', (value) => [`/v1/x?acme=${value}`]],
  ])('that is throttled or without money stops no other in %s', async (_, request) => {
    const { call, arrivals } = await start(
      'kind: language-model, credentialFields: [x-acme-secret, "query:acme"]',
    );
    for (const how of ['spent', 'broke']) {
      const [status] = await call('a', ...request(`${how}-a`));
      expect([429, 402]).toContain(status);
      const before = arrivals.length;
      // The same account is known to refuse, also to another workspace; the others go on, in whatever workspace they are.
      expect((await call('b', ...request(`${how}-a`)))[1]).not.toBe('upstream');
      expect(arrivals).toHaveLength(before);
      expect([await call('a', ...request('good-a')), await call('b', ...request('good-b'))]).toEqual([
        served,
        served,
      ]);
    }
  });

  test('that nothing shows is the workspace’s: no other workspace shares its quota or its breaker', async () => {
    const { call } = await start('kind: language-model');
    // Nothing of the list carries it, so that nothing can be said of its account.
    expect((await call('a', ...field('x-strange')('spent')))[0]).toBe(429);
    expect((await call('c', ...field('x-strange')('broke')))[0]).toBe(402);
    const [[, a], [, c]] = [await call('a', '/v1/x'), await call('c', '/v1/x')];
    expect([a, c]).toEqual(['wait_too_long', 'upstream_refused']);
    expect(await call('b', '/v1/x')).toEqual(served);
  });

  test('that is spent stops nobody who uses an injected one', async () => {
    const { call } = await start(
      'kind: language-model, credential: { header: authorization, value: "injected" }',
    );
    expect(await call('a', '/v1/x?key=spent')).toEqual(served);
    expect(await call('a', ...field('x-api-key')('broke'))).toEqual(served);
    expect(await call('b', '/v1/x')).toEqual(served);
  });
});

const once = 'windows: [{ requests: 1, seconds: 3600 }]';
const by = (word: string): string => `speaks: { ${once}, bucketBy: [credential, "${word}"] }`;
const injected =
  'kind: language-model, limits: { requestsPerMinute: 1 }, credential: { header: x-api-key, value: "injected" }';
const ceilings = '    requestsPerMinute: none\n';
test.each<[string, string, Request]>([
  ['a credential of its own', `speaks: { ${once} }`, field('x-api-key')],
  ['a field', by('header:x-org'), field('x-org')],
  ['a path segment', by('path:/v1/{*}'), (value) => [`/v1/${value}`]],
  ['a body member', by('body:/org'), (org) => ['/v1/x', { json: { org } }]],
  [
    'the models of an injected credential',
    injected,
    (model) => ['/v1/chat/completions', { json: { model, messages: [] } }],
  ],
])(
  'values that a client invents open new windows up to a bound, and share one beyond it: %s',
  async (_, settings, request) => {
    const { call, arrivals } = await start(`maxBuckets: 3, ${settings}`, { workspace: ceilings });
    for (let at = 0; at < 12; at += 1) await call('a', ...request(`invented-${at}`));
    expect(arrivals).toHaveLength(4);
    // They are one workspace's: another one has its own.
    expect(await call('b', ...request('of-b'))).toEqual(served);
  },
);
