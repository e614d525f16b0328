/** With which credential a call goes upstream, whose quota and breaker it is about, which calls share a quota, and what they are charged. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { skippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';
import { scripted } from './scripted.ts';
import {
  adminText,
  bucketsOf,
  closeAll,
  highCeilings,
  inversions,
  many,
  maxInFlight,
  type Reply,
  type Sending,
  startWorld,
  tally,
  type World,
  type WorldOptions,
} from './world.ts';

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

const own = (upstream: string, credential: string, more = ''): string =>
  `${highCeilings}    credentials: { ${upstream}: "${credential}" }\n${more}`;

describe('a credential with an account', () => {
  const tokens = ['shpat_sim', 'shpat_new', 'shpat_acme', 'shpat_beta'];
  const start = (more: WorldOptions = {}): Promise<World> =>
    startWorld({
      shop: { stores: { '127.0.0.1': { apps: { 'app-sim': tokens } } }, latency: { minMs: 1, maxMs: 4 } },
      shopMore: '    account: acme-shop\n',
      ...more,
    });

  test.each([
    ['keeps bucket, order and serialization, and waiting calls leave with the new value', {}, 'shpat_new', 1],
    [
      'without an account: there is a new bucket, and waiting calls leave with the old value',
      { shopMore: '' },
      'shpat_sim',
      2,
    ],
  ])('whose value changes %s', async (_words, more, sentWith, buckets) => {
    const { behindOccupied, gateway, orders } = await start(more);
    const { replies, log } = await behindOccupied(
      many(12, (at) => at),
      undefined,
      () => gateway.reload(gateway.yaml.replace('value: shpat_sim', 'value: shpat_new')),
    );
    expect(tally(replies)).toEqual({ 200: 12 });
    expect(new Set(log.map(({ key }) => key))).toEqual(new Set([sentWith]));
    expect([inversions(log), maxInFlight(log.slice(1))]).toEqual([0, 1]);
    expect((await orders(13)).status).toBe(200);
    expect(bucketsOf(gateway, 'shop')).toHaveLength(buckets);
  });

  test('shares one quota with every credential of the same account, and its name is shown nowhere', async () => {
    const { orders, shop, gateway } = await start({
      workspaces: {
        main: highCeilings,
        acme: own('shop', 'shpat_acme', '    accounts: { shop: acme-shop }\n'),
        beta: own('shop', 'shpat_beta', '    accounts: { shop: beta-shop }\n'),
      },
    });
    for (const workspace of ['main', 'acme', 'beta'])
      expect((await orders(1, { workspace })).status).toBe(200);
    expect(shop.log.map(({ key }) => key)).toEqual(['shpat_sim', 'shpat_acme', 'shpat_beta']);
    const buckets = bucketsOf(gateway, 'shop').map(({ bucket }) => bucket);
    expect(buckets).toHaveLength(2);
    const shown = [await adminText(gateway, '/metrics'), await adminText(gateway, '/activity')];
    expect([...gateway.logs, ...shown, ...buckets].join('\n')).not.toContain('acme-shop');
  });
});

test('calls of several forms share the quota that their responses name, and hold nothing of another one', async () => {
  const clock = skippingClock();
  let endsAt = 0;
  const { ask, arrivals, closed } = await scripted(
    ({ path, at }) => {
      const name = path.startsWith('/search') ? 'search' : 'core';
      const isRefused = name === 'search' && at < endsAt;
      const wait = isRefused ? { 'retry-after': String(Math.ceil((endsAt - at) / 1_000)) } : {};
      return { status: isRefused ? 429 : 200, headers: { 'x-ratelimit-resource': name, ...wait } };
    },
    {
      clock,
      upstreams: {
        api: 'credential: "Bearer x", maxWaitSeconds: 75, speaks: { bucketBy: [credential, "answer:x-ratelimit-resource"] }',
      },
    },
  );
  const get = async (path: string): Promise<number> => (await ask(`/via/api${path}`)).status;
  expect([await get('/search/issues?q=0'), await get('/search/labels?q=0')]).toEqual([200, 200]);
  endsAt = clock.monotonic() + 60_000;
  const calls = [get('/search/issues?q=1')];
  await closed();
  const seen = arrivals.length;
  calls.push(...['/search/labels?q=1', '/search/labels?q=2', '/search/issues?q=2'].map(get));
  expect(await get('/user')).toBe(200);
  expect(arrivals.slice(seen).map(({ path }) => path)).toEqual(['/user']);
  let isOver = false;
  const answered = Promise.all(calls).finally(() => (isOver = true));
  await until(() => {
    if (!isOver) clock.skip(1_000);
    return isOver;
  });
  expect(await answered).toEqual([200, 200, 200, 200]);
  expect(arrivals.filter(({ status }) => status === 429)).toHaveLength(1);
});

const chatPath = '/via/model/v1/chat/completions';
const messages = [{ role: 'user', content: 'hello' }];
const tokens = (limits: string) => ({ upstreams: { model: `kind: language-model, limits: { ${limits} }` } });

test('a call whose response states no levels is charged what the usage in its stream says', async () => {
  const statusesFor = async (total: number, calls: number, more: object) => {
    const usage = { prompt_tokens: 3, completion_tokens: total - 3, total_tokens: total };
    const chunks = [
      { choices: [{ delta: { content: 'hi' } }], usage: null },
      { choices: [], usage },
    ];
    const body = chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('');
    const headers = { 'content-type': 'text/event-stream' };
    const { ask } = await scripted(() => ({ headers, body }), tokens('tokensPerMinute: 30000'));
    const statuses: number[] = [];
    for (let sent = 0; sent < calls; sent += 1) {
      const json = { model: 'm', messages, ...more };
      const { status, headers: told } = await ask(chatPath, { json, headers: { prefer: 'wait=2' } });
      statuses.push(status);
      // 20,000 tokens are used, of which 500 drain in a second, and the next call is expected to use at least as many.
      if (status === 429) expect(Math.abs(Number(told.get('retry-after')) - 26)).toBeLessThanOrEqual(16);
    }
    return statuses;
  };
  // What max_tokens reserved too much is given back, so that the sixth call of a minute leaves at once.
  expect(await statusesFor(10, 8, { max_tokens: 5_000 })).toEqual(Array(8).fill(200));
  expect(await statusesFor(20_000, 4, {})).toEqual([200, 429, 429, 429]);
});

test.each(['tokensPerMinute: 30000', 'tokensPerDay: 30000'])(
  'a refused call that asked for a billion tokens delays no other call: %s',
  async (limits) => {
    const { ask } = await scripted(
      ({ body }) => ({ status: body.includes('max_tokens') ? 400 : 200 }),
      tokens(limits),
    );
    const statusOf = async (more: object): Promise<number> =>
      (await ask(chatPath, { json: { model: 'm', messages, ...more }, headers: { prefer: 'wait=2' } }))
        .status;
    expect([await statusOf({ max_tokens: 1e9 }), await statusOf({})]).toEqual([400, 200]);
  },
);
