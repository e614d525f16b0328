import { afterEach, describe, expect, test } from '@jest/globals';
import { highCeilings, inversions, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

/** One app of one store, whose tokens take from one bucket. */
const stores = {
  '127.0.0.1': { apps: { 'app-sim': ['shpat_sim', 'shpat_new', 'shpat_acme', 'shpat_beta'] } },
};
const start = (more: Partial<Parameters<typeof startWorld>[0]> = {}): Promise<World> =>
  startWorld({
    shop: { stores, latency: { minMs: 1, maxMs: 4 } },
    shopMore: '    account: acme-shop\n',
    ...more,
  });
const bucketsOf = ({ gateway }: World): string[] =>
  gateway.service.gateway.parts.pressure
    .buckets()
    .filter(({ upstream }) => upstream === 'shop')
    .map(({ snapshot }) => snapshot.bucket);

/** Twelve calls wait while the credential's value changes, twelve come after it. */
async function changeValueUnderLoad(): Promise<void> {
  const { orders, settled, occupy, gateway, shop } = world;
  const release = await occupy();
  const calls: ReturnType<typeof orders>[] = [];
  for (let at = 1; at <= 12; at += 1) {
    calls.push(orders(at));
    await settled(at, 1);
  }
  await gateway.reload(gateway.yaml.replace('value: shpat_sim', 'value: shpat_new'));
  await release();
  for (let at = 13; at <= 24; at += 1) calls.push(orders(at));
  expect(tally(await Promise.all(calls))).toEqual({ 200: 24 });
  expect(shop.log).toHaveLength(25);
}

describe('a credential with an account', () => {
  test('keeps bucket, order and serialization when its value changes, and waiting calls leave with the new value', async () => {
    world = await start();
    await changeValueUnderLoad();
    const { shop } = world;
    const log = shop.log.slice(1);
    expect(new Set(log.map(({ key }) => key))).toEqual(new Set(['shpat_new']));
    expect(inversions(log)).toBe(0);
    expect(Math.max(...log.slice(1).map(({ inFlight }) => inFlight.scope))).toBe(1);
    expect(bucketsOf(world)).toHaveLength(1);
  });

  test('shares one quota with every credential of the same account: two workspaces use one bucket', async () => {
    const own = (token: string, account: string): string =>
      `${highCeilings}    credentials: { shop: ${token} }\n    accounts: { shop: ${account} }\n`;
    world = await start({
      shopMore: '    account: acme-shop\n',
      workspaces: {
        main: highCeilings,
        acme: own('shpat_acme', 'acme-shop'),
        beta: own('shpat_beta', 'beta-shop'),
      },
    });
    const { orders, shop } = world;
    for (const workspace of ['main', 'acme', 'beta']) {
      expect((await orders(1, { workspace })).status).toBe(200);
    }
    expect(shop.log.map(({ key }) => key)).toEqual(['shpat_sim', 'shpat_acme', 'shpat_beta']);
    expect(bucketsOf(world)).toHaveLength(2);
  });
});

test('a credential without an account gets a new bucket with a new value, and waiting calls leave with the old value', async () => {
  world = await start({ shopMore: '' });
  await changeValueUnderLoad();
  const keys = world.shop.log.slice(1).map(({ key }) => key);
  expect(keys.filter((key) => key === 'shpat_sim')).toHaveLength(12);
  expect(bucketsOf(world)).toHaveLength(2);
});

test('the name of an account appears in no log line, metric or bucket name', async () => {
  world = await start();
  const { orders, gateway } = world;
  await orders(1);
  const metrics = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
  const activity = await (await fetch(`${gateway.adminUrl}/activity`)).text();
  expect([...gateway.logs, metrics, activity, ...bucketsOf(world)].join('\n')).not.toContain('acme-shop');
});
