/**
 * Since when the upstream itself would have taken a waiting call: its own bucket has room, no closing that it named holds, and lane and
 * ceiling are free. What the gateway believes of the bucket plays no part, so that a meter which believes too much is found as well as
 * a forecast that tells too much. Over replicas there must be room for everybody who waits; of a process alone it is known who goes first.
 */
import {
  capOf,
  isBackground,
  isStatedLess,
  keyed,
  lowest,
  perDayOf,
  perMinuteOf,
  regimeAt,
} from '../rules.ts';
import type { BucketPlan, CallPlan } from '../plan.ts';
import type { Upstream } from '../upstream.ts';
import { isBefore, type Exact } from './exact.ts';
import { firstOf, isShut } from './heads.ts';
import type { Call, ReplicaLedger } from './ledger.ts';

/** The share of a limit that the gateway may keep free for other users of the quota. */
const keptFree = 0.1;

export class Vacancy {
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
    const { exact } = this.#ledger;
    const couldGo = exact === null ? this.#haveAllRoom(call, now) : this.#hasRoom(exact, call, now);
    if (!couldGo) this.#since = null;
    else this.#since ??= now;
  }

  #hasRoom(exact: Exact, call: Call, now: number): boolean {
    const ledger = this.#ledger;
    const { key, bucket: name } = call.plan.lane;
    const [lane, bucket] = [exact.lane(key), exact.bucket(name)];
    const plan = keyed(regimeAt(ledger.plan, now).buckets, name);
    const isDescribed = plan.windows !== undefined;
    // An upstream that refuses for other reasons than its quota does not say whether it counted the call.
    if (!tells(plan) || ledger.isBlurred(name) || (bucket.isTroubled && !isDescribed)) return false;
    if (!lane.line.has(call) || exact.asleepUntil(lane, now) >= now || isShut(bucket, now)) return false;
    const ahead = [...lane.line].filter(
      (other) => other.plan.caller !== call.plan.caller || isBefore(other, call),
    );
    if (!exact.isBelowCap(lane, ahead.length, now) || !exact.haveSlots(lane, ahead.length + 1, now))
      return false;
    const others = bucket.lanes
      .filter((other) => other !== lane)
      .flatMap((other) =>
        isBackground(lane.plan) && !isBackground(other.plan) ? [...other.line] : firstOf(other),
      );
    // Granted calls that the upstream has not counted yet.
    const onTheirWay = bucket.lanes
      .flatMap(({ leases }) => [...leases])
      .filter(({ counted, settlements }) => !counted && settlements === 0);
    const all = [call, ...ahead, ...others, ...onTheirWay.map((lease) => lease.call)].map(
      (each): CallPlan => each.plan,
    );
    return isDescribed
      ? this.#upstream.hasDescribedRoom(all.length, now)
      : this.#upstream.hasRoom(all, keptFree, now);
  }

  #haveAllRoom({ plan, state }: Call, now: number): boolean {
    const { bucket, workspace, key } = plan.lane;
    const ledger = this.#ledger;
    const regime = regimeAt(ledger.plan, now);
    const maxInFlight = capOf(key)(regime);
    const known = keyed(regime.buckets, bucket);
    const isDescribed = known.windows !== undefined;
    if (state !== 'waiting' || !tells(known)) return false;
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

/** It tells how full it is, and the operator does not hold the gateway to less: else its room says nothing. */
const tells = (bucket: BucketPlan): boolean =>
  (bucket.reports !== 'nothing' || bucket.windows !== undefined) && !isStatedLess(bucket);
