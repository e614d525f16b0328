/**
 * The balance when everything is over: every call has ended once, nothing is held by anybody, everything that was
 * reserved and not used came back, and the upstream's log shows no more than each ceiling allows.
 */
import { ceilingKey } from '../../src/ids.ts';
import type { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Ceilings } from '../../src/limiter/ceiling-store.ts';
import type { Limiter } from '../../src/limiter/over-log/limiter.ts';
import type { FakeClock } from '../support/fake-clock.ts';
import type { Ledger } from './ledger.ts';
import { highest, perDayOf, perMinuteOf } from './rules.ts';
import type { Upstream } from './upstream.ts';

export interface Leftovers {
  /** Some bucket is closed for long: its tick goes on. */
  readonly closed: boolean;
  readonly ledger: Ledger;
  readonly clock: FakeClock;
  readonly store: Limiter;
  readonly ceilings: Ceilings;
  readonly queues: readonly AdmissionQueue[];
  readonly upstreams: readonly Upstream[];
}

/** What left under the limits of before arrives within this time. Milliseconds. */
const wayMs = 50;

export async function balance({ closed, ledger, clock, store, queues, upstreams }: Leftovers): Promise<void> {
  const now = clock.monotonic();
  const broken = (invariant: string, text: string): void => ledger.broken(now, invariant, text);
  for (const call of ledger.calls.values()) {
    if (call.ends.length !== 1) broken('10', `${call.plan.id} ended ${call.ends.length} times`);
  }
  for (const [token, lease] of ledger.leases) {
    if (lease.settlements !== 1) broken('8', `lease ${token} was settled ${lease.settlements} times`);
  }
  for (const lane of ledger.lanes.values()) {
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
  for (const record of ledger.ceilings.values()) {
    for (const queue of queues) {
      if (queue.waitingUnder(ceilingKey(record.plan.name)) !== 0)
        broken('10', `a queue still counts calls of ${record.plan.name}`);
    }
    const sends = [...ledger.calls.values()]
      .filter(({ workspace }) => workspace === record.plan)
      .reduce((sum, call) => sum + call.sends, 0);
    const unsent = [...ledger.leases.values()].filter(
      ({ call, sent, returned }) => call.workspace === record.plan && sent && returned,
    ).length;
    if (record.takes - record.givenBack !== sends - unsent) {
      broken(
        '9',
        `${record.plan.name} paid ${record.takes - record.givenBack} slots for ${sends - unsent} sends`,
      );
    }
    const paused = ledger.plan.wireMs > 0 && ledger.plan.stalls.length > 0;
    // A pause between taking a place at a distant store and sending is the one thing that no store can see.
    if (!paused) windows(ledger, record.plan.name, upstreams, broken);
    const arrived = upstreams
      .flatMap(({ arrivals }) => arrivals)
      .filter(({ call }) => call.lane.workspace === record.plan.name).length;
    const perDay = highest([ledger.plan, ...ledger.plan.reloads], perDayOf(record.plan.name));
    if (perDay !== null && arrived > perDay) {
      broken('1', `${record.plan.name} sent ${arrived} on a day of ${perDay}`);
    }
  }
}

/**
 * No 60 s of the upstream's log hold more calls of a workspace than its ceiling when the last of them left. A call that left
 * while there was no ceiling counts for none that came later.
 */
function windows(
  ledger: Ledger,
  workspace: string,
  upstreams: readonly Upstream[],
  broken: (invariant: string, text: string) => void,
): void {
  const limitAt = (at: number): number | null =>
    highest(ledger.rules.during(at - 12 * ledger.plan.wireMs - wayMs, at), perMinuteOf(workspace));
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
    if (counted.length >= perMinute) ledger.reach('ceiling used up');
  }
}
