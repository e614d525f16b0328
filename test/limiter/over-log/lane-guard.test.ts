/** The guard of serialized lanes in Redis. */
import { beforeEach, expect, test } from '@jest/globals';
import { bucketKey, laneKey, leaseToken } from '../../../src/ids.ts';
import { RedisLaneGuard, type LaneGuard, type Guarded } from '../../../src/limiter/over-log/lane-guard.ts';
import type { RedisHealth } from '../../../src/redis/health.ts';
import { startHealth } from '../../support/redis-health.ts';
import { onRedis } from '../../support/shared-redis.ts';

const longMs = 600_000;
const shortMs = 20;
let lanes = 0;
/** Two calls of a lane that no other test uses. */
function twoCalls(): readonly [Guarded, Guarded] {
  const lane = { bucket: bucketKey('b'), lane: laneKey(`lane${(lanes += 1)}`) };
  return [
    { ...lane, lease: leaseToken('a.1') },
    { ...lane, lease: leaseToken('b.1') },
  ];
}

const server = onRedis();
let guard: LaneGuard;
let isAway = false;
let comesBack = (): void => {};
beforeEach(async () => {
  const started = await startHealth(server);
  server.closes(started);
  const { health } = started;
  const run: typeof health.run = (...said) => (isAway ? Promise.resolve(null) : health.run(...said));
  const watch: typeof health.watch = ({ onAvailable }) => {
    comesBack = onAvailable;
    return () => {};
  };
  guard = new RedisLaneGuard(Object.assign(Object.create(health) as RedisHealth, { run, watch }));
});

test('the guard lets one call of a lane pass, and the next one after it was freed', async () => {
  const [a, b] = twoCalls();
  expect(await guard.take(a, longMs)).toEqual({ kind: 'taken' });
  const reply = await guard.take(b, longMs);
  // Long before its time is over: most calls free their lane.
  const retryInMs = reply.kind === 'taken by another' ? reply.retryInMs : 0;
  expect(retryInMs > 0 && retryInMs < longMs / 2).toBe(true);
  await guard.free(a);
  expect(await guard.take(b, longMs)).toEqual({ kind: 'taken' });
});

test('the guard may be asked again for a call that has the lane, is freed by that call alone, and keeps lanes apart', async () => {
  const [a, b] = twoCalls();
  await guard.take(a, longMs);
  expect(await guard.take(a, longMs)).toEqual({ kind: 'taken' });
  await guard.free(b);
  expect(await guard.take(b, longMs)).toMatchObject({ kind: 'taken by another' });
  expect(await guard.take(twoCalls()[1], longMs)).toEqual({ kind: 'taken' });
});

test('the guard keeps a lane for its time, and as long again where it is asked again', async () => {
  const [a, b] = twoCalls();
  await guard.take(a, longMs);
  const leftMs = await server.probe.pttl(`sluice:lane:{b}:${a.lane}`);
  expect(leftMs > 0 && leftMs <= longMs).toBe(true);
  await guard.take(a, shortMs);
  for (;;) {
    const reply = await guard.take(b, longMs);
    if (reply.kind === 'taken') break;
    expect(reply).toMatchObject({ kind: 'taken by another' });
  }
  await guard.take(b, shortMs);
  while ((await guard.take(a, longMs)).kind !== 'taken');
});

test('a lane that was to be freed while Redis was away is free when it is back', async () => {
  const [a, b] = twoCalls();
  await guard.take(a, longMs);
  isAway = true;
  await guard.free(a);
  expect(await guard.take(b, longMs)).toEqual({ kind: 'unavailable' });
  isAway = false;
  comesBack();
  while ((await guard.take(b, longMs)).kind !== 'taken');
});
