/** Admission over the embedded stores on virtual time: single promises, one by one. The simulation mixes them all. */
import { expect, test } from '@jest/globals';
import { ceilingKey } from '../../src/ids.ts';
import type { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Lease, Ticket } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { type Ceilings, CeilingStore } from '../../src/limiter/ceiling-store.ts';
import type { Grant } from '../../src/limiter/limiter.ts';
import { createEmbeddedLimiter, type Limiter } from '../../src/limiter/over-log/limiter.ts';
import { admission } from '../support/admission.ts';
import { callOf, embeddedQueue, type CallOptions, type Entering } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { atOrigins, type Instant } from '../support/at-origins.ts';
import { withMethods } from '../support/with-methods.ts';

interface World {
  readonly clock: FakeClock;
  readonly queue: AdmissionQueue;
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  /** The outcome of each call, in the order of the decisions. */
  readonly story: string[];
  readonly leases: Map<string, Lease>;
  /** When each call got its lease, on the clock of the process. */
  readonly grantedAt: number[];
  readonly gone: Map<string, AbortController>;
  enter(id: string, options?: CallOptions): void;
  /** Enters a call whose ticket the test itself holds. */
  ticketOf(id: string, options: CallOptions): Promise<Ticket>;
  /** Lets this many milliseconds pass. */
  pass(ms: number): Promise<void>;
}

/**
 * @param slowMs how long each request for a slot takes, by its number from 0 on.
 * @param backMs how long each reply takes after the slot was counted.
 */
function worldAt(
  instant: Instant,
  slowMs: readonly number[] = [],
  backMs: (asked: number) => number = () => 0,
): World {
  const clock = new FakeClock();
  const own = shiftedClock(clock, instant(0));
  const ceilings = slowly(new CeilingStore(own), clock, slowMs, backMs);
  const story: string[] = [];
  const leases = new Map<string, Lease>();
  const grantedAt: number[] = [];
  const gone = new Map<string, AbortController>();
  const { queue, limiter } = embeddedQueue({
    clock: own,
    ceilings,
    onFailure: (failure) => story.push(`bug ${String(failure)}`),
  });
  const entryOf = (id: string, options: CallOptions): Entering => {
    const leaves = new AbortController();
    gone.set(id, leaves);
    return callOf(own, id, { ...tenInTen, maxWaitMs: 100_000, ...options, clientGone: leaves.signal });
  };
  const follow = async (id: string, entering: Entering): Promise<void> => {
    try {
      const ticket = await queue.enter(...entering);
      leases.set(id, await ticket.whenGranted());
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
    enter: (id, options = {}) => void follow(id, entryOf(id, options)),
    ticketOf: (id, options) => queue.enter(...entryOf(id, options)),
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

atOrigins('the admission queue', (instant) => {
  const world = (slowMs?: readonly number[], backMs?: (asked: number) => number): World =>
    worldAt(instant, slowMs, backMs);

  test('sends calls in their order, also when the ceiling delays some of them by a window', async () => {
    const { enter, pass, story } = world();
    for (let at = 0; at < 8; at += 1) enter(`c${at}`, { ...plenty, perMinute: 3, maxWaitMs: 200_000 });
    await pass(1);
    expect(story).toEqual(['c0', 'c1', 'c2']);
    await pass(60_149);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4', 'c5']);
    await pass(60_160);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7']);
  });

  test('sends calls that arrive at the same instant in the order in which they came, whatever their names', async () => {
    const { enter, pass, story } = world();
    const names = Array.from({ length: 120 }, (_, at) => `c${(at * 77) % 1_000}`);
    for (const id of names) enter(id, { limit: 1, windowMs: 10, maxInFlight: null });
    await pass(6_000);
    expect(story).toEqual(names);
  });

  test('no longer counts slots one by one once many are free: all of them are used at once', async () => {
    const { enter, pass, story } = world();
    for (let at = 0; at < 60; at += 1) enter(`c${at}`, { ...plenty, perMinute: 30 });
    await pass(1);
    expect(story).toHaveLength(30);
    // One call goes ahead of a crowd after a silence; nobody answers it here, so the others follow 100 ms later.
    await pass(60_300);
    expect(story).toHaveLength(60);
  });

  test('refuses a call at once when its ceiling has no slot within its wait, and says when it has one', async () => {
    const { enter, pass, story } = world();
    enter('a', { ...plenty, perMinute: 1 });
    await pass(10);
    enter('b', { ...plenty, perMinute: 1 });
    await pass(1);
    enter('c', { ...plenty, perMinute: 1, maxWaitMs: 5_000 });
    await pass(1);
    expect(story).toEqual(['a', expect.stringMatching(/^c wait_too_long 1202\d\d/)]);
  });

  test('refuses a waiting call as soon as a more urgent call takes the slot it could have waited for', async () => {
    const { enter, pass, story } = world();
    const options = { ...plenty, perMinute: 2, maxWaitMs: 65_000 };
    enter('a', options);
    await pass(10_000);
    enter('b', options);
    await pass(10_000);
    enter('late', { ...options, maxWaitMs: 45_000 });
    await pass(10);
    expect(story).toEqual(['a', 'b']);
    enter('urgent', { ...options, urgency: 1 });
    await pass(1);
    expect(story).toEqual(['a', 'b', 'late wait_too_long 50140']);
  });

  test('shares the slots of a ceiling between its lanes in rotation, and refuses a call that is too late by that', async () => {
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
    // Lane `two` took the latest slot, so the next one belongs to lane `one`, although its call arrived later.
    expect(story).toEqual(['a', 'b', 'b-later wait_expired 48150']);
    await pass(60_000);
    expect(story.at(-1)).toBe('a-too');
  });

  test('refuses waiting calls at once when their bucket closes for longer than they can wait', async () => {
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

  test('refuses waiting calls at once when a call of unknown fate blocks their lane for longer than they can wait', async () => {
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

  test('gives units, slots and positions back when a client leaves, at whatever moment', async () => {
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
    expect(await ceilings.state({ key: ceilingKey('w'), perMinute: 5, perDay: null })).toMatchObject({
      remaining: 5,
    });
    expect(clock.timers).toBe(0);
  });

  test('counts a slot from when its call leaves, not from when the slot was asked for', async () => {
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

  test('serves calls although every reply about a slot takes longer than a slot may be old', async () => {
    const { enter, pass, story } = world([], () => 400);
    for (const id of ['a', 'b', 'c']) enter(id, { ...plenty, perMinute: 10, maxWaitMs: 4_000 });
    await pass(1_250);
    expect(story).toEqual(['a', 'b', 'c']);
    enter('d', { ...plenty, perMinute: 10, maxWaitMs: 4_000 });
    await pass(450);
    expect(story).toEqual(['a', 'b', 'c', 'd']);
  });

  test('sends no more calls than the ceiling in any 60 s, however slow the ceiling store is', async () => {
    // Replies get slower and faster again, so that a delayed call may meet a prompt one.
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

  test('takes a requeued ticket out of its lane when its client has left', async () => {
    const { clock, queue, gone, limiter, ticketOf } = world();
    const ticket = await ticketOf('a', plenty);
    const lease = await ticket.whenGranted();
    gone.get('a')?.abort();
    lease.settle({ kind: 'throttled', closeMs: 0, requeue: true, sleepMs: 5_000 }, null);
    await expect(ticket.whenGranted()).rejects.toBe(gone.get('a')?.signal.reason);
    await clock.run(1);
    expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 0 }]);
    expect(queue.waitingUnder(ceilingKey('w'))).toBe(0);
  });

  test('takes a call out of its lane when its client leaves while the ceiling refuses it', async () => {
    const { enter, pass, gone, limiter } = world([0, 300]);
    for (const id of ['a', 'b']) enter(id, { ...plenty, perMinute: 1 });
    await pass(100);
    gone.get('b')?.abort();
    await pass(300);
    expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 1 }]);
  });

  test('refuses waiting calls whose API key was revoked', async () => {
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

  test('ignores a second settlement of a lease', async () => {
    const { enter, pass, leases, limiter, ceilings } = world();
    enter('a', { ...plenty, perMinute: 5 });
    await pass(1);
    leases.get('a')?.settle({ kind: 'succeeded', spent: null }, null);
    leases.get('a')?.settle({ kind: 'dropped' }, null);
    leases.get('a')?.settle({ kind: 'throttled', closeMs: 5_000, requeue: true, sleepMs: 0 }, null);
    await pass(1);
    expect(limiter.snapshot()).toMatchObject([{ closedMs: 0, waiting: 0, inFlight: 0 }]);
    expect(await ceilings.state({ key: ceilingKey('w'), perMinute: 5, perDay: null })).toMatchObject({
      remaining: 4,
    });
  });

  test('refuses, when it drains, only the waiting calls that cannot leave before the drain ends', async () => {
    const { enter, pass, story, queue } = world();
    for (const id of ['a', 'b', 'c', 'd']) enter(id, { limit: 1, windowMs: 10_000 });
    await pass(1);
    queue.drain(15_000);
    await pass(30_000);
    expect(story.toSorted()).toEqual(['a', 'b', 'c draining 1000', 'd draining 1000']);
  });
});

atOrigins('the embedded limiter', (instant) => {
  // Guards a bug: a forecast contained the uptime of the process, so every second call of a workspace was refused.
  test('refuses no call of a workspace that is new to a busy bucket, whatever the time on its clock', async () => {
    const clock = new FakeClock();
    const own = shiftedClock(clock, instant(0));
    const granted = new Map<string, number>();
    const onGrant = (grant: Grant): void => {
      granted.set(grant.ticket, clock.monotonic());
      clock.outside(clock.monotonic() + 100, () => {
        void limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
      });
    };
    const limiter = createEmbeddedLimiter(own, { onGrant, onClosed() {} });
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
    const waits = [...granted].flatMap(([id, at]) => (id.startsWith('m') ? [at - 50_000] : []));
    expect(waits).toHaveLength(25);
    expect(Math.max(...waits)).toBeLessThanOrEqual(40_000);
    await limiter.close();
  });

  test('reports grants to calls in order, also when a grant is given back while others are being reported', async () => {
    const clock = new FakeClock();
    const granted: string[] = [];
    const limiter: Limiter = createEmbeddedLimiter(shiftedClock(clock, instant(0)), {
      onGrant(grant) {
        granted.push(grant.ticket);
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
    expect(granted).toEqual(['t1', 't2', 't3']);
    await limiter.close();
  });
});
