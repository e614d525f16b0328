/**
 * Refusals at once, shown without measuring time: on a clock that stands still no timer fires, so a refusal that waited for one
 * would not come; over Redis its script calls are counted.
 */
import { setImmediate } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Lease } from '../../src/admission/ticket.ts';
import { systemClock } from '../../src/clock.ts';
import { Refusal } from '../../src/errors.ts';
import type { Limiter } from '../../src/limiter/over-log/limiter.ts';
import { admission } from '../support/admission.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { startReplica, type TestReplica } from '../support/redis-replica.ts';
import { withMethods } from '../support/with-methods.ts';

const oneAMinute = { limit: 1, windowMs: 60_000 };

/** A clock that stands still; time passes only where a test says so. */
function world() {
  const clock = new FakeClock();
  const leases = new Map<string, Lease>();
  const ends = new Map<string, string>();
  const { queue } = embeddedQueue({
    clock,
    onFailure: (failure) => ends.set('bug', String(failure)),
  });
  const follow = async (id: string, options: CallOptions): Promise<void> => {
    try {
      const ticket = await queue.enter(...callOf(clock, id, options));
      leases.set(id, await ticket.whenGranted());
      ends.set(id, 'sent');
    } catch (failure) {
      ends.set(id, failure instanceof Refusal ? failure.code : String(failure));
    }
  };
  return {
    clock,
    queue,
    leases,
    ends,
    /** Enters a call and lets everything happen that needs no time. */
    async enter(id: string, options: CallOptions = {}): Promise<void> {
      void follow(id, options);
      await setImmediate();
    },
  };
}

describe('a call that cannot leave within its wait is refused at once, on a clock that stands still,', () => {
  test('when its bucket is full', async () => {
    const { enter, ends } = world();
    await enter('a', oneAMinute);
    await enter('b', oneAMinute);
    expect([...ends]).toEqual([
      ['a', 'sent'],
      ['b', 'wait_too_long'],
    ]);
  });

  test('when its ceiling is full', async () => {
    const { enter, ends } = world();
    await enter('a', { perMinute: 1 });
    await enter('b', { perMinute: 1 });
    await enter('c', { perMinute: 1, maxWaitMs: 0 });
    expect(Object.fromEntries(ends)).toEqual({ a: 'sent', b: 'wait_too_long', c: 'wait_too_long' });
  });

  test('when the last slot of its ceiling belongs to a waiting call', async () => {
    const { enter, ends } = world();
    for (const id of ['a', 'b', 'c']) await enter(id, { perMinute: 2, maxInFlight: 1 });
    expect(Object.fromEntries(ends)).toEqual({ a: 'sent', c: 'wait_too_long' });
  });

  test('when its ceiling of the day is used up', async () => {
    const { enter, ends } = world();
    await enter('a', { perDay: 1 });
    await enter('b', { perDay: 1 });
    expect(ends.get('b')).toBe('day_quota_exhausted');
  });

  test('when its lane has as many waiting calls as it may', async () => {
    const { enter, ends } = world();
    for (const id of ['a', 'b', 'c']) await enter(id, { maxInFlight: 1, maxQueued: 1 });
    expect(Object.fromEntries(ends)).toEqual({ a: 'sent', c: 'queue_full' });
  });

  test('when its bucket is closed, also when it closes while the call waits', async () => {
    const { enter, ends, leases } = world();
    await enter('a', { maxInFlight: 1 });
    await enter('b', { maxInFlight: 1 });
    const closed = { kind: 'throttled', closeMs: 60_000, requeue: false, sleepMs: 0 } as const;
    leases.get('a')?.settle(closed, null);
    await enter('c', { maxInFlight: 1 });
    expect(Object.fromEntries(ends)).toEqual({ a: 'sent', b: 'wait_too_long', c: 'wait_too_long' });
  });

  test('when a call of unknown fate blocks its lane', async () => {
    const { enter, ends, leases } = world();
    await enter('a', { maxInFlight: 1 });
    await enter('b', { maxInFlight: 1, maxWaitMs: 14_000 });
    leases.get('a')?.settle({ kind: 'unknown' }, null);
    await enter('c', { maxInFlight: 1, maxWaitMs: 14_000 });
    expect(Object.fromEntries(ends)).toEqual({ a: 'sent', b: 'wait_too_long', c: 'wait_too_long' });
  });

  test('when its ceiling has a slot within its wait, but no longer after a slow reply of the store', async () => {
    const clock = new FakeClock();
    const { queue } = embeddedQueue({
      clock,
      around: (limiter) =>
        withMethods<Limiter>(limiter, {
          async admit(asked) {
            await new Promise<void>((resolve) => void clock.after(500, resolve));
            return limiter.admit(asked);
          },
        }),
    });
    const one = { perMinute: 1, maxInFlight: 1 };
    const first = queue.enter(...callOf(clock, 'a', one)).then((ticket) => ticket.whenGranted());
    clock.outside(1_000, () => {});
    await clock.run(1_000);
    await first;
    // The next slot frees 59,150 ms after the reply, when 58,800 ms of the wait are left.
    const second = queue
      .enter(...callOf(clock, 'b', { ...one, maxWaitMs: 59_300 }))
      .catch((failure: unknown) => failure);
    await clock.run(2_000);
    expect(await Promise.race([second, Promise.resolve('waits')])).toMatchObject({ code: 'wait_too_long' });
  });

  test('when it is sent again and finds its ceiling full', async () => {
    const { queue, clock } = world();
    const ticket = await queue.enter(...callOf(clock, 'a', { perMinute: 1 }));
    const lease = await ticket.whenGranted();
    lease.settle({ kind: 'throttled', closeMs: 0, requeue: true, sleepMs: 0 }, null);
    const again = ticket.whenGranted().catch((failure: unknown) => failure);
    await setImmediate();
    expect(await Promise.race([again, Promise.resolve('still waiting')])).toMatchObject({
      code: 'wait_too_long',
    });
  });
});

describe('a refusal over Redis', () => {
  let server: RedisServer;
  let probe: Redis;
  let replica: TestReplica;

  beforeAll(async () => {
    server = await startRedis();
    probe = new Redis(server.port);
    replica = await startReplica(`url: "redis://127.0.0.1:${server.port}"`);
  });
  afterAll(async () => {
    await replica.close();
    probe.disconnect();
    await server.stop();
  });

  /** The smallest number of script calls of five refusals, because a tick may fall into some of them. */
  const scriptsOf = async (queue: AdmissionQueue, options: CallOptions): Promise<number> => {
    let min = Infinity;
    for (let at = 0; at < 5; at += 1) {
      const before = await scripts();
      await expect(queue.enter(...callOf(systemClock, `refused${at}`, options))).rejects.toThrow(Refusal);
      min = Math.min(min, (await scripts()) - before);
    }
    return min;
  };

  const scripts = async (): Promise<number> => {
    const stats = await probe.info('commandstats');
    return [...stats.matchAll(/cmdstat_(?:eval|evalsha|fcall):calls=(\d+)/g)].reduce(
      (sum, [, n]) => sum + Number(n),
      0,
    );
  };

  test('takes no script call, and at most one where a ceiling is asked for its time', async () => {
    const queue = new AdmissionQueue({
      clock: systemClock,
      limiter: replica.limiter,
      ceilings: replica.ceilings,
      onFailure: (failure) => {
        throw failure;
      },
    });
    const full = { bucket: 'full', ...oneAMinute };
    const first = await replica.limiter.admit(admission('first', full));
    if (first.kind !== 'granted') throw new Error('not granted');
    await replica.limiter.settle(first.grant, { kind: 'succeeded', spent: null }, null);
    expect(await scriptsOf(queue, full)).toBe(0);
    expect(await scriptsOf(queue, { ...full, perMinute: 10 })).toBeLessThanOrEqual(1);
  });
});
