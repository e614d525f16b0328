import { afterEach, describe, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { fastClock } from '../support/fast-clock.ts';
import { highCeilings, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

const hashIn = (yaml: string): string => /sha256:[0-9a-f]{64}/.exec(yaml)?.[0] ?? '';
describe('a key that was removed', () => {
  test('is refused at once, also for calls that wait; what is in flight gets its answer', async () => {
    world = await startWorld();
    const { orders, shop, settled, gateway } = world;
    await orders(0);
    shop.fault({ kind: 'slow', ms: 1_500 });
    const first = orders(1);
    await settled(0, 1);
    const waiting = [orders(2), orders(3)];
    await settled(2);
    gateway.reconfigure(gateway.yaml.replace(hashIn(gateway.yaml), createKey().hash));
    const refused = await Promise.all(waiting);
    expect(tally(refused)).toEqual({ 401: 2 });
    expect(refused[0]?.json).toMatchObject({ code: 'unauthenticated' });
    expect(refused[0]?.headers.get('www-authenticate')).toMatch(/^Bearer/);
    expect(Math.max(...refused.map(({ tookMs }) => tookMs))).toBeLessThan(1_400);
    expect((await first).status).toBe(200);
    expect((await orders(4)).status).toBe(401);
    expect(shop.log.map(({ nonce }) => nonce)).toEqual(['0', '1']);
  });
});

describe('a key that expires', () => {
  test('is refused from then on, within ten seconds also for calls that wait', async () => {
    const clock = fastClock(20);
    world = await startWorld({ clock });
    const { orders, shop, settled, gateway } = world;
    await orders(0);
    const hash = hashIn(gateway.yaml);
    const expires = clock.now() + 4_000;
    const dated = `{ hash: "${hash}", expires: "${new Date(expires).toISOString()}" }`;
    gateway.reconfigure(gateway.yaml.replace(`{ hash: "${hash}" }`, dated));
    shop.fault({ kind: 'slow', ms: 20_000 });
    const first = orders(1);
    await settled(0, 1);
    const waited = await orders(2);
    const refusedAt = clock.now();
    expect(waited.status).toBe(401);
    expect(refusedAt).toBeGreaterThanOrEqual(expires);
    expect(refusedAt).toBeLessThan(expires + 10_000);
    expect((await first).status).toBeLessThan(600);
    expect((await orders(3)).status).toBe(401);
    expect(shop.log.map(({ nonce }) => nonce)).toEqual(['0', '1']);
  });
});

test('rotation with an overlap fails no call', async () => {
  world = await startWorld({ workspaces: { acme: highCeilings } });
  const { chat, gateway } = world;
  const old = { key: gateway.keys['acme'] ?? '', hash: hashIn(gateway.yaml) };
  const next = createKey();
  const only = (hashes: readonly string[]): string =>
    gateway.yaml.replace(
      `[{ hash: "${old.hash}" }]`,
      `[${hashes.map((hash) => `{ hash: "${hash}" }`).join(', ')}]`,
    );
  let inUse = old.key;
  let ended = false;
  const statuses: { status: number }[] = [];
  const traffic = Promise.all(
    [0, 1, 2, 3].map(async () => {
      while (!ended) statuses.push(await chat(1, { key: inUse }));
    }),
  );
  const calm = async (): Promise<void> => {
    const target = statuses.length + 12;
    while (statuses.length < target) await new Promise((resolve) => setTimeout(resolve, 2));
  };
  await calm();
  gateway.reconfigure(only([old.hash, next.hash]));
  await calm();
  inUse = next.key;
  await calm();
  gateway.reconfigure(only([next.hash]));
  await calm();
  ended = true;
  await traffic;
  expect(tally(statuses)).toEqual({ 200: statuses.length });
  expect((await chat(2, { key: old.key })).status).toBe(401);
});
