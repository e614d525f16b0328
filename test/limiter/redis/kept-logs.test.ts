/** For how long Redis keeps the log of a credential that nobody uses any more: as long as something in it is of use. */
import { expect, test } from '@jest/globals';
import { ceilingKey, ticketId } from '../../../src/ids.ts';
import type { Lesson, Settlement } from '../../../src/limiter/limiter.ts';
import { admission } from '../../support/admission.ts';
import { startReplica } from '../../support/redis-replica.ts';
import { onRedis } from '../../support/shared-redis.ts';

const minuteMs = 60_000;
const hourMs = 3_600_000;
/** Between the last entry of a log and the question how long its keys live. */
const slackMs = 30_000;

const server = onRedis();

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
  const replica = await startReplica(`url: "${server.url}"`);
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
  const replica = await startReplica(`url: "${server.url}"`);
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
