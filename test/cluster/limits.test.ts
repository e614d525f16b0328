/** Limits of calls that come to several replicas: one quota, one ceiling, one order, one call in flight. */
import { expect, test } from '@jest/globals';
import { defaultLeaseMs } from '../../src/limiter/limiter.ts';
import { createState, fold } from '../../src/limiter/over-log/fold.ts';
import type { LogEvent } from '../../src/limiter/over-log/state.ts';
import { readEntry } from '../../src/log/entry.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { admittedIn, grantedIn, monitorRedis } from '../support/redis-monitor.ts';
import { until } from '../support/until.ts';
import { kinds, model, onRedis, plenty, type Reply } from './fleet.ts';

const { open, started, redis, probe, fleet, upstream, languageModel } = onRedis();

async function monitored(): Promise<readonly string[]> {
  const { lines, stop } = await monitorRedis(redis().port);
  open.push(stop);
  return lines;
}

/** Sends calls to the replicas in turn, each when Redis has entered the one before, however long that takes. */
async function inOrder(calls: number, lines: readonly string[], send: (n: number) => Promise<Reply>) {
  const replies: Promise<Reply>[] = [];
  for (let n = 0; n < calls; n += 1) {
    replies.push(send(n));
    await until(() => admittedIn(lines).length > n);
  }
  return Promise.all(replies);
}

/** How many tickets and leases the logs in Redis have left, by their entries. */
async function leftBehind(): Promise<number> {
  const keys = await probe().keys('*:log');
  expect(keys).not.toEqual([]);
  let left = 0;
  for (const key of keys) {
    const state = createState(defaultLeaseMs);
    for (const text of await probe().lrange(key, '0', '-1')) {
      const entry = readEntry<LogEvent>(text);
      if (entry !== null) fold(state, entry);
    }
    expect(state.buckets.size).toBeGreaterThan(0);
    for (const { tickets, leases } of state.buckets.values()) left += tickets.size + leases.size;
  }
  return left;
}

/** By these calls both replicas get to know Redis' clock: of many round trips one is short. Positions are wrong by half of the shortest. */
async function setClocks(send: (n: number) => Promise<Reply>): Promise<void> {
  for (let n = 0; n < 20; n += 2) await Promise.all([send(n), send(n + 1)]);
}

test('a burst over two replicas is paced and granted in order, with at most one refusal by the upstream, and leaves nothing in Redis', async () => {
  const { simulator, url } = await languageModel(1_200);
  const all = await fleet({ upstreams: model(url) });
  const chat = (n: number): Promise<Reply> => all.chat(n, { prefer: 'wait=60' });
  await setClocks(chat);
  // All but 20 requests of the upstream's minute are used already.
  simulator.consume(1_160, { model: 'gpt-4o', dimension: 'rpm' });
  const lines = await monitored();
  expect(kinds(await inOrder(80, lines, chat))).toEqual(['200']);
  expect(simulator.log.filter(({ decision }) => decision === 'throttled').length).toBeLessThanOrEqual(1);
  // The order of grants. How long each takes to the upstream is the machine's: two replicas send side by side.
  const arrived = admittedIn(lines);
  expect(arrived).toHaveLength(80);
  // The end of a call before the burst may reach Redis within it.
  const granted = (): readonly string[] => grantedIn(lines).filter((ticket) => arrived.includes(ticket));
  await until(() => granted().length === 80);
  expect(granted()).toEqual(arrived);
  // Ends that nobody waits for are told a little later.
  await until(async () => (await leftBehind()) === 0);
});

test('two replicas together keep one commerce call of a workspace in flight, in the order of arrival', async () => {
  const shop = createCommerceSimulator({
    latency: { minMs: 20, maxMs: 40 },
    stores: { '127.0.0.1': { apps: { 'app-sim': ['shpat_sim'] } } },
  });
  const credential = { header: 'x-shopify-access-token', value: 'shpat_sim' };
  const settings = { kind: 'commerce', origins: [await started(shop)], credential };
  const all = await fleet({ upstreams: { shop: { ...settings, limits: { requestsPerMinute: 1_000 } } } });
  const order = (n: number): Promise<Reply> =>
    all.call(n, 'shop/admin/api/2026-10/orders.json', { headers: { 'x-nonce': `${n}`, prefer: 'wait=60' } });
  await setClocks(order);
  const before = shop.log.length;
  expect(kinds(await inOrder(30, await monitored(), order))).toEqual(['200']);
  const entries = shop.log.slice(before);
  expect(entries.map(({ decision, inFlight }) => `${decision} ${inFlight.scope}`)).toEqual(
    Array(30).fill('admitted 1'),
  );
  expect(entries.map(({ nonce }) => Number(nonce))).toEqual([...Array(30).keys()]);
});

test('two replicas share a ceiling, and refuse calls at once for which it has no slot in time', async () => {
  const { simulator, url } = await languageModel();
  const all = await fleet({ upstreams: model(url, { ...plenty, requestsPerMinute: 20 }) });
  const startedAt = performance.now();
  const chats = Array.from({ length: 40 }, async (_, n) => {
    const reply = await all.chat(n, { prefer: 'wait=20' });
    return { ...reply, tookMs: performance.now() - startedAt };
  });
  const refused = (await Promise.all(chats)).filter(({ status }) => status === 429);
  expect([refused.length, simulator.log.length]).toEqual([20, 20]);
  // On a machine that stands still a call is refused late, and then its code is that of a call that has waited.
  for (const { code } of refused) expect(['wait_too_long', 'wait_expired']).toContain(code);
  expect(Math.max(...refused.map(({ tookMs }) => tookMs))).toBeLessThan(20_000);
});

test('of an observed quota two replicas reckon one wait for the calls of both, which leave at once', async () => {
  // The upstream allows plenty, and takes longer than Redis: what is stated in the configuration is pinned, and would hold calls.
  const { url } = await languageModel(100_000, 1_000);
  const { openai } = model(url, { requestsPerMinute: 1, learn: false, probe: 100, maxWaitSeconds: 270 });
  const all = await fleet({
    upstreams: { openai: { ...openai, mode: 'observe' } },
    workspaces: { acme: { requestsPerMinute: { openai: 100_000 } } },
  });
  // One after the other: of calls that come at the same time no replica knows which was first.
  const fates: string[] = [];
  for (let n = 0; n < 7; n += 1) {
    const { status, headers } = await all.chat(n);
    expect(status).toBe(200);
    const [, kind, ms] =
      /^waited=0, attempts=1, absorbed=0, would=(\w+), would-wait=(\d+)/.exec(
        headers.get('sluice-admission') ?? '',
      ) ?? [];
    fates.push(kind === 'refuse' ? kind : `${Math.round(Number(ms) / 60_000)}`);
  }
  // In minutes: the quota of one call a minute counts once, and not once for each replica.
  expect(fates.toSorted()).toEqual('0 1 2 3 4 refuse refuse'.split(' '));
  await until(async () => (await all.metric('sluice_would_wait_seconds_count')) >= 1);
  expect(await all.metric('sluice_would_refuse_total{')).toBe(2);
});

const insistsMs = 30_000;

test('refusals before the stated time cost Redis little, are counted, and do not make another workspace wait', async () => {
  let received = 0;
  const { url } = await upstream((response) => {
    received += 1;
    response.end('ok');
  });
  const all = await fleet({
    upstreams: {
      api: {
        origins: [url],
        limits: { requestsPerMinute: 5 },
        speaks: { windows: [{ requests: 1_000, seconds: 60 }] },
      },
    },
    workspaces: { crowd: {}, other: { requestsPerMinute: { api: 500 } } },
    replicas: 1,
  });
  const send = (workspace: string, seconds: number): Promise<Reply> =>
    all.call(0, 'api/x', { workspace, headers: { prefer: `wait=${seconds}` } });
  const usedFrom = performance.now();
  for (let n = 0; n < 5; n += 1) expect((await send('crowd', 600)).status).toBe(200);
  const lines = await monitored();
  const refused: Reply[] = [];
  const startedAt = performance.now();
  // The first slot is free again after a minute, however many calls a slow machine has made by then.
  const insist = async (): Promise<void> => {
    for (let n = 0; n < 100 && performance.now() - startedAt < insistsMs; n += 1)
      refused.push(await send('crowd', 2));
  };
  await Promise.all([insist(), insist(), insist(), insist()]);
  const tookMs = performance.now() - startedAt;
  const soonestMs = 60_000 - (performance.now() - usedFrom);
  // Commands of scripts are listed too.
  const asked = lines.filter((line) => !line.includes(' lua] ')).length;
  for (const { status, code, headers } of refused) {
    expect(status).toBe(429);
    expect(code).toMatch(/^(wait_too_long|wait_expired)$/);
    expect(Number(headers.get('retry-after-ms'))).toBeGreaterThan(soonestMs);
    expect(headers.get('ratelimit')).toMatch(/^"workspace";r=0;t=\d\d$/);
  }
  expect((await send('other', 600)).headers.get('sluice-admission')).toMatch(/attempts=1/);
  expect(received).toBe(6);
  // Every 250 ms up to four calls ask log and ceiling, until the first of them knows; beside them the replica's own heartbeats.
  expect(asked).toBeLessThanOrEqual(4 * 3 * (tookMs / 250 + 1) + (tookMs / 1_000) * 20);
  expect(await all.metric('sluice_shed_total{')).toBe(refused.length);
});
