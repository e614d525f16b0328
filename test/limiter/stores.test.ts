/**
 * What replicas share on one Redis: a ceiling, which decides as the embedded store does; for how long logs are kept there; and what calls do
 * where it replies with errors that no command of Sluice expects.
 */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { ceilingKey, ticketId } from '../../src/ids.ts';
import type { Lesson, Settlement } from '../../src/limiter/limiter.ts';
import type { CeilingRef } from '../../src/limiter/policy/ceiling.policy.ts';
import { admission } from '../support/admission.ts';
import { noTelemetry } from '../support/no-telemetry.ts';
import { startHealth } from '../support/redis-health.ts';
import { startReplica } from '../support/redis-replica.ts';
import { startRedis } from '../support/redis.ts';
import { onRedis } from '../support/shared-redis.ts';
import { until } from '../support/until.ts';

const server = onRedis();
const url = (): string => `url: "${server.url}"`;

test('calls over Redis take, give back once, report and forecast under changed limits of the minute and the day what the embedded store does, and leave no key without an expiry', async () => {
  const [shared, embedded] = [await startReplica(url()), await startReplica(null)];
  let histories = 0;
  const limit = fc.constantFrom(null, 1, 2, 3);
  const step = fc.record({ perMinute: limit, perDay: limit, givesBack: fc.boolean() });
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 20 }), async (steps) => {
      const key = ceilingKey(`both${(histories += 1)}`);
      const found = [shared, embedded].map(async ({ ceilings }) => {
        const seen: unknown[] = [];
        let isHeard = false;
        ceilings.listen((of) => (isHeard ||= of === key));
        const taken: [CeilingRef, Parameters<typeof ceilings.giveSlotBack>[1]][] = [];
        for (const { givesBack, ...limits } of steps) {
          const of = { key, ...limits };
          const reply = await ceilings.take(of);
          if (reply.kind === 'taken') taken.push([of, reply.slot]);
          seen.push({ ...reply, slot: null });
          const last = givesBack ? taken.pop() : undefined;
          for (let times = 0; last !== undefined && times < 2; times += 1)
            await ceilings.giveSlotBack(...last);
        }
        const of = { key, perMinute: 2, perDay: 3 };
        seen.push(isHeard, await ceilings.state(of), await ceilings.dayState(of));
        const forecasts = [undefined, 10_000].map((agoMs) => ceilings.forecast(of, [1, 2, 3, 4], agoMs));
        return [...seen, ...(await Promise.all(forecasts))];
      });
      const [overRedis, inMemory] = await Promise.all(found);
      // Times to half a minute: they are windows and days, of which little has passed.
      const rough = (_name: string, value: unknown): unknown =>
        typeof value === 'number' && value > 100 ? Math.round(value / 30_000) : value;
      expect(JSON.parse(JSON.stringify(overRedis, rough))).toEqual(
        JSON.parse(JSON.stringify(inMemory, rough)),
      );
    }),
    { numRuns: 40 },
  );
  const { probe } = server;
  for (const key of await probe.keys('*')) expect([key, (await probe.pttl(key)) > 0]).toEqual([key, true]);
  await Promise.all([shared.close(), embedded.close()]);
});

test('sends of the last minute are put back after a loss of all data', async () => {
  const { probe } = server;
  const [a, b] = [await startReplica(url()), await startReplica(url())];
  const ceiling = { key: ceilingKey('kept'), perMinute: 3, perDay: null };
  for (const one of [a, b, a]) await one.ceilings.take(ceiling);
  await probe.flushall();
  await until(async () => (await probe.zcard('sluice:sends:{kept}')) === 3);
  expect((await b.ceilings.take(ceiling)).kind).toBe('refused');
  await Promise.all([a.close(), b.close()]);
});

test('a Redis that evicts keys is refused, with advice on what to set', async () => {
  const redis = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
  await expect(startReplica(`url: "${redis.url}"`)).rejects.toThrow(/maxmemory-policy to noeviction/);
  await redis.stop();
});

const minuteMs = 60_000;
const hourMs = 3_600_000;
/** Between the last entry of a log and the question how long its keys live. */
const slackMs = 30_000;

const refused: Settlement = { kind: 'throttled', closeMs: 3 * hourMs, requeue: false, sleepMs: 0 };
const succeeded: Settlement = { kind: 'succeeded', spent: null };
const taught: Lesson = {
  feedback: {
    meters: [{ meter: 'requests', limit: 60, windowMs: minuteMs, level: { lowest: 1, highest: 1 } }],
    throttle: null,
  },
  sentAgoMs: 5,
  headAgoMs: 1,
};
const perDay = { meter: 'requests', limit: 100, windowMs: 24 * hourMs, counts: 'rolling' } as const;
const perMinute = { meter: 'requests', limit: 6_000, windowMs: minuteMs } as const;

test.each([
  ['of a call that taught nothing', succeeded, null, perMinute, minuteMs],
  ['of a call that taught a limit', succeeded, taught, perMinute, hourMs],
  ['of a call in a described window of a day', succeeded, null, perDay, 24 * hourMs],
  ['of a bucket that the upstream has closed for three hours', refused, null, perMinute, 4 * hourMs],
] as const)('the log %s is kept for as long as that', async (what, settlement, lesson, meter, keptMs) => {
  const bucket = what.replaceAll(' ', '-');
  const replica = await startReplica(url());
  const setting = { meters: [meter], learn: true, probe: 0 };
  const reply = await replica.limiter.admit(admission('call', { bucket, setting }));
  if (reply.kind !== 'granted') throw new Error(`not granted: ${reply.kind}`);
  await replica.limiter.settle(reply.grant, settlement, lesson);
  await replica.close();
  const keys = await server.probe.keys(`*${bucket}*`);
  expect(keys).toHaveLength(2);
  for (const key of keys) {
    const livesMs = await server.probe.pttl(key);
    expect(livesMs).toBeGreaterThan(keptMs - slackMs);
    // A window is taken to last a little longer than it is described.
    expect(livesMs).toBeLessThanOrEqual(keptMs * 1.05);
  }
});

test('the log of a call that keeps its position for two hours is kept for as long', async () => {
  const replica = await startReplica(url());
  const terms = {
    ceiling: ceilingKey('c'),
    waitMs: 2 * hourMs,
    lastsMs: 10_000,
    maxReserved: 10,
    begins: true,
  };
  const call = admission('call', { bucket: 'reserving', limit: 60, windowMs: minuteMs });
  const reply = await replica.limiter.admit(call);
  if (reply.kind === 'granted') await replica.limiter.settle(reply.grant, succeeded, null);
  expect(await replica.limiter.reserve({ ...call, ticket: ticketId('later') }, terms)).toMatchObject({
    id: 'later',
  });
  await replica.close();
  const keys = await server.probe.keys('*reserving*');
  for (const key of keys) expect(await server.probe.pttl(key)).toBeGreaterThan(2 * hourMs - slackMs);
  expect(keys).toHaveLength(2);
});

test.each(['local', 'deny'])(
  'with whenDown: %s, a call goes on over Redis when the keys of its log have the wrong type: the log begins again',
  async (whenDown) => {
    const bucket = `spoilt-${whenDown}`;
    const replica = await startReplica(`${url()}, whenDown: ${whenDown}`);
    /** Resolves when the call may go: at once, or on a slow machine with a later message. */
    const enter = async (ticket: string): Promise<void> => {
      const { kind } = await replica.limiter.admit(
        admission(ticket, { bucket, limit: 1_000, windowMs: 60_000 }),
      );
      if (kind === 'queued') await replica.granted(ticket);
      else expect(kind).toBe('granted');
    };
    await enter('before');
    const keys = await server.probe.keys(`*${bucket}*`);
    expect(keys.length).toBeGreaterThan(0);
    for (const key of keys) await server.probe.set(key, 'not ours');
    await enter('after');
    expect(replica.noted).toEqual(['mode redis']);
    await replica.close();
  },
);

test('a command with an unexpected error reply is sent once, makes Redis unavailable at once and is logged as a bug', async () => {
  const bugs: string[] = [];
  const log = { ...noTelemetry.log, bug: (_text: string, cause: unknown) => void bugs.push(String(cause)) };
  const telemetry = { ...noTelemetry, log };
  const { health, close } = await startHealth(server, { telemetry, tripsOnPermanentError: true });
  await server.probe.set('text', 'not a list');
  let sent = 0;
  const refused = health.run('other', (client) => {
    sent += 1;
    return client.lpush('text', 'more');
  });
  expect(await refused).toBeNull();
  expect([sent, health.isUp]).toEqual([1, false]);
  expect(bugs).toEqual([expect.stringMatching(/^ReplyError: WRONGTYPE/)]);
  // Redis is there and is tried again: one wrong key does not make it unavailable for good.
  await new Promise<void>((resolve) => {
    health.watch({ onUnavailable: () => {}, onAvailable: resolve });
  });
  const read = await health.run('other', (client) => client.get('text'));
  expect(read).toBe('not a list');
  close();
});
