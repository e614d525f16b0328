import { afterEach, expect, test } from '@jest/globals';
import { inversions, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

test('a workspace never has two calls in flight on a commerce bucket, REST and GraphQL together', async () => {
  world = await startWorld({ shop: { latency: { minMs: 1, maxMs: 12 } } });
  const { orders, graphql, shop } = world;
  const calls = Array.from({ length: 40 }, (_, at) =>
    at % 2 === 0
      ? orders(at)
      : graphql('query($nonce: String) { shop { name } }', { variables: { nonce: String(at) } }),
  );
  expect(tally(await Promise.all(calls))).toEqual({ 200: 40 });
  expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
  expect(shop.log.filter(({ decision }) => decision !== 'admitted')).toEqual([]);
});

test('the next call of a commerce bucket leaves in order when the last byte of the response before it has arrived', async () => {
  world = await startWorld({ shop: { latency: { minMs: 1, maxMs: 3 } } });
  const { orders, shop, settled, occupy } = world;
  const release = await occupy();
  const calls: ReturnType<typeof orders>[] = [];
  for (let at = 1; at <= 25; at += 1) {
    calls.push(orders(at));
    await settled(at, 1);
  }
  await release();
  await Promise.all(calls);
  // Without the occupier: the upstream may notice its end later than we do.
  const log = shop.log.slice(1);
  expect(log).toHaveLength(25);
  expect(inversions(log)).toBe(0);
  for (const [at, entry] of log.entries()) {
    if (at > 0) expect(entry.arrivedT).toBeGreaterThanOrEqual(log[at - 1]?.t ?? Infinity);
  }
  expect(Math.max(...log.slice(1).map(({ inFlight }) => inFlight.key))).toBe(1);
});

test('shops that share a credential share its bucket unless the configuration separates them', async () => {
  world = await startWorld({
    upstreams:
      '  joined:\n    kind: commerce\n    origins: ["http://*.localhost:1"]\n    allowPrivateAddresses: true\n    credential: { header: x-shopify-access-token, value: shpat_sim }\n',
  });
  const { gateway, call } = world;
  const { port } = new URL(world.shopUrl);
  const both = (more: string): string =>
    gateway.yaml
      .replace('http://*.localhost:1', `http://*.localhost:${port}`)
      .replace(
        '    kind: commerce\n    origins: ["http://*',
        `    kind: commerce\n${more}    origins: ["http://*`,
      );
  const seen = new Set<string>();
  const counted = async (): Promise<number> => {
    const before = seen.size;
    for (const store of ['one', 'two']) {
      await call(`/via/joined/${store}.localhost:${port}/admin/api/2026-10/shop.json`);
      // Where such a host has no address nothing is sent, and its bucket is soon forgotten.
      for (const { snapshot } of gateway.service.gateway.parts.pressure.buckets()) seen.add(snapshot.bucket);
    }
    return seen.size - before;
  };
  await gateway.reload(both(''));
  expect(await counted()).toBe(1);
  await gateway.reload(both('    bucketBy: [credential, host]\n'));
  expect(await counted()).toBe(2);
});
