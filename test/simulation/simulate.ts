/**
 * One history: real desk, limiter and ceilings on virtual time against a simulated upstream, and everything that is
 * wrong with it. Equal seeds give equal histories.
 */
import { createDesk, type Desk } from '../../src/admission/admit.ts';
import type { Clock } from '../../src/clock.ts';
import type { Limiter, LimiterListener } from '../../src/limiter/limiter.ts';
import { createMemoryCeilings } from '../../src/limiter/memory-ceilings.ts';
import { createMemoryLimiter } from '../../src/limiter/memory-limiter.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { balance } from './balance.ts';
import { Books, must } from './books.ts';
import { Chance } from './chance.ts';
import { drive } from './driver.ts';
import { planOf, type Plan } from './plan.ts';
import { Progress } from './progress.ts';
import { Upstream } from './upstream.ts';
import { ratesOf, Wire, wiredCeilings, wiredLimiter } from './wire.ts';

/** A history that is not over by then hangs. Virtual milliseconds; longer than every wait and every closed bucket. */
const longestHistoryMs = 3_600_000;
const recheckMs = 5_000;

export interface History {
  readonly violations: readonly string[];
  readonly reached: ReadonlyMap<string, number>;
  readonly log: readonly string[];
  /** The clock by which it took place, in words. */
  readonly origin: string;
}

export const simulate = (seed: number): Promise<History> => run(planOf(seed));

export async function run(plan: Plan): Promise<History> {
  const chance = new Chance(plan.seed ^ 0x51ce);
  const clock = new FakeClock(() => (chance.happens(0.3) ? chance.between(0, 1.5) : 0));
  const own = shiftedClock(clock, plan.origin.ms);
  const books = new Books(plan);
  const upstreams = new Map(plan.buckets.map((bucket) => [bucket.key, new Upstream(bucket)]));
  const lastArrival = new Map<string, number>();
  const desks: Desk[] = [];
  const home = new Map<string, number>();
  const wires = Array.from({ length: plan.desks }, () => new Wire(clock, chance, plan.wireMs));

  const listener: LimiterListener = {
    onGrant(grant) {
      books.issued(grant.ticket, grant.lease, ratesOf(store, grant.bucket), clock.monotonic());
      const at = home.get(grant.ticket) ?? 0;
      wires[at]?.tell(() => desks[at]?.listener.onGrant(grant));
    },
    onClosed(bucket, closedMs) {
      books.reach('bucket closed');
      desks.forEach((desk, at) => wires[at]?.tell(() => desk.listener.onClosed(bucket, closedMs)));
    },
  };
  const store: Limiter = createMemoryLimiter(storeClock(clock, books, chance), listener);
  const ceilings = createMemoryCeilings(own);
  for (const wire of wires) {
    const limiter = wiredLimiter(wire, () => store, books, clock);
    desks.push(
      createDesk({
        clock: own,
        limiter: () => limiter,
        ceilings: wiredCeilings(wire, ceilings, books, clock),
        onFailure: (failure) => books.broken(clock.monotonic(), '10', `background: ${String(failure)}`),
      }),
    );
  }

  for (const call of plan.calls) {
    const at = chance.whole(0, plan.desks - 1);
    home.set(call.id, at);
    const book = books.call(call.id);
    const bucket = must(
      plan.buckets.find(({ key }) => key === call.lane.bucket),
      call.lane.bucket,
    );
    const upstream = must(upstreams.get(bucket.key), bucket.key);
    const desk = must(desks[at], `desk ${at}`);
    clock.arrives(call.at, () => {
      void drive({ clock, chance, books, desk, upstream, bucket, lastArrival }, book);
    });
  }
  for (const { at, ms } of plan.stalls) {
    clock.arrives(at, () => {
      books.reach('stalled');
      clock.stall(ms);
    });
  }
  for (const { revokedAt } of plan.workspaces) {
    if (revokedAt < Infinity) clock.arrives(revokedAt, () => desks.forEach((desk) => desk.recheckKeys()));
  }
  const lastAt = Math.max(0, ...plan.calls.map(({ at }) => at));
  for (let at = recheckMs; at < lastAt; at += recheckMs) {
    clock.arrives(at, () => desks.forEach((desk) => desk.recheckKeys()));
  }

  const progress = new Progress(books, () => store, upstreams);
  const over = await clock.run(longestHistoryMs, (now) => {
    progress.look(now, clock.stalledUntil);
    const ended = [...books.calls.values()].every(({ state }) => state === 'ended');
    // What may still be set then: the tick, and one wake-up for each bucket.
    if (ended && clock.timers > 1 + plan.buckets.length)
      books.broken(now, '10', `${clock.timers} timers are left`);
  });
  // A quota of a day may close a bucket for longer than anybody waits: then only the tick is left.
  const closed = store.snapshot().some(({ closedMs }) => closedMs > 0);
  if (!over && !closed) books.broken(clock.monotonic(), '10', 'the history does not end');
  await balance({ closed, books, clock, store, ceilings, desks, upstreams: [...upstreams.values()] });
  await store.close();
  await ceilings.close();
  const { violations, reached, log } = books;
  return { violations, reached, log, origin: plan.origin.name };
}

/** The store's own timers: outside the process when there is a wire; some wake-ups are lost, ticks never. */
function storeClock(clock: FakeClock, books: Books, chance: Chance): Clock {
  const { plan } = books;
  return {
    ...shiftedClock(clock, plan.origin.ms),
    after(delayMs, ring) {
      if (delayMs !== 1_000 && plan.lostWakes > 0 && chance.happens(plan.lostWakes)) {
        books.reach('wake-up lost');
        return () => {};
      }
      if (plan.wireMs === 0) return clock.after(delayMs, ring);
      return clock.outside(clock.monotonic() + Math.max(1, Math.ceil(delayMs)), ring);
    },
  };
}
