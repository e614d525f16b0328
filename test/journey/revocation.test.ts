/** An API key that expires, or loses an upstream, while calls wait and are in flight. `reload-and-drain.test.ts` has the file of a process. */
import { afterEach, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { until } from '../support/until.ts';
import { closeAll, nonces, startWorld } from './world.ts';

afterEach(closeAll);

/** A call of the shop that takes so long, and one that waits behind it. */
async function oneWaits(ms: number) {
  const world = await startWorld({ clock: fastClock(20), workspaces: { acme: '' } });
  world.shop.fault({ kind: 'slow', ms });
  const first = world.orders(1);
  await until(() => world.shop.log.length === 1);
  const waiting = world.orders(2);
  await world.settled(1, 1);
  return { ...world, first, waiting };
}

test('an API key that expires is refused from then on, and within ten seconds for waiting calls', async () => {
  const { clock, first, waiting, orders, shop, gateway } = await oneWaits(20_000);
  const expires = clock.now() + 4_000;
  const dated = `, expires: "${new Date(expires).toISOString()}" }`;
  await gateway.reload(gateway.yaml.replace(/(sha256:[0-9a-f]{64}") }/, `$1${dated}`));
  expect((await waiting).status).toBe(401);
  const refusedAt = clock.now();
  expect(refusedAt).toBeGreaterThanOrEqual(expires);
  expect(refusedAt).toBeLessThan(expires + 10_000);
  await first;
  expect((await orders(3)).status).toBe(401);
  expect(nonces(shop.log)).toEqual(['1']);
});

test('a call that waits for an upstream is not sent once a reload has taken the upstream from its workspace', async () => {
  const { first, waiting, shop, gateway } = await oneWaits(5_000);
  await gateway.reload(gateway.yaml.replace('  acme:\n', '  acme:\n    upstreams: [openai]\n'));
  expect(await waiting).toMatchObject({ status: 403, json: { code: 'target_forbidden' } });
  expect((await first).status).toBe(200);
  expect(nonces(shop.log)).toEqual(['1']);
});
