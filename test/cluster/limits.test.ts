/** Limits of calls that come to several replicas: one ceiling, one order, one call in flight, and what refusals cost. */
import { expect, test } from '@jest/globals';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { admittedIn, monitorRedis } from '../support/redis-monitor.ts';
import { until } from '../support/until.ts';
import { kinds, model, onRedis, plenty, type Reply } from './fleet.ts';

const { open, started, redis, fleet, upstream, languageModel } = onRedis();

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
  // Both replicas get to know Redis' clock: of many round trips one is short. Positions are wrong by half of the shortest.
  for (let n = 0; n < 20; n += 2) await Promise.all([order(n), order(n + 1)]);
  const before = shop.log.length;
  const { lines, stop } = await monitorRedis(redis().port);
  open.push(stop);
  // To the replicas in turn, each when Redis has entered the one before, however long that takes.
  const replies: Promise<Reply>[] = [];
  for (let n = 0; n < 30; n += 1) {
    replies.push(order(n));
    await until(() => admittedIn(lines).length > n);
  }
  expect(kinds(await Promise.all(replies))).toEqual(['200']);
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

test('refusals before the stated time cost Redis little, and the time is true', async () => {
  const { url } = await upstream((response) => response.end('ok'));
  const limits = { requestsPerMinute: 5 };
  const speaks = { windows: [{ requests: 1_000, seconds: 60 }] };
  const all = await fleet({ upstreams: { api: { origins: [url], limits, speaks } }, replicas: 1 });
  const send = (seconds: number): Promise<Reply> =>
    all.call(0, 'api/x', { headers: { prefer: `wait=${seconds}` } });
  const usedFrom = performance.now();
  for (let n = 0; n < 5; n += 1) expect((await send(600)).status).toBe(200);
  const { lines, stop } = await monitorRedis(redis().port);
  open.push(stop);
  const refused: Reply[] = [];
  const startedAt = performance.now();
  // The first slot is free again after a minute, however many calls a slow machine has made by then.
  const insist = async (): Promise<void> => {
    for (let n = 0; n < 100 && performance.now() - startedAt < 30_000; n += 1) refused.push(await send(2));
  };
  await Promise.all([insist(), insist(), insist(), insist()]);
  const tookMs = performance.now() - startedAt;
  const soonestMs = 60_000 - (performance.now() - usedFrom);
  // Commands of scripts are listed too.
  const asked = lines.filter((line) => !line.includes(' lua] ')).length;
  for (const { status, code, headers } of refused) {
    expect(`${status} ${code}`).toMatch(/^429 (wait_too_long|wait_expired)$/);
    expect(Number(headers.get('retry-after-ms'))).toBeGreaterThan(soonestMs);
  }
  // Every 250 ms up to four calls ask log and ceiling, until the first of them knows; beside them the replica's own heartbeats.
  expect(asked).toBeLessThanOrEqual(4 * 3 * (tookMs / 250 + 1) + (tookMs / 1_000) * 20);
});
