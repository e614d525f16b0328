import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { gatewayYaml } from '../support/gateway.ts';
import { startRedis } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { sumOf } from '../wire/stack-fixture.ts';
import { serve, type ServedProcess } from './process.ts';

const shop = createCommerceSimulator({ latency: { minMs: 0, maxMs: 0 } });
const { key, hash } = createKey();
let upstreams = '';
let served: ServedProcess;

const yamlWith = (ceiling: number, server = ''): string =>
  gatewayYaml(
    { upstreams, server, workspaces: { acme: `    requestsPerMinute: { shop: ${ceiling} }\n` } },
    { acme: hash },
  );
const get = (
  at: string,
  signal: AbortSignal | null = null,
  headers: Readonly<Record<string, string>> = {},
): Promise<Response> =>
  fetch(`${served.url}/via/shop/admin/api/2026-10/shop.json`, {
    headers: { authorization: `Bearer ${key}`, 'x-nonce': at, ...headers },
    signal,
  });
/** Resolves when so many calls have been sent to the shop or wait, and at least `waiting` of them wait. */
const allHere = (calls: number, waiting = 0): Promise<void> =>
  until(async () => {
    const page = await (await fetch(`${served.adminUrl}/metrics`)).text();
    const depth = sumOf(page, 'sluice_queue_depth');
    return depth >= waiting && shop.log.length + depth >= calls;
  });
const policyNow = async (): Promise<string | null> => (await get('policy')).headers.get('ratelimit-policy');
async function reload(yaml: string): Promise<void> {
  const reloaded = served.saying('configuration reloaded');
  served.write(yaml);
  served.signal('SIGHUP');
  await reloaded;
}
beforeAll(async () => {
  const { url } = await shop.listen();
  upstreams = `  shop:\n    kind: commerce\n    origins: ["${url}"]\n    allowPrivateAddresses: true\n    credential: { header: x-shopify-access-token, value: shpat_sim }\n`;
});
beforeEach(async () => {
  shop.reset();
  served = await serve(yamlWith(100, '  drainDelaySeconds: 0\n  drainSeconds: 4\n'));
});
afterEach(() => served.close());
afterAll(() => shop.close());

test('a changed configuration file is applied, an invalid one is reported and ignored, and SIGHUP reads the file again', async () => {
  expect(await policyNow()).toBe('"workspace";q=100;w=60');
  const reported = served.saying('upstreams.shop.kind');
  served.write(yamlWith(100).replace('kind: commerce', 'kind: commerse'));
  served.signal('SIGHUP');
  expect(await reported).toContain('commerce');
  expect(served.lines.join('\n')).toContain('The configuration in use stays');
  expect(await policyNow()).toBe('"workspace";q=100;w=60');
  await reload(yamlWith(77));
  expect(await policyNow()).toBe('"workspace";q=77;w=60');
});

test('a credential that is changed in the .env beside the file is sent after SIGHUP', async () => {
  const tokenSent = async (): Promise<unknown> => {
    await (await get('token')).text();
    return shop.log.at(-1)?.key;
  };
  const tokens = ['shpat_sim', 'shpat_one', 'shpat_two'];
  shop.configure({ stores: { '127.0.0.1': { apps: { 'app-sim': tokens } } } });
  served.write(yamlWith(100).replace('shpat_sim', "'${SHOP_TOKEN_OF_A_TEST}'"));
  for (const token of tokens.slice(1)) {
    const reloaded = served.saying('configuration reloaded');
    served.writeEnv(`SHOP_TOKEN_OF_A_TEST=${token}\n`);
    served.signal('SIGHUP');
    await reloaded;
    await until(async () => (await tokenSent()) === token, 200);
  }
});

test('a changed share of logged successes is applied', async () => {
  await reload(`${yamlWith(100)}log: { sampleSuccesses: 0 }\n`);
  await (await get('unseen')).text();
  await reload(yamlWith(100));
  expect(served.lines.filter((line) => line.includes('call ended'))).toEqual([]);
  const ended = served.saying('call ended');
  await (await get('seen')).text();
  expect(await ended).toContain('"outcome":"ok"');
});

test('an invalid configuration file is one log line at level error, without the name of a workspace', async () => {
  const refused = served.saying('configuration refused, the old one stays');
  served.write(`${yamlWith(100)}    weight: -1\n`.replace('kind: commerce', 'kind: commerse'));
  served.signal('SIGHUP');
  const line = await refused;
  expect(JSON.parse(line)).toMatchObject({
    level: 'error',
    problems: 2,
    sections: 'upstreams, workspaces',
    lines: expect.stringMatching(/^\d+, \d+$/),
  });
  expect(line).not.toContain('acme');
});

test('another default wait holds for calls that come after the reload, not for those that wait', async () => {
  await reload(yamlWith(2));
  for (const at of ['first', 'second']) await (await get(at)).text();
  const waiting = get('waiting');
  await allHere(3, 1);
  await reload(yamlWith(2, '  maxWaitSeconds: 1\n'));
  const refused = await get('arriving');
  expect(refused.status).toBe(429);
  // For its wait of a second: a process that stands still for a moment before it refuses says that the call has waited.
  expect(await refused.text()).toMatch(/wait_too_long|wait_expired/);
  await delay(1_500);
  await allHere(3, 1);
  await reload(yamlWith(100, '  maxWaitSeconds: 1\n'));
  expect((await waiting).status).toBe(200);
});

test('a process that ends answers the calls that can still leave, refuses the others with a retry, and accepts no more', async () => {
  await (await get('warm')).text();
  shop.fault({ kind: 'slow', ms: 500 });
  const first = get('first');
  await until(() => shop.log.length === 2);
  const held = [get('held'), get('held')];
  await allHere(4);
  served.signal('SIGTERM');
  await served.saying('draining');
  expect((await fetch(`${served.adminUrl}/readyz`).catch(() => null))?.status ?? 503).toBe(503);
  const responses = await Promise.all([first, ...held]);
  const statuses = responses.map(({ status }) => status);
  expect(statuses).toEqual([200, 200, 200]);
  expect(await served.exited).toBe(0);
  // The log says how it ended, in its last line, and every line is JSON.
  const lines = served.lines.filter((line) => line.trim() !== '').map((line): unknown => JSON.parse(line));
  expect(lines.at(-1)).toMatchObject({ message: 'ended', cut: 0 });
  await expect(get('late')).rejects.toThrow();
  expect(shop.log.map(({ nonce }) => nonce)).toEqual(['warm', 'first', 'held', 'held']);
});

test('a waiting call that cannot leave before the drain ends is refused at once, with advice to try elsewhere', async () => {
  await served.close();
  // A call that was held until the drain ends would outlast the test.
  served = await serve(yamlWith(100, '  drainDelaySeconds: 0\n  drainSeconds: 500\n'));
  await (await get('warm')).text();
  const body = { errors: 'Exceeded 2 calls per second for api client.' };
  shop.fault({ kind: 'answer', status: 429, headers: { 'Retry-After': '550.0' }, body });
  const held = get('held', null, { prefer: 'wait=600' });
  await until(() => shop.log.length === 2);
  await allHere(2, 1);
  served.signal('SIGTERM');
  const response = await held;
  expect([response.status, response.headers.get('sluice-error')]).toEqual([503, 'draining']);
  expect(Number(response.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
  expect(response.headers.get('x-should-retry')).not.toBe('false');
  expect(await served.exited).toBe(0);
});

test('a waiting call is refused also where a drain is no longer than the time in which calls are still accepted', async () => {
  await served.close();
  // A refusal asks Redis how much of the ceiling is left: it takes a round trip, which has to fit before the end.
  const redis = await startRedis();
  try {
    served = await serve(
      `${yamlWith(1, '  drainSeconds: 2\n')}\nredis: { url: "${redis.url}", commandTimeoutMs: 2000 }\n`,
    );
    await (await get('first')).text();
    const held = Array.from({ length: 8 }, () => get('held', null, { prefer: 'wait=600' }));
    await allHere(9, 8);
    served.signal('SIGTERM');
    for (const { status, headers } of await Promise.all(held))
      expect([status, headers.get('sluice-error')]).toEqual([503, 'draining']);
    expect(await served.exited).toBe(0);
  } finally {
    await redis.stop();
  }
});

test('a call that still waits when the drain ends is refused, although it was expected to leave', async () => {
  await (await get('warm')).text();
  shop.fault({ kind: 'hang' });
  const first = get('first').then(
    () => 'answered',
    () => 'cut',
  );
  await until(() => shop.log.length === 2);
  const held = get('held');
  await allHere(3);
  served.signal('SIGTERM');
  const response = await held;
  expect([response.status, response.headers.get('sluice-error')]).toEqual([503, 'draining']);
  expect(await first).toBe('cut');
  await served.exited;
});
