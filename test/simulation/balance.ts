/**
 * The balance when everything is over: every call has ended once, nothing is held by anybody, everything that was
 * reserved and not used came back, and the upstream's log shows no more than each ceiling allows.
 */
import { ceilingKey } from '../../src/ids.ts';
import type { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Ceilings } from '../../src/limiter/ceilings.ts';
import type { Limiter } from '../../src/limiter/limiter.ts';
import type { FakeClock } from '../support/fake-clock.ts';
import type { Books } from './books.ts';
import { highest, perDayOf, perMinuteOf } from './rules.ts';
import type { Upstream } from './upstream.ts';

export interface Leftovers {
  /** Some bucket is closed for long: its tick goes on. */
  readonly closed: boolean;
  readonly books: Books;
  readonly clock: FakeClock;
  readonly store: Limiter;
  readonly ceilings: Ceilings;
  readonly queues: readonly AdmissionQueue[];
  readonly upstreams: readonly Upstream[];
}

/** What left under the limits of before arrives within this time. Milliseconds. */
const wayMs = 50;

export async function balance({ closed, books, clock, store, queues, upstreams }: Leftovers): Promise<void> {
  const now = clock.monotonic();
  const broken = (invariant: string, text: string): void => books.broken(now, invariant, text);
  for (const call of books.calls.values()) {
    if (call.ends.length !== 1) broken('10', `${call.plan.id} ended ${call.ends.length} times`);
  }
  for (const [token, lease] of books.leases) {
    if (lease.settlements !== 1) broken('8', `lease ${token} was settled ${lease.settlements} times`);
  }
  for (const lane of books.lanes.values()) {
    if (lane.line.size > 0)
      broken(
        '9',
        `${[...lane.line].map(({ plan }) => plan.id).join(', ')} stay in the line of ${lane.plan.key}`,
      );
  }
  for (const bucket of store.snapshot()) {
    if (bucket.waiting > 0) broken('10', `${bucket.waiting} tickets stay in ${bucket.bucket}`);
    if (bucket.inFlight > 0) broken('10', `${bucket.inFlight} leases stay in ${bucket.bucket}`);
  }
  if (clock.timers > (closed ? 2 : 0)) broken('10', `${clock.timers} timers are left`);
  for (const book of books.ceilings.values()) {
    for (const queue of queues) {
      if (queue.waitingUnder(ceilingKey(book.plan.name)) !== 0)
        broken('10', `a queue still counts calls of ${book.plan.name}`);
    }
    const sends = [...books.calls.values()]
      .filter(({ workspace }) => workspace === book.plan)
      .reduce((sum, call) => sum + call.sends, 0);
    const unsent = [...books.leases.values()].filter(
      ({ call, sent, returned }) => call.workspace === book.plan && sent && returned,
    ).length;
    if (book.takes - book.givenBack !== sends - unsent) {
      broken('9', `${book.plan.name} paid ${book.takes - book.givenBack} slots for ${sends - unsent} sends`);
    }
    const paused = books.plan.wireMs > 0 && books.plan.stalls.length > 0;
    // A pause between taking a place at a distant store and sending is the one thing that no store can see.
    if (!paused) windows(books, book.plan.name, upstreams, broken);
    const arrived = upstreams
      .flatMap(({ arrivals }) => arrivals)
      .filter(({ call }) => call.lane.workspace === book.plan.name).length;
    const perDay = highest([books.plan, ...books.plan.reloads], perDayOf(book.plan.name));
    if (perDay !== null && arrived > perDay) {
      broken('1', `${book.plan.name} sent ${arrived} on a day of ${perDay}`);
    }
  }
}

/**
 * No 60 s of the upstream's log hold more calls of a workspace than its ceiling when the last of them left. A call that left
 * while there was no ceiling counts for none that came later.
 */
function windows(
  books: Books,
  workspace: string,
  upstreams: readonly Upstream[],
  broken: (invariant: string, text: string) => void,
): void {
  const limitAt = (at: number): number | null =>
    highest(books.rules.during(at - 12 * books.plan.wireMs - wayMs, at), perMinuteOf(workspace));
  const counted: number[] = [];
  const times = upstreams
    .flatMap(({ arrivals }) => arrivals)
    .filter(({ call }) => call.lane.workspace === workspace)
    .map(({ at }) => at)
    .toSorted((a, b) => a - b);
  for (const at of times) {
    const perMinute = limitAt(at);
    if (perMinute === null) continue;
    const before = counted[counted.length - perMinute];
    if (before !== undefined && at - before < 60_000) {
      broken('1', `${workspace} sent ${perMinute + 1} within ${(at - before).toFixed(1)} ms`);
    }
    counted.push(at);
    if (counted.length >= perMinute) books.reach('ceiling used up');
  }
}
