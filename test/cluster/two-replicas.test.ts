import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import type { Agent } from 'node:http';
import { Redis } from 'ioredis';
import { replicaId } from '../../src/ids.ts';
import { defaultLeaseMs } from '../../src/limiter/limiter.ts';
import { createState, fold } from '../../src/limiter/over-log/fold.ts';
import { readEvent } from '../../src/limiter/over-log/state.ts';
import { readEntry } from '../../src/log/entry.ts';
import type { Service } from '../../src/service.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { serviceOf } from '../support/gateway.ts';
import { admittedIn, grantedIn, monitorRedis, type RedisMonitor } from '../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';
import {
  chatBody,
  chatPath,
  clientAgent,
  count,
  fleetConfig,
  ordersPath,
  pause,
  send,
  type CallResponse,
  type FleetConfig,
  type FleetOptions,
} from '../support/redis-fleet.ts';

interface Pair {
  readonly services: readonly Service[];
  readonly config: FleetConfig;
  readonly logs: string[];
  urlOf(n: number): string;
  metrics(): Promise<string>;
  close(): Promise<void>;
}

/** Two gateways in this process that share nothing but Redis. */
async function pair(options: FleetOptions): Promise<Pair> {
  const config = fleetConfig(options);
  const logs: string[] = [];
  const services = [await serviceOf(config.yaml(), logs), await serviceOf(config.yaml(), logs)];
  return {
    services,
    config,
    logs,
    urlOf: (n) => `http://127.0.0.1:${services[n % 2]?.dataAddress.port ?? 0}`,
    async metrics() {
      const texts = services.map(async ({ adminAddress: { port } }) =>
        (await fetch(`http://127.0.0.1:${port}/metrics`)).text(),
      );
      return (await Promise.all(texts)).join('\n');
    },
    async close() {
      await Promise.all(services.map((service) => service.close()));
    },
  };
}

const open = 'requestsPerMinute: 100000, requestsPerDay: 1000000, tokensPerMinute: 10000000';
let redis: RedisServer;
let probe: Redis;
let agent: Agent;
let opened: Pair | null = null;

beforeAll(async () => {
  redis = await startRedis();
  probe = new Redis(redis.port);
  agent = clientAgent();
});
beforeEach(() => probe.flushall());
afterEach(async () => {
  await opened?.close();
  opened = null;
});
afterAll(async () => {
  agent.destroy();
  probe.disconnect();
  await redis.stop();
});

interface Load {
  readonly calls: number;
  readonly everyMs: number;
  readonly path: string;
  readonly body?: unknown;
  readonly waitSeconds: number;
  /** A call is sent when Redis has entered the one before, however long that takes: so they arrive one after the other. */
  readonly entered?: RedisMonitor;
}

/**
 * Sends calls one after the other, `everyMs` apart and alternating between the replicas; nonces `n-<number>`.
 */
async function drive({ urlOf, config }: Pair, load: Load): Promise<readonly CallResponse[]> {
  const work: Promise<CallResponse>[] = [];
  for (let n = 0; n < load.calls; n += 1) {
    work.push(
      send({
        url: urlOf(n),
        path: load.path,
        key: config.keys['acme'] ?? '',
        nonce: `n-${n}`,
        agent,
        headers: { prefer: `wait=${load.waitSeconds}` },
        ...(load.body === undefined ? {} : { body: load.body }),
      }),
    );
    if (load.entered !== undefined) {
      const { lines } = load.entered;
      await until(() => admittedIn(lines).length > n);
    }
    await pause(load.everyMs);
  }
  return Promise.all(work);
}

/** As {@link drive}, with chats. */
const chats = (two: Pair, load: Omit<Load, 'path'>): Promise<readonly CallResponse[]> =>
  drive(two, { path: chatPath, body: chatBody, ...load });

const statuses = (responses: readonly CallResponse[]): number[] => [
  ...new Set(responses.map(({ status }) => status)),
];

/**
 * Calls by which both replicas get to know Redis' clock: of many round trips one is short, also on a busy machine. Positions are
 * wrong by half of the shortest.
 */
async function setClocks(two: Pair, load: Pick<Load, 'path' | 'body'>): Promise<void> {
  for (let n = 0; n < 10; n += 1) await drive(two, { calls: 2, everyMs: 0, waitSeconds: 20, ...load });
}

/** How many tickets and leases the logs in Redis have left, by their entries. */
async function leftBehind(): Promise<number> {
  const keys = await probe.keys('*:log');
  expect(keys).not.toEqual([]);
  let left = 0;
  for (const key of keys) {
    const state = createState(defaultLeaseMs);
    for (const text of await probe.lrange(key, '0', '-1'))
      fold(state, readEntry(text, readEvent), replicaId('nobody'));
    expect(state.buckets.size).toBeGreaterThan(0);
    for (const { tickets, leases } of state.buckets.values()) left += tickets.size + leases.size;
  }
  return left;
}

describe('two replicas on one Redis', () => {
  test('share a bucket: a burst over both is paced and in order, with at most one refusal by the upstream', async () => {
    const model = createLanguageModelSimulator({
      models: {
        'gpt-4o': { rpm: 1_200, tpm: 10_000_000 },
        'gpt-4o-mini': { rpm: 100_000, tpm: 10_000_000 },
      },
      latency: { baseMs: 5, perTokenMs: 0, jitter: 0 },
      outsideTraffic: null,
    });
    const { url } = await model.listen(0);
    // All but 20 requests of the upstream's minute are used already.
    model.consume(1_180, { model: 'gpt-4o', dimension: 'rpm' });
    opened = await pair({
      redis: `url: "${redis.url}", commandTimeoutMs: 2000`,
      modelUrl: url,
      modelLimits: open,
    });
    await setClocks(opened, { path: chatPath, body: { ...chatBody, model: 'gpt-4o-mini' } });
    const monitor = await monitorRedis(redis.port);
    const responses = await chats(opened, { calls: 80, everyMs: 12, waitSeconds: 20, entered: monitor });
    const entries = model.log;
    await model.close();
    expect(statuses(responses)).toEqual([200]);
    expect(count(entries, 'throttled')).toBeLessThanOrEqual(1);
    // The order of grants. How long each takes to the upstream is the machine's: two replicas send side by side.
    const arrived = admittedIn(monitor.lines);
    expect(arrived).toHaveLength(80);
    // The end of a call before the burst may reach Redis within it.
    const granted = (): readonly string[] =>
      grantedIn(monitor.lines).filter((ticket) => arrived.includes(ticket));
    await until(() => granted().length === 80);
    monitor.stop();
    expect(granted()).toEqual(arrived);
    // Ends that nobody waits for are told a little later.
    await until(async () => (await leftBehind()) === 0);
  });

  test('together keep one commerce call of a workspace in flight, in the order of arrival', async () => {
    const shop = createCommerceSimulator({
      latency: { minMs: 20, maxMs: 40 },
      stores: { '127.0.0.1': { apps: { 'app-sim': ['shpat_sim'] } } },
    });
    const { url } = await shop.listen(0);
    opened = await pair({
      redis: `url: "${redis.url}", commandTimeoutMs: 2000`,
      shopUrl: url,
      shopLimits: 'requestsPerMinute: 1000',
    });
    await setClocks(opened, { path: ordersPath });
    const before = shop.log.length;
    const monitor = await monitorRedis(redis.port);
    const responses = await drive(opened, {
      calls: 30,
      everyMs: 5,
      path: ordersPath,
      waitSeconds: 60,
      entered: monitor,
    });
    monitor.stop();
    const entries = shop.log.slice(before);
    await shop.close();
    expect(statuses(responses)).toEqual([200]);
    expect(count(entries, 'throttled')).toBe(0);
    expect(Math.max(...entries.map(({ inFlight }) => inFlight.scope))).toBe(1);
    expect(entries.map(({ nonce }) => nonce)).toEqual(responses.map(({ nonce }) => nonce));
  });

  test('share a ceiling, and refuse calls at once for which it has no slot in time', async () => {
    const model = createLanguageModelSimulator({ models: { 'gpt-4o': { rpm: 100_000, tpm: 10_000_000 } } });
    const { url } = await model.listen(0);
    const limits = 'requestsPerMinute: 20, requestsPerDay: 1000, tokensPerMinute: 10000000';
    opened = await pair({
      redis: `url: "${redis.url}", commandTimeoutMs: 2000`,
      modelUrl: url,
      modelLimits: limits,
    });
    const responses = await chats(opened, { calls: 40, everyMs: 10, waitSeconds: 20 });
    const entries = model.log;
    await model.close();
    expect(count(entries, 'admitted')).toBe(20);
    const refused = responses.filter(({ status }) => status === 429);
    expect(refused).toHaveLength(20);
    // On a machine that stands still a call is refused late, and then its code is that of a call that has waited.
    for (const { code } of refused) expect(['wait_too_long', 'wait_expired']).toContain(code);
    expect(Math.max(...refused.map(({ tookMs }) => tookMs))).toBeLessThan(20_000);
  });

  test('write no key, value or channel that names a workspace, a credential, a host or a body', async () => {
    const model = createLanguageModelSimulator({});
    const { url } = await model.listen(0);
    opened = await pair({
      redis: `url: "${redis.url}", commandTimeoutMs: 2000`,
      modelUrl: url,
      modelLimits: open,
    });
    const monitor = await monitorRedis(redis.port);
    const body = { ...chatBody, user: 'canary-body' };
    await chats(opened, { calls: 6, everyMs: 1, body, waitSeconds: 5 });
    monitor.stop();
    await model.close();
    const key = opened.config.keys['acme'] ?? '';
    expect(monitor.lines.length).toBeGreaterThan(12);
    for (const secret of ['acme', 'canary', 'sk-sim', 'openai', key]) {
      expect(monitor.lines.filter((line) => line.includes(secret))).toEqual([]);
    }
    // Five digits also stand in the middle of times and of digests.
    const port = new RegExp(`(?<![\\da-f.])${new URL(url).port}(?![\\da-f])`);
    expect(monitor.lines.filter((line) => port.test(line))).toEqual([]);
  });
});

describe('while Redis does not respond,', () => {
  const fault = async (whenDown: 'local' | 'deny', during: (pair_: Pair) => Promise<void>): Promise<Pair> => {
    const own = await startRedis();
    const model = createLanguageModelSimulator({ models: { 'gpt-4o': { rpm: 60_000, tpm: 10_000_000 } } });
    const { url } = await model.listen(0);
    const two = await pair({
      redis: `url: "${own.url}", whenDown: ${whenDown}`,
      modelUrl: url,
      modelLimits: open,
    });
    opened = two;
    await chats(two, { calls: 4, everyMs: 1, waitSeconds: 5 });
    process.kill(own.pid, 'SIGSTOP');
    await during(two);
    process.kill(own.pid, 'SIGCONT');
    await until(async () =>
      /limiter_mode\{mode="redis"\} 1[^]*limiter_mode\{mode="redis"\} 1/.test(await two.metrics()),
    );
    const after = await chats(two, { calls: 4, everyMs: 1, waitSeconds: 10 });
    expect(statuses(after)).toEqual([200]);
    expect(await two.metrics()).toMatch(/sluice_limiter_mode\{mode="redis"\} 1/);
    await two.close();
    opened = null;
    await model.close();
    await own.stop();
    return two;
  };

  test('calls go on with each replica’s share, and with Redis again when it responds (whenDown: local)', async () => {
    await fault('local', async (two) => {
      const responses = await chats(two, { calls: 20, everyMs: 5, waitSeconds: 10 });
      expect(statuses(responses)).toEqual([200]);
      expect(await two.metrics()).toMatch(/sluice_limiter_mode\{mode="local"\} 1/);
    });
  });

  test('calls are refused long before their wait is over (whenDown: deny)', async () => {
    await fault('deny', async (two) => {
      // A call that was held until its wait was over would outlast the test.
      const responses = await chats(two, { calls: 20, everyMs: 5, waitSeconds: 600 });
      expect([...new Set(responses.map(({ status, code }) => `${status} ${code}`))]).toEqual([
        '503 limiter_unavailable',
      ]);
      expect(await two.metrics()).toMatch(/sluice_limiter_mode\{mode="deny"\} 1/);
    });
  });
});
