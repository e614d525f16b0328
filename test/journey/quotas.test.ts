/** Which calls share a quota: what one of them learned holds for the others, and they leave one after the other at the pace of the one quota. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { skippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';
import { scripted } from './scripted.ts';
import { adminText, bucketsOf, closeAll, highCeilings, inversions, many, maxInFlight } from './world.ts';
import { startWorld, tally, type World, type WorldOptions } from './world.ts';

afterEach(closeAll);

const own = (upstream: string, credential: string, more = ''): string =>
  `${highCeilings}    credentials: { ${upstream}: "${credential}" }\n${more}`;

test('tokens of one app of a shop use one bucket once its responses have named the app', async () => {
  const apps = { 'app-sim': ['shpat_sim', 'shpat_two'], 'app-b': ['shpat_b'] };
  const { orders, shop, gateway, settled } = await startWorld({
    shop: { stores: { '127.0.0.1': { apps } } },
    workspaces: { acme: highCeilings, beta: own('shop', 'shpat_two'), gamma: own('shop', 'shpat_b') },
  });
  const names = ['acme', 'beta', 'gamma'];
  for (const workspace of names) await orders(1, { workspace });
  const holding = new AbortController();
  const { signal } = holding;
  const held = names.map((workspace) => {
    shop.fault({ kind: 'hang' });
    return orders(2, { workspace, signal }).catch(() => {});
  });
  await settled(0, 3);
  expect(bucketsOf(gateway).filter(({ inFlight }) => inFlight > 0)).toHaveLength(2);
  holding.abort();
  await Promise.all(held);
});

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

describe('an upstream whose responses name the quota of their call', () => {
  const windowMs = 60_000;

  async function start() {
    const clock = skippingClock();
    const resources = Object.entries({ core: 5_000, search: 30, code_search: 10 }).map(([name, limit]) => ({
      name,
      limit,
      used: 0,
      endsAt: clock.monotonic() + windowMs,
    }));
    const resourceOf = (path: string) => {
      const name = path.startsWith('/search/code')
        ? 'code_search'
        : path.startsWith('/search')
          ? 'search'
          : 'core';
      return resources.find((each) => each.name === name) as (typeof resources)[number];
    };
    const fields =
      'limit: x-ratelimit-limit, remaining: x-ratelimit-remaining, reset: { name: x-ratelimit-reset, as: seconds }';
    const api = await scripted(
      ({ path, at }) => {
        const resource = resourceOf(path);
        if (at >= resource.endsAt) Object.assign(resource, { used: 0, endsAt: at + windowMs });
        const hasRoom = resource.used < resource.limit;
        if (hasRoom) resource.used += 1;
        const reset = String(Math.ceil((resource.endsAt - at) / 1000));
        const headers = {
          'x-ratelimit-limit': String(resource.limit),
          'x-ratelimit-remaining': String(resource.limit - resource.used),
          'x-ratelimit-reset': reset,
          'x-ratelimit-resource': resource.name,
          'retry-after': hasRoom ? '' : reset,
        };
        return { status: hasRoom ? 200 : 429, headers };
      },
      {
        clock,
        upstreams: {
          api: `credential: "Bearer x", maxWaitSeconds: 75, speaks: { fields: { ${fields} }, bucketBy: [credential, "answer:x-ratelimit-resource"] }`,
        },
      },
    );
    const ask = async (path: string): Promise<number> => (await api.ask(`/via/api${path}`)).status;
    const asked = (count: number, path: string) => Promise.all(many(count, (n) => ask(`${path}${n}`)));
    /** What waits for the end of a window, which comes sooner. */
    const later = async <Result>(waiting: Promise<Result>): Promise<Result> => {
      let isOver = false;
      void waiting.finally(() => (isOver = true));
      await until(() => {
        if (!isOver) clock.skip(1_000);
        return isOver;
      });
      return waiting;
    };
    const refused = (): number => api.arrivals.filter(({ status }) => status === 429).length;
    return { ...api, resourceOf, ask, asked, later, refused };
  }

  test('has one that is used up hold nothing of another one', async () => {
    const { ask, asked, later, refused, arrivals } = await start();
    await asked(10, '/search/code?q=');
    const held = ask('/search/code?q=more');
    const others = [
      ...(await asked(10, '/search/issues?q=')),
      ...(await asked(20, '/repos/acme/shop/issues/')),
    ];
    expect(new Set(others)).toEqual(new Set([200]));
    // The window of the held call is far from over.
    expect(arrivals.filter(({ path, status }) => path.endsWith('more') && status === 200)).toEqual([]);
    expect(await later(held)).toBe(200);
    expect(refused()).toBeLessThanOrEqual(1);
  });

  test('has calls of several forms share the one that their responses name', async () => {
    const { ask, later, refused, arrivals, resourceOf, closed } = await start();
    expect([await ask('/search/issues?q=0'), await ask('/search/labels?q=0')]).toEqual([200, 200]);
    resourceOf('/search').used = 30;
    const first = ask('/search/issues?q=1');
    await closed();
    const seen = arrivals.length;
    const others = ['/search/labels?q=1', '/search/labels?q=2', '/search/issues?q=2'].map(ask);
    expect(await ask('/user')).toBe(200);
    expect(arrivals.slice(seen).map(({ path }) => path)).toEqual(['/user']);
    expect(await later(Promise.all([first, ...others]))).toEqual([200, 200, 200, 200]);
    expect(refused()).toBe(1);
  });
});
