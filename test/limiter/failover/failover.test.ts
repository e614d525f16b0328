/** What replicas do while Redis is unavailable and in the moment in which it is available again. */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { bucketKey, ceilingKey } from '../../../src/ids.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

let redis: VirtualRedis;
let one: VirtualReplica;
beforeEach(async () => {
  redis = new VirtualRedis();
  one = await redis.replica('one');
});
afterEach(async () => {
  const closing = one.close();
  await redis.pass(1_000);
  await closing;
});

/** `null`: the operator states no limit. */
const stated = (limit: number | null): AdmissionOptions => ({
  setting: {
    meters: limit === null ? [] : [{ meter: 'requests', limit, windowMs: 60_000 }],
    learn: true,
    probe: 0,
  },
  maxWaitMs: 600_000,
  maxQueued: 1_000,
});
const minuteCeiling = { key: ceilingKey('acme'), perMinute: 1_000, perDay: null };

/** Calls that come now, each sent as soon as it is granted. */
async function calls(count: number, name: string, options: AdmissionOptions): Promise<string[]> {
  const asked = Array.from({ length: count }, (_, n) =>
    one.limiter.admit(admission(`${name}${n}`, { ...options, arrivedAt: redis.clock.monotonic() + n / 64 })),
  );
  await redis.pass(50);
  const kinds: string[] = [];
  for (const reply of await Promise.all(asked)) {
    if (reply.kind === 'granted') one.grants.push(reply.grant);
    kinds.push(reply.kind);
  }
  return kinds;
}

const sentOf = (name: string): number =>
  one.grants.filter(({ ticket }) => new RegExp(`^${name}\\d+$`).test(ticket)).length;

async function loseRedis(): Promise<void> {
  redis.isUnavailable = true;
  // The heartbeat notices the absence.
  await redis.pass(2_500);
  expect(one.modes.at(-1)).toBe('local');
}

describe('when Redis is available again', () => {
  test('no new call is sent before earlier sends are reported, however long it takes to put sends back', async () => {
    const options = stated(60);
    await calls(60, 'before', options);
    const taking = one.ceilings.take(minuteCeiling);
    await redis.pass(50);
    expect((await taking).kind).toBe('taken');
    await redis.pass(1_500);
    await loseRedis();
    // One unit drains per second; this replica is alone and uses every one of them.
    await calls(40, 'meanwhile', options);
    await redis.pass(20_000);
    const meanwhile = sentOf('meanwhile');
    expect(meanwhile).toBeGreaterThan(15);
    redis.isUnavailable = false;
    redis.restoreMs = 400;
    while (one.modes.at(-1) !== 'redis' && redis.clock.monotonic() < 60_000) {
      const kinds = await calls(1, `arriving${redis.clock.monotonic()}x`, options);
      expect(kinds).toEqual(['queued']);
    }
    await redis.pass(1_000);
    // All grants together: what the bucket held at first, and what has drained.
    const drained = redis.clock.monotonic() / 1_000;
    expect(one.grants.length).toBeLessThanOrEqual(1 + 60 + drained);
  });

  test('a replica that knows nothing of an emptied Redis does not begin before the others are back', async () => {
    const two = await redis.replica('two', 'deny');
    await redis.pass(1_500);
    await calls(60, 'before', stated(60));
    redis.isUnavailable = true;
    await redis.pass(2_500);
    expect(two.modes.at(-1)).toBe('deny');
    redis.server.flush();
    redis.cut.add('one');
    redis.isUnavailable = false;
    for (let tried = 0; tried < 60; tried += 1) {
      if (tried === 20) redis.cut.clear();
      const asked = two.limiter.admit(
        admission(`new${tried}`, { ...stated(60), arrivedAt: redis.clock.monotonic() }),
      );
      void asked.then((reply) => reply.kind === 'granted' && two.grants.push(reply.grant));
      await redis.pass(30);
    }
    await redis.pass(3_000);
    expect([one.modes.at(-1), two.modes.at(-1)]).toEqual(['redis', 'redis']);
    const drained = redis.clock.monotonic() / 1_000;
    expect(one.grants.length + two.grants.length).toBeLessThanOrEqual(1 + 60 + drained);
    const closing = two.close();
    await redis.pass(1_000);
    await closing;
  });

  test('every replica reports what it sent, also after other replicas have reported and their calls wait again', async () => {
    const two = await redis.replica('two');
    const three = await redis.replica('three');
    const all = [one, two, three];
    await redis.pass(1_500);
    const options = { ...stated(600), maxQueued: 10_000, bucket: 'shared' };
    const enter = async (name: string, count: number): Promise<void> => {
      for (const [at, { limiter, grants }] of all.entries()) {
        for (let n = 0; n < count; n += 1) {
          const arrivedAt = redis.clock.monotonic() + n / 64;
          const asking = limiter.admit(admission(`${name}${at}.${n}`, { ...options, arrivedAt }));
          asking.then(
            (reply) => reply.kind === 'granted' && grants.push(reply.grant),
            () => {},
          );
        }
      }
      await redis.pass(50);
    };
    // The bucket is full, and calls of every replica wait.
    const filledAt = redis.clock.monotonic();
    await enter('before', 500);
    await redis.pass(1_500);
    await loseRedis();
    await redis.pass(30_000);
    const sent = (): number => all.reduce((sum, { grants }) => sum + grants.length, 0);
    redis.isUnavailable = false;
    redis.cut.add('two').add('three');
    await redis.pass(400);
    redis.cut.delete('two');
    await redis.pass(300);
    redis.cut.clear();
    await redis.pass(3_000);
    expect(all.map(({ modes }) => modes.at(-1))).toEqual(['redis', 'redis', 'redis']);
    expect(sent()).toBeLessThanOrEqual(600 + (redis.clock.monotonic() - filledAt) / 100);
    for (const replica of [two, three]) {
      const closing = replica.close();
      await redis.pass(1_000);
      await closing;
    }
  });
});

describe('while Redis is unavailable', () => {
  const oneAtATime: AdmissionOptions = { ...stated(600), lane: 'capped', maxInFlight: 1 };

  test('a capped call that cannot wait until leases of Redis have ended is refused at once, with that time', async () => {
    await loseRedis();
    const asked = ['no', 'soon', 'later', 'behind'].map((name, n) =>
      one.limiter.admit(admission(name, { ...oneAtATime, maxWaitMs: [0, 5_000, 60_000, 10_000][n] ?? 0 })),
    );
    await redis.pass(50);
    const [no, soon, later, behind] = await Promise.all(asked);
    for (const reply of [no, soon, behind])
      expect(reply).toMatchObject({ kind: 'refused', reason: 'wait_too_long', heldBy: 'serialized' });
    for (const reply of [no, soon, later]) {
      const ms =
        reply?.kind === 'refused' ? reply.retryInMs : reply?.kind === 'queued' ? reply.forecastMs : 0;
      expect(ms).toBeGreaterThan(12_000);
      expect(ms).toBeLessThanOrEqual(15_000);
    }
    expect(later).toMatchObject({ kind: 'queued', heldBy: 'serialized' });
    await redis.pass(15_000);
    expect(one.grants.map((grant) => grant.ticket)).toEqual(['later']);
  });

  test('a bucket of which nothing is known is probed by one call before the others go', async () => {
    await loseRedis();
    const meters = [{ meter: 'requests', limit: 1_000, windowMs: 60_000 }] as const;
    await calls(40, 'w', { ...stated(1_000), setting: { meters, learn: true, probe: 1 } });
    expect(sentOf('w')).toBe(1);
    const [first] = one.grants;
    if (first !== undefined) await one.limiter.settle(first, { kind: 'succeeded', spent: null }, null);
    await redis.pass(50);
    expect(sentOf('w')).toBe(40);
  });

  const change = (limit: number | null) => {
    const { setting, lane, weight, maxInFlight, perMinute, ceilingTag } = admission('x', stated(limit));
    return {
      bucket: bucketKey('bucket'),
      setting,
      lanes: [{ lane, weight, maxInFlight, perMinute, ceilingTag }],
    };
  };

  test.each([
    ['before Redis was asked about the bucket', false],
    ['that Redis knew with the earlier limit', true],
  ])('a reload that raises a limit takes effect at once, in a bucket %s', async (_what, isKnown) => {
    if (isKnown) {
      await calls(1, 'before', stated(10));
      await redis.pass(1_500);
    }
    await loseRedis();
    await calls(100, 'w', stated(10));
    const before = sentOf('w');
    expect(before).toBeLessThanOrEqual(10);
    const changing = one.limiter.reconfigure(change(60));
    await redis.pass(50);
    await changing;
    expect(sentOf('w')).toBeGreaterThanOrEqual(45);
    expect(sentOf('w')).toBeLessThanOrEqual(61);
  });

  test('a reload that lowers a limit takes effect at once', async () => {
    await calls(1, 'before', stated(60));
    await redis.pass(1_500);
    await loseRedis();
    const changing = one.limiter.reconfigure(change(10));
    await redis.pass(50);
    await changing;
    await calls(100, 'w', stated(10));
    expect(sentOf('w')).toBeLessThanOrEqual(10);
  });

  test('a reload that lowers a limit holds for calls that were on their way to Redis', async () => {
    await calls(1, 'before', stated(60));
    await redis.pass(1_500);
    redis.isUnavailable = true;
    const asked = calls(40, 'late', stated(60));
    const changing = one.limiter.reconfigure(change(10));
    await redis.pass(2_500);
    await Promise.all([asked, changing]);
    expect(one.modes.at(-1)).toBe('local');
    expect(sentOf('late')).toBeLessThanOrEqual(10);
    redis.isUnavailable = false;
    await redis.pass(10_000);
    await calls(0, 'none', stated(10));
    // A unit of the lowered limit drains in six seconds.
    expect(sentOf('late')).toBeLessThanOrEqual(13);
  });

  test.each([
    ['before Redis was asked about the bucket', false],
    ['that Redis knew with the limit', true],
  ])('a reload that removes a limit lets all calls go, in a bucket %s', async (_what, isKnown) => {
    if (isKnown) {
      await calls(1, 'before', stated(10));
      await redis.pass(1_500);
    }
    await loseRedis();
    await calls(100, 'w', stated(10));
    const changing = one.limiter.reconfigure(change(null));
    await redis.pass(50);
    await changing;
    await calls(10, 'new', stated(null));
    expect([sentOf('w'), sentOf('new')]).toEqual([100, 10]);
  });

  test('a reload that adds a limit holds calls', async () => {
    await calls(1, 'before', stated(null));
    await redis.pass(1_500);
    await loseRedis();
    await calls(5, 'w', stated(null));
    const changing = one.limiter.reconfigure(change(10));
    await redis.pass(50);
    await changing;
    await calls(100, 'new', stated(10));
    expect(sentOf('new')).toBeLessThanOrEqual(10);
  });

  test('calls that were sent after the last reading of the meters are counted', async () => {
    await calls(1, 'before', stated(60));
    await redis.pass(1_500);
    // Redis is gone before the next tick reads the meters.
    await calls(50, 'burst', stated(60));
    expect(sentOf('burst')).toBe(50);
    await loseRedis();
    await calls(60, 'w', stated(60));
    expect(sentOf('w')).toBeLessThanOrEqual(15);
  });
});
