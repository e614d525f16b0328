/** Admission over the embedded stores on virtual time: single promises, one by one. The simulation mixes them all. */
import { expect, test } from '@jest/globals';
import type { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Lease, Ticket } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import type { Ceilings } from '../../src/limiter/ceilings.ts';
import type { Grant, Limiter } from '../../src/limiter/limiter.ts';
import { EmbeddedCeilings } from '../../src/limiter/embedded/ceilings.ts';
import { createMemoryLimiter } from '../../src/limiter/embedded/limiter.ts';
import { admission } from '../support/admission.ts';
import { callOf, embeddedQueue, type CallWish, type Entering } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { atOrigins, type Instant } from './at-origins.ts';
import { withMethods } from '../support/with-methods.ts';

interface World {
  readonly clock: FakeClock;
  readonly queue: AdmissionQueue;
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  /** What became of each call, in the order in which it was decided. */
  readonly story: string[];
  readonly leases: Map<string, Lease>;
  /** When each call got its lease, on the clock of the process. */
  readonly grantedAt: number[];
  readonly gone: Map<string, AbortController>;
  enter(id: string, wish?: CallWish): void;
  /** Enters a call whose ticket the test itself holds. */
  ticketOf(id: string, wish: CallWish): Promise<Ticket>;
  /** Lets this many milliseconds pass. */
  pass(ms: number): Promise<void>;
}

/**
 * @param slowMs how long each asking for a place takes, by its number from 0 on.
 * @param backMs how long the reply to each takes, after the place was counted.
 */
function worldAt(
  instant: Instant,
  slowMs: readonly number[] = [],
  backMs: (asked: number) => number = () => 0,
): World {
  const clock = new FakeClock();
  const own = shiftedClock(clock, instant(0));
  const ceilings = slowly(new EmbeddedCeilings(own), clock, slowMs, backMs);
  const story: string[] = [];
  const leases = new Map<string, Lease>();
  const grantedAt: number[] = [];
  const gone = new Map<string, AbortController>();
  const { queue, limiter } = embeddedQueue({
    clock: own,
    ceilings,
    onFailure: (failure) => story.push(`bug ${String(failure)}`),
  });
  const entryOf = (id: string, wish: CallWish): Entering => {
    const leaves = new AbortController();
    gone.set(id, leaves);
    return callOf(own, id, { ...tenInTen, maxWaitMs: 100_000, ...wish, clientGone: leaves.signal });
  };
  const follow = async (id: string, entering: Entering): Promise<void> => {
    try {
      const ticket = await queue.enter(...entering);
      leases.set(id, await ticket.granted());
      grantedAt.push(own.monotonic());
      story.push(id);
    } catch (failure) {
      const ms = failure instanceof Refusal ? (failure.details.retryInMs ?? 0) : -1;
      story.push(`${id} ${failure instanceof Refusal ? failure.code : String(failure)} ${ms}`);
    }
  };
  return {
    clock,
    queue,
    limiter,
    ceilings,
    story,
    leases,
    grantedAt,
    gone,
    enter: (id, wish = {}) => void follow(id, entryOf(id, wish)),
    ticketOf: (id, wish) => queue.enter(...entryOf(id, wish)),
    async pass(ms) {
      const until = clock.monotonic() + ms;
      clock.outside(until, () => {});
      await clock.run(until);
    },
  };
}

function slowly(
  ceilings: Ceilings,
  clock: FakeClock,
  slowMs: readonly number[],
  backMs: (asked: number) => number,
): Ceilings {
  let asked = 0;
  const pass = async (ms: number): Promise<void> => {
    if (ms > 0) await new Promise<void>((resolve) => void clock.after(ms, resolve));
  };
  return withMethods(ceilings, {
    async take(ceiling, again, lateMs) {
      const number = asked++;
      await pass(slowMs[number] ?? 0);
      const reply = await ceilings.take(ceiling, again, lateMs);
      await pass(backMs(number));
      return reply;
    },
  });
}

const tenInTen = { limit: 10, windowMs: 10_000, maxQueued: 1_000_000 };
const plenty = { limit: 1_000, windowMs: 1_000 };

atOrigins('admission', (instant) => {
  const world = (slowMs?: readonly number[], backMs?: (asked: number) => number): World =>
    worldAt(instant, slowMs, backMs);

  test('lets calls leave in their order, also over the edge of the ceiling', async () => {
    const { enter, pass, story } = world();
    for (let at = 0; at < 8; at += 1) enter(`c${at}`, { ...plenty, perMinute: 3, maxWaitMs: 200_000 });
    await pass(1);
    expect(story).toEqual(['c0', 'c1', 'c2']);
    await pass(60_149);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4', 'c5']);
    await pass(60_160);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7']);
  });

  test('lets calls of one moment leave in the order in which they came, whatever their names', async () => {
    const { enter, pass, story } = world();
    const names = Array.from({ length: 120 }, (_, at) => `c${(at * 77) % 1_000}`);
    for (const id of names) enter(id, { limit: 1, windowMs: 10, maxInFlight: null });
    await pass(6_000);
    expect(story).toEqual(names);
  });

  test('leaves the edge again: many freed places are used at once', async () => {
    const { enter, pass, story } = world();
    for (let at = 0; at < 60; at += 1) enter(`c${at}`, { ...plenty, perMinute: 30 });
    await pass(1);
    expect(story).toHaveLength(30);
    await pass(60_200);
    expect(story).toHaveLength(60);
  });

  test('refuses at once what the ceiling has no place for in time, and says when it has', async () => {
    const { enter, pass, story } = world();
    enter('a', { ...plenty, perMinute: 1 });
    await pass(10);
    enter('b', { ...plenty, perMinute: 1 });
    await pass(1);
    enter('c', { ...plenty, perMinute: 1, maxWaitMs: 5_000 });
    await pass(1);
    expect(story).toEqual(['a', expect.stringMatching(/^c wait_too_long 1202\d\d/)]);
  });

  test('tells a call at once that a more urgent one has overtaken, when its turn is too late now', async () => {
    const { enter, pass, story } = world();
    const wish = { ...plenty, perMinute: 2, maxWaitMs: 65_000 };
    enter('a', wish);
    await pass(10_000);
    enter('b', wish);
    await pass(10_000);
    enter('late', { ...wish, maxWaitMs: 45_000 });
    await pass(10);
    expect(story).toEqual(['a', 'b']);
    enter('urgent', { ...wish, urgency: 1 });
    await pass(1);
    expect(story).toEqual(['a', 'b', 'late wait_too_long 50140']);
  });

  test('gives lanes under one ceiling their places in turn, and tells whose turn is too late now', async () => {
    const { enter, pass, story } = world();
    const one = { ...plenty, perMinute: 2, bucket: 'one', lane: 'one', maxWaitMs: 65_000 };
    const two = { ...one, bucket: 'two', lane: 'two' };
    enter('a', one);
    await pass(10_000);
    enter('b', two);
    await pass(10_000);
    enter('b-later', { ...two, maxWaitMs: 45_000 });
    await pass(2_000);
    enter('a-too', one);
    await pass(1);
    // Two had the latest place: the next one is for the other lane, however late its call came.
    expect(story).toEqual(['a', 'b', 'b-later wait_too_long 48150']);
    await pass(60_000);
    expect(story.at(-1)).toBe('a-too');
  });

  test('tells everybody who cannot make it when a bucket closes for long', async () => {
    const { enter, pass, story, leases } = world();
    enter('a', { ...plenty, maxInFlight: 1 });
    enter('b', { ...plenty, maxInFlight: 1, maxWaitMs: 5_000 });
    enter('c', { ...plenty, maxInFlight: 1 });
    await pass(1);
    leases.get('a')?.settle({ kind: 'throttled', closeMs: 9_000, requeue: false, sleepMs: 0 }, null);
    await pass(1);
    expect(story).toEqual(['a', 'b wait_too_long 9000']);
    await pass(9_001);
    expect(story).toEqual(['a', 'b wait_too_long 9000', 'c']);
  });

  test('tells everybody who cannot make it when the fate of a call leaves its lane standing', async () => {
    const { enter, pass, story, leases } = world();
    enter('a', { ...plenty, maxInFlight: 1 });
    enter('b', { ...plenty, maxInFlight: 1, maxWaitMs: 5_000 });
    enter('c', { ...plenty, maxInFlight: 1 });
    enter('d', { ...plenty, maxInFlight: 1, lane: 'other', maxWaitMs: 5_000 });
    await pass(1);
    enter('e', { ...plenty, maxInFlight: 1, lane: 'other', maxWaitMs: 5_000 });
    leases.get('a')?.settle({ kind: 'unknown' }, null);
    await pass(1);
    enter('f', { ...plenty, maxInFlight: 1, maxWaitMs: 5_000 });
    await pass(1);
    expect(story).toEqual(['a', 'd', 'b wait_too_long 15000', 'f wait_too_long 14999']);
    await pass(16_000);
    expect(story.slice(4)).toEqual(['e wait_expired 5001', 'c']);
  });

  test('gives everything back when a client leaves, at whatever moment', async () => {
    const { enter, pass, story, gone, limiter, ceilings, leases, clock } = world();
    enter('a', { limit: 1, windowMs: 1_000_000, perMinute: 5 });
    enter('b', { limit: 1, windowMs: 1_000_000, perMinute: 5, maxWaitMs: 2_000_000 });
    enter('x', { limit: 1, windowMs: 1_000_000, perMinute: 5, maxWaitMs: 2_000_000 });
    gone.get('a')?.abort();
    await pass(1);
    gone.get('x')?.abort();
    await pass(1);
    leases.get('b')?.settle({ kind: 'dropped' }, null);
    await pass(5_000);
    expect(story).toHaveLength(3);
    expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 0 }]);
    expect(limiter.snapshot()[0]?.meters[0]?.level).toBeLessThan(0.001);
    expect(await ceilings.state({ key: 'w', perMinute: 5, perDay: null })).toMatchObject({ remaining: 5 });
    expect(clock.timers).toBe(0);
  });

  test('counts a place from when its call leaves, not from when it was asked for', async () => {
    const { enter, pass, story } = world([300]);
    for (const id of ['a', 'b']) enter(id, { ...plenty, perMinute: 2 });
    await pass(301);
    expect(story).toEqual(['a', 'b']);
    enter('c', { ...plenty, perMinute: 2 });
    await pass(60_050);
    expect(story).toEqual(['a', 'b']);
    await pass(110);
    expect(story).toEqual(['a', 'b', 'c']);
  });

  test('serves calls though no place can be had as fast as a fresh one must be', async () => {
    const { enter, pass, story } = world([], () => 400);
    for (const id of ['a', 'b', 'c']) enter(id, { ...plenty, perMinute: 10, maxWaitMs: 4_000 });
    await pass(1_250);
    expect(story).toEqual(['a', 'b', 'c']);
    enter('d', { ...plenty, perMinute: 10, maxWaitMs: 4_000 });
    await pass(450);
    expect(story).toEqual(['a', 'b', 'c', 'd']);
  });

  test('lets no more than the ceiling leave in any 60 s, however far away the store is', async () => {
    // From near to far and back, so that a late call may meet a prompt one.
    const { enter, pass, grantedAt } = world([], (asked) => [0, 120, 450, 1_300, 300, 90, 0][asked % 7] ?? 0);
    for (let at = 0; at < 24; at += 1) {
      enter(`c${at}`, { ...plenty, perMinute: 3, maxWaitMs: 900_000 });
      await pass(at % 4 === 0 ? 700 : 5);
    }
    await pass(600_000);
    const left = grantedAt.toSorted((a, b) => a - b);
    expect(left).toHaveLength(24);
    for (const [at, time] of left.entries()) {
      expect(time - (left[at - 3] ?? -Infinity)).toBeGreaterThanOrEqual(60_000);
    }
  });

  test('takes a ticket out of the line that came back when its client had left', async () => {
    const { clock, queue, gone, limiter, ticketOf } = world();
    const ticket = await ticketOf('a', plenty);
    const lease = await ticket.granted();
    gone.get('a')?.abort();
    lease.settle({ kind: 'throttled', closeMs: 0, requeue: true, sleepMs: 5_000 }, null);
    await expect(ticket.granted()).rejects.toBe(gone.get('a')?.signal.reason);
    await clock.run(1);
    expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 0 }]);
    expect(queue.waitingUnder('w')).toBe(0);
  });

  test('keeps no place in the line for a client that left while the ceiling refused it', async () => {
    const { enter, pass, gone, limiter } = world([0, 300]);
    for (const id of ['a', 'b']) enter(id, { ...plenty, perMinute: 1 });
    await pass(100);
    gone.get('b')?.abort();
    await pass(300);
    expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 1 }]);
  });

  test('refuses waiting calls whose key was taken away', async () => {
    const { enter, pass, story, queue } = world();
    let valid = true;
    enter('a', { limit: 1, windowMs: 60_000 });
    enter('b', { limit: 1, windowMs: 60_000, stillValid: () => valid });
    await pass(1);
    valid = false;
    queue.recheckKeys();
    await pass(1);
    expect(story).toEqual(['a', 'b unauthenticated 0']);
  });

  test('a second settlement changes nothing', async () => {
    const { enter, pass, leases, limiter, ceilings } = world();
    enter('a', { ...plenty, perMinute: 5 });
    await pass(1);
    leases.get('a')?.settle({ kind: 'succeeded', spent: null }, null);
    leases.get('a')?.settle({ kind: 'dropped' }, null);
    leases.get('a')?.settle({ kind: 'throttled', closeMs: 5_000, requeue: true, sleepMs: 0 }, null);
    await pass(1);
    expect(limiter.snapshot()).toMatchObject([{ closedMs: 0, waiting: 0, inFlight: 0 }]);
    expect(await ceilings.state({ key: 'w', perMinute: 5, perDay: null })).toMatchObject({ remaining: 4 });
  });

  test('lets those stay that leave before the draining ends', async () => {
    const { enter, pass, story, queue } = world();
    for (const id of ['a', 'b', 'c', 'd']) enter(id, { limit: 1, windowMs: 10_000 });
    await pass(1);
    queue.drain(15_000);
    await pass(30_000);
    expect(story.toSorted()).toEqual(['a', 'b', 'c draining 1000', 'd draining 1000']);
  });
});

atOrigins('the embedded limiter', (instant) => {
  // Once every second call of a workspace was refused for the uptime of the process.
  test('refuses no call of a workspace that is new to a busy bucket because of the clock', async () => {
    const clock = new FakeClock();
    const own = shiftedClock(clock, instant(0));
    const told = new Map<string, number>();
    const onGrant = (grant: Grant): void => {
      told.set(grant.ticket, clock.monotonic());
      clock.outside(clock.monotonic() + 100, () => {
        void limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
      });
    };
    const limiter = createMemoryLimiter(own, { onGrant, onClosed() {} });
    const store = { limit: 40, windowMs: 20_000, maxInFlight: 1, maxQueued: 1_000 };
    const enter = async (id: string, lane: string, maxWaitMs: number): Promise<string> => {
      const asked = admission(id, { ...store, lane, maxWaitMs, arrivedAt: own.monotonic() });
      const reply = await limiter.admit(asked);
      if (reply.kind === 'granted') onGrant(reply.grant);
      return reply.kind;
    };
    for (let at = 0; at < 200; at += 1) await enter(`e${at}`, 'e', 600_000);
    clock.outside(50_000, () => {});
    await clock.run(50_000);
    const kinds: string[] = [];
    for (const lane of ['m1', 'm2', 'm3', 'm4', 'm5']) {
      for (let at = 0; at < 5; at += 1) kinds.push(await enter(`${lane}.${at}`, lane, 40_000));
    }
    expect(kinds.filter((kind) => kind === 'refused')).toEqual([]);
    await clock.run(95_000);
    const waits = [...told].flatMap(([id, at]) => (id.startsWith('m') ? [at - 50_000] : []));
    expect(waits).toHaveLength(25);
    expect(Math.max(...waits)).toBeLessThanOrEqual(40_000);
    await limiter.close();
  });

  test('hands grants out in their order, also when a grant is given back while others are being told', async () => {
    const clock = new FakeClock();
    const told: string[] = [];
    const limiter: Limiter = createMemoryLimiter(shiftedClock(clock, instant(0)), {
      onGrant(grant) {
        told.push(grant.ticket);
        if (grant.ticket === 't1') void limiter.settle(grant, { kind: 'dropped' }, null);
      },
      onClosed() {},
    });
    const setting = { limit: 3, windowMs: 1_000, maxInFlight: 2 };
    const first = [
      await limiter.admit(admission('a', setting)),
      await limiter.admit(admission('b', setting)),
    ];
    for (const id of ['t1', 't2', 't3']) await limiter.admit(admission(id, setting));
    const [one, other] = first.flatMap((reply) => (reply.kind === 'granted' ? [reply.grant] : []));
    if (one === undefined || other === undefined) throw new Error('nothing was granted');
    const closed = { kind: 'throttled', closeMs: 2_000, requeue: false, sleepMs: 0 } as const;
    await limiter.settle(one, closed, null);
    await limiter.settle(other, closed, null);
    clock.outside(5_000, () => {});
    await clock.run(5_000);
    expect(told).toEqual(['t1', 't2', 't3']);
    await limiter.close();
  });
});
