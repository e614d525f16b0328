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
