/**
 * Replicas over a Redis that is away, that loses its data, or beside one that stands still: no limit and no lane is exceeded. What a
 * replica does alone stands in `over-log/faults.test.ts`.
 */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { ceilingKey } from '../../../src/ids.ts';
import type { Grant } from '../../../src/limiter/limiter.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { startPair, type VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

const leaseMs = 15_000;
/** In this time replicas notice a loss, and have said what they have under way. */
const recoveredMs = 3_000;
/** Each replica has a tick a second. */
const tickMs = 1_000;
const oneAtATime: AdmissionOptions = { lane: 'capped', maxInFlight: 1, maxWaitMs: 600_000 };

let redis: VirtualRedis;
let one: VirtualReplica;
let two: VirtualReplica;
let end: () => Promise<void>;
beforeEach(async () => {
  ({ redis, one, two, close: end } = await startPair());
});
afterEach(() => end());

/** A call that came now; what it may leave with is noted among the grants of its replica. */
async function enter({ limiter, grants }: VirtualReplica, ticket: string, options = oneAtATime) {
  const asked = limiter.admit(admission(ticket, { ...options, arrivedAt: redis.clock.monotonic() }));
  await redis.pass(20);
  const reply = await asked;
  if (reply.kind === 'granted') grants.push(reply.grant);
  return reply;
}

async function closed(replica: VirtualReplica): Promise<void> {
  const closing = replica.close();
  await redis.pass(1_000);
  await closing;
}

async function settled({ limiter, grants }: VirtualReplica, ticket: string): Promise<void> {
  const grant = grants.find((each) => each.ticket === ticket);
  if (grant === undefined) throw new Error(`${ticket} was not granted`);
  const settling = limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
  await redis.pass(20);
  await settling;
}

const left = (): string[] => [...one.grants, ...two.grants].map(({ ticket }) => ticket);

describe('when Redis is available again', () => {
  const sixty: AdmissionOptions = { limit: 60, windowMs: 60_000, maxWaitMs: 600_000, maxQueued: 1_000 };
  const many = (replica: VirtualReplica, name: string, count: number): Promise<unknown> =>
    Promise.all(Array.from({ length: count }, (_, n) => enter(replica, `${name}${n}`, sixty)));
  /** All grants together: what the bucket held at first, and what has drained. */
  const isWithinLimit = (): void =>
    expect(one.grants.length + two.grants.length).toBeLessThanOrEqual(
      1 + 60 + redis.clock.monotonic() / 1_000,
    );

  test('no new call is sent before earlier sends are reported, however long it takes to put sends back', async () => {
    await many(one, 'before', 60);
    const taking = one.ceilings.take({ key: ceilingKey('acme'), perMinute: 1_000, perDay: null });
    await redis.pass(1_500);
    expect((await taking).kind).toBe('taken');
    redis.isUnavailable = true;
    await redis.pass(2_500);
    // One unit drains per second, and this replica has half of them.
    await many(one, 'meanwhile', 40);
    await redis.pass(20_000);
    expect(one.grants.length).toBeGreaterThan(60 + 8);
    redis.isUnavailable = false;
    redis.restoreMs = 400;
    while (one.modes.at(-1) !== 'redis')
      expect((await enter(one, `arriving${redis.clock.monotonic()}`, sixty)).kind).toBe('queued');
    await redis.pass(1_000);
    isWithinLimit();
  });

  test('a replica that knows nothing of an emptied Redis does not begin before the others are back', async () => {
    await closed(two);
    two = await redis.replica('new', 'deny');
    await redis.pass(1_500);
    await many(one, 'before', 60);
    redis.isUnavailable = true;
    await redis.pass(2_500);
    expect(two.modes.at(-1)).toBe('deny');
    redis.server.flush();
    redis.cut.add('one');
    redis.isUnavailable = false;
    for (let tried = 0; tried < 60; tried += 1) {
      if (tried === 20) redis.cut.clear();
      await enter(two, `new${tried}`, sixty);
      await redis.pass(10);
    }
    await redis.pass(3_000);
    expect([one.modes.at(-1), two.modes.at(-1)]).toEqual(['redis', 'redis']);
    isWithinLimit();
  });
});

describe('a call of a capped lane', () => {
  /** `first` of `one` is under way, and one of each replica waits behind it. */
  beforeEach(async () => {
    const entering = [
      [one, 'first'],
      [two, 'second'],
      [one, 'third'],
    ] as const;
    for (const [replica, ticket] of entering) await enter(replica, ticket);
    expect(left()).toEqual(['first']);
    await redis.pass(2_000);
  });

  /** The next call is granted when the one under way has ended, and not before; no lease counts as lost. */
  async function goesOn(): Promise<void> {
    expect(left()).toEqual(['first']);
    await settled(one, 'first');
    await redis.pass(1_000);
    expect(left()).toEqual(['first', 'second']);
    expect([...one.lost, ...two.lost]).toEqual([]);
  }

  test('keeps its lane until it ends, however often Redis loses its data, and a lane without a cap goes on', async () => {
    for (let loss = 0; loss < 4; loss += 1) {
      redis.server.flush();
      await redis.pass(recoveredMs);
      const uncapped = await enter(two, `uncapped${loss}`, { lane: 'uncapped' });
      expect(uncapped.kind).toBe('granted');
      two.grants.pop();
    }
    await redis.pass(2 * leaseMs);
    await goesOn();
  });

  test.each([4_000, leaseMs - 2_000])('keeps its lane over an absence of Redis of %d ms', async (ms) => {
    redis.isUnavailable = true;
    await redis.pass(ms);
    expect(one.modes.at(-1)).toBe('local');
    redis.isUnavailable = false;
    await redis.pass(recoveredMs);
    expect(one.modes.at(-1)).toBe('redis');
    await goesOn();
  });

  test.each([
    ['starts on', true],
    ['has started before it comes to', false],
  ])('has none beside it of a replica that %s an emptied Redis', async (_how, isLater) => {
    if (isLater) redis.server.flush();
    const three = await redis.replica('three');
    if (!isLater) redis.server.flush();
    void enter(three, 'early');
    await redis.pass(leaseMs);
    expect(three.grants).toEqual([]);
    await goesOn();
    await closed(three);
  });

  test('keeps its lane for one lease while its replica stands still, and then its lease counts as lost', async () => {
    const [first] = one.grants as [Grant];
    redis.still.add('one');
    await redis.pass(leaseMs - tickMs - 500);
    expect(left()).toEqual(['first']);
    await redis.pass(2 * tickMs + 500);
    expect(left()).toEqual(['first', 'second']);
    // Its call must not go on: the lease counts as run out before the lane is given to another one.
    expect(first.expiresAt).toBeLessThan(redis.clock.monotonic());
    redis.still.clear();
    await redis.pass(2 * tickMs);
    await settled(one, 'first');
    expect(one.lost).toEqual(['expired']);
  });
});
