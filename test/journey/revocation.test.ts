import { afterEach, describe, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { fastClock } from '../support/fast-clock.ts';
import { gatewayYaml } from '../support/gateway.ts';
import { serve } from './process.ts';
import { highCeilings, startWorld, tally, type World } from './world.ts';

let world: World | null = null;
afterEach(async () => {
  await world?.close();
  world = null;
});

/** Resolves when so many calls wait, as the process itself counts. */
async function waitingInTheLine(adminUrl: string, count: number): Promise<void> {
  for (;;) {
    const page = await (await fetch(`${adminUrl}/metrics`)).text();
    if (page.includes(`sluice_queue_depth{upstream="shop"} ${count}\n`)) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const hashIn = (yaml: string): string => /sha256:[0-9a-f]{64}/.exec(yaml)?.[0] ?? '';
describe('a removed API key', () => {
  test('is refused at once, also for waiting calls, and calls in flight get their responses', async () => {
    world = await startWorld();
    const { orders, shop, settled, gateway } = world;
    await orders(0);
    shop.fault({ kind: 'slow', ms: 3_000 });
    let isFirstOver = false;
    const first = orders(1).finally(() => (isFirstOver = true));
    await settled(0, 1);
    const waiting = [orders(2), orders(3)];
    await settled(2);
    await gateway.reload(gateway.yaml.replace(hashIn(gateway.yaml), createKey().hash));
    const refused = await Promise.all(waiting);
    expect(tally(refused)).toEqual({ 401: 2 });
    expect(refused[0]?.json).toMatchObject({ code: 'unauthenticated' });
    expect(refused[0]?.headers.get('www-authenticate')).toMatch(/^Bearer/);
    expect(isFirstOver).toBe(false);
    expect((await first).status).toBe(200);
    expect((await orders(4)).status).toBe(401);
    expect(shop.log.map(({ nonce }) => nonce)).toEqual(['0', '1']);
  });
});

describe('the only API key of a workspace', () => {
  test.each([
    [
      'an empty list of keys',
      'nobody can call with workspaces that have no valid key',
      (yaml: string) => yaml.replace(/keys: \[.*\]/, 'keys: []'),
    ],
    [
      'no workspace at all',
      'nobody can call: the configuration has no workspaces',
      (yaml: string) => yaml.replace(/^workspaces:[^]*$/m, 'workspaces: {}'),
    ],
  ])('is revoked within ten seconds by a file with %s', async (_, warning, without) => {
    const shop = createCommerceSimulator({ latency: { minMs: 0, maxMs: 0 } });
    const { url } = await shop.listen();
    const { key, hash } = createKey();
    const upstreams = `  shop:\n    kind: commerce\n    origins: ["${url}"]\n    allowPrivateAddresses: true\n    credential: shpat_sim\n`;
    const yaml = gatewayYaml({ upstreams }, { acme: hash });
    const served = await serve(yaml);
    try {
      const call = (nonce: string, signal: AbortSignal | null = null): Promise<Response> =>
        fetch(`${served.url}/via/shop/admin/api/2026-10/shop.json`, {
          // A call that waits for longer than ten seconds is refused for its wait, not with 401.
          headers: { authorization: `Bearer ${key}`, 'x-nonce': nonce, prefer: 'wait=10' },
          signal,
        });
      expect((await call('warm')).status).toBe(200);
      shop.fault({ kind: 'hang' });
      const leaving = new AbortController();
      const inFlight = call('in flight', leaving.signal).catch(() => null);
      while (shop.log.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
      const waiting = [call('waiting'), call('waiting')];
      await waitingInTheLine(served.adminUrl, 2);
      const warned = served.saying(warning);
      served.write(without(yaml));
      expect(tally(await Promise.all(waiting))).toEqual({ 401: 2 });
      expect((await call('late')).status).toBe(401);
      expect(JSON.parse(await warned)).toMatchObject({ level: 'warn' });
      expect(served.lines.join('\n')).not.toContain('acme');
      leaving.abort();
      await inFlight;
      expect(shop.log.map(({ nonce }) => nonce)).toEqual(['warm', 'in flight']);
    } finally {
      await served.close();
      await shop.close();
    }
  });
});

describe('an API key that expires', () => {
  test('is refused from then on, and within ten seconds for waiting calls', async () => {
    const clock = fastClock(20);
    world = await startWorld({ clock });
    const { orders, shop, settled, gateway } = world;
    await orders(0);
    const hash = hashIn(gateway.yaml);
    shop.fault({ kind: 'slow', ms: 20_000 });
    const first = orders(1);
    await settled(0, 1);
    const waiting = orders(2);
    await settled(1, 1);
    const expires = clock.now() + 4_000;
    const dated = `{ hash: "${hash}", expires: "${new Date(expires).toISOString()}" }`;
    await gateway.reload(gateway.yaml.replace(`{ hash: "${hash}" }`, dated));
    const waited = await waiting;
    const refusedAt = clock.now();
    expect(waited.status).toBe(401);
    expect(refusedAt).toBeGreaterThanOrEqual(expires);
    expect(refusedAt).toBeLessThan(expires + 10_000);
    expect((await first).status).toBeLessThan(600);
    expect((await orders(3)).status).toBe(401);
    expect(shop.log.map(({ nonce }) => nonce)).toEqual(['0', '1']);
  });
});

test('the rotation of an API key with an overlap fails no call', async () => {
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
  await gateway.reload(only([old.hash, next.hash]));
  await calm();
  inUse = next.key;
  await calm();
  await gateway.reload(only([next.hash]));
  await calm();
  ended = true;
  await traffic;
  expect(tally(statuses)).toEqual({ 200: statuses.length });
  expect((await chat(2, { key: old.key })).status).toBe(401);
});
