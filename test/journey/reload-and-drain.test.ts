/** `sluice serve` as a process: a changed file and SIGHUP, a revoked API key, and SIGTERM. */
import { writeFileSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { createKey } from '../../src/cli/keys.ts';
import { clean, serve } from '../cli/started.ts';
import { fastClock } from '../support/fast-clock.ts';
import { gatewayYaml } from '../support/gateway.ts';
import { startRedis } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { closeAll, metric, nonces, opened, startWorld, tally } from './world.ts';

const shop = createCommerceSimulator({ latency: { minMs: 0, maxMs: 0 } });
const { key, hash } = createKey();
let origin = '';
let served: Awaited<ReturnType<typeof serve>>;

const yamlWith = (ceiling: number, server = '  drainDelaySeconds: 0\n  drainSeconds: 4\n'): string =>
  gatewayYaml(
    {
      upstreams: `  shop: { kind: commerce, origins: ["${origin}"], allowPrivateAddresses: true, credential: { header: x-shopify-access-token, value: shpat_sim } }\n`,
      server,
      workspaces: { acme: `    requestsPerMinute: { shop: ${ceiling} }\n` },
    },
    { acme: hash },
  );
const get = async (
  at: string,
  headers: Readonly<Record<string, string>> = {},
  signal: AbortSignal | null = null,
) => {
  const url = `${served.url}/via/shop/admin/api/2026-10/shop.json`;
  const response = await fetch(url, {
    headers: { authorization: `Bearer ${key}`, 'x-nonce': at, ...headers },
    signal,
  });
  return { status: response.status, headers: response.headers, text: await response.text() };
};
/** Resolves when so many calls have been sent to the shop or wait, and at least `waiting` of them wait. */
const allHere = (calls: number, waiting = 0): Promise<void> =>
  until(async () => {
    const depth = await metric(served, 'sluice_queue_depth');
    return depth >= waiting && shop.log.length + depth >= calls;
  });
async function start(yaml: string): Promise<void> {
  served = await serve(yaml);
  opened.push(clean);
}
beforeAll(async () => ({ url: origin } = await shop.listen()));
afterAll(() => shop.close());
beforeEach(() => shop.reset());
afterEach(closeAll);

const noKey = (yaml: string) => yaml.replace(/keys: \[.*\]/, 'keys: []');
const nobody = (yaml: string) => yaml.replace(/^workspaces:[^]*$/m, 'workspaces: {}');
test.each([
  ['an empty list of keys', 'nobody can call with workspaces that have no valid key', noKey],
  ['no workspace at all', 'nobody can call: the configuration has no workspaces', nobody],
])(
  'a changed configuration file with %s revokes the only API key within ten seconds',
  async (_words, warning, without) => {
    await start(yamlWith(100));
    shop.fault({ kind: 'hang' });
    const leaving = new AbortController();
    const inFlight = get('in flight', {}, leaving.signal).catch(() => null);
    await until(() => shop.log.length === 1);
    // A call that waits for longer than ten seconds is refused for its wait, not with 401.
    const waiting = [1, 2].map(() => get('waiting', { prefer: 'wait=10' }));
    await allHere(3, 2);
    writeFileSync(served.path, without(yamlWith(100)));
    expect(tally(await Promise.all(waiting))).toEqual({ 401: 2 });
    expect((await get('late')).status).toBe(401);
    await served.saying(warning);
    expect(served.printed()).toMatch(RegExp(`"level":"warn".*${warning}`));
    expect(served.printed()).not.toContain('acme');
    leaving.abort();
    await inFlight;
    expect(nonces(shop.log)).toEqual(['in flight']);
  },
);

describe('a process that ends', () => {
  const draining = ({ status, headers }: Awaited<ReturnType<typeof get>>) => {
    expect([status, headers.get('sluice-error')]).toEqual([503, 'draining']);
    expect(Number(headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    expect(headers.get('x-should-retry')).not.toBe('false');
  };

  test('answers the calls that can still leave, and accepts no more', async () => {
    await start(yamlWith(100));
    shop.fault({ kind: 'slow', ms: 500 });
    const calls = [get('first')];
    await until(() => shop.log.length === 1);
    calls.push(get('held'), get('held'));
    await allHere(3);
    served.signal('SIGTERM');
    await served.saying('draining');
    expect((await fetch(`${served.adminUrl}/readyz`).catch(() => null))?.status ?? 503).toBe(503);
    expect(tally(await Promise.all(calls))).toEqual({ 200: 3 });
    expect(await served.ended).toBe(0);
    // The log says how it ended, in its last line, and every line is JSON.
    const lines = served
      .printed()
      .trim()
      .split('\n')
      .map((line): unknown => JSON.parse(line));
    expect(lines.at(-1)).toMatchObject({ message: 'ended', cut: 0 });
    await expect(get('late')).rejects.toThrow();
    expect(nonces(shop.log)).toEqual(['first', 'held', 'held']);
  });

  test('refuses waiting calls also where a drain is no longer than the time in which calls are still accepted', async () => {
    // A refusal asks Redis how much of the ceiling is left: it takes a round trip, which has to fit before the end.
    const redis = await startRedis();
    opened.push(() => redis.stop());
    await start(
      `${yamlWith(1, '  drainSeconds: 2\n')}\nredis: { url: "${redis.url}", commandTimeoutMs: 2000 }\n`,
    );
    await get('first');
    const held = Array.from({ length: 8 }, () => get('held', { prefer: 'wait=600' }));
    await allHere(9, 8);
    served.signal('SIGTERM');
    for (const reply of await Promise.all(held)) draining(reply);
    expect(await served.ended).toBe(0);
  });

  test('refuses a call that still waits when the drain ends, although it was expected to leave', async () => {
    await start(yamlWith(100));
    shop.fault({ kind: 'hang' });
    const first = get('first').catch(() => 'cut');
    await until(() => shop.log.length === 1);
    const held = get('held');
    await allHere(2);
    served.signal('SIGTERM');
    draining(await held);
    expect(await first).toBe('cut');
    await served.ended;
    expect(served.printed()).toMatch(/"cut":1\b.*"ended"/);
  });
});

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
