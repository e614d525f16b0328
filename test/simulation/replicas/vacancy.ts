/**
 * Since when the upstream would have taken a waiting call, as in `../vacancy.ts`: its own bucket has room for everybody who
 * waits and all that are on their way, no closing holds, and the lane is free. What the product believes of the bucket plays
 * no part.
 */
import { capOf, isStatedLess, keyed, lowest, perDayOf, perMinuteOf, regimeAt } from '../rules.ts';
import type { Upstream } from '../upstream.ts';
import type { Call, ReplicaLedger } from './ledger.ts';

/** The share of a limit that the gateway may keep free for other users of the quota. */
const keptFree = 0.1;

export class ReplicasVacancy {
  readonly #ledger: ReplicaLedger;
  readonly #upstream: Upstream;
  #since: number | null = null;

  constructor(ledger: ReplicaLedger, upstream: Upstream) {
    this.#ledger = ledger;
    this.#upstream = upstream;
  }

  get since(): number | null {
    return this.#since;
  }

  check(call: Call, now: number): void {
    if (!this.#couldGo(call, now)) this.#since = null;
    else this.#since ??= now;
  }

  #couldGo({ plan, state }: Call, now: number): boolean {
    const { bucket, workspace, key } = plan.lane;
    const ledger = this.#ledger;
    const regime = regimeAt(ledger.plan, now);
    const maxInFlight = capOf(key)(regime);
    const known = keyed(regime.buckets, bucket);
    const isDescribed = known.windows !== undefined;
    const isKnown = known.reports !== 'nothing' || isDescribed;
    if (state !== 'waiting' || !isKnown || isStatedLess(known)) return false;
    if (ledger.isBlurred(bucket) || (ledger.closings.get(bucket) ?? []).some(({ until }) => until >= now))
      return false;
    if ([perMinuteOf(workspace), perDayOf(workspace)].some((limit) => lowest([regime], limit) !== null))
      return false;
    const about = [...ledger.calls.values()].filter((each) => each.plan.lane.bucket === bucket);
    if (about.some((each) => each.sends > 0 && each.plan.fate !== 'answered')) return false;
    const here = about.filter((each) => each.state === 'waiting' || each.state === 'entering');
    const underWay = [...ledger.leases.values()].filter(
      (lease) => lease.settlements === 0 && lease.call.plan.lane.bucket === bucket,
    );
    // Of a call that left or failed nobody knows whether it still runs: its place is free after a lease.
    const held = [...ledger.leases.values()].filter(
      ({ heldUntil }) => heldUntil !== null && heldUntil >= now,
    );
    const ofLane = [...here, ...[...underWay, ...held].map((lease) => lease.call)].filter(
      (each) => each.plan.lane.workspace === workspace && each.plan.id !== plan.id,
    );
    if (maxInFlight !== null && ofLane.length >= maxInFlight) return false;
    const wanted = [...new Set([...here, ...underWay.map((lease) => lease.call)])];
    if (isDescribed) return ledger.isFaultless && this.#upstream.hasDescribedRoom(wanted.length, now);
    return this.#upstream.hasRoom(
      wanted.map((each) => each.plan),
      keptFree,
      now,
    );
  }
}
