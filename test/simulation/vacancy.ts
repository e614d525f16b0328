/**
 * Since when the upstream itself would have taken a waiting call: its own bucket has room for the call and for everybody
 * who goes first, no closing that it named holds, and lane and ceiling are free. What the gateway believes of the bucket
 * plays no part, so that a meter which believes too much is found as well as a forecast that tells too much.
 */
import type { Ledger, CallRecord } from './ledger.ts';
import { firstOf, haveSlots, isBelowCap, isShut } from './heads.ts';
import { isBefore } from './ledger.ts';
import type { BucketPlan, CallPlan } from './plan.ts';
import { isBackground, isStatedLess } from './rules.ts';
import type { Upstream } from './upstream.ts';

/** Share of a limit that the gateway may keep free for others who drink from the bucket. */
const keptFree = 0.1;

export class Vacancy {
  readonly #ledger: Ledger;
  readonly #upstream: Upstream;
  /** It tells how full it is, and the operator does not hold the gateway to less: else its room says nothing. */
  readonly #reports: boolean;
  readonly #isDescribed: boolean;
  #since: number | null = null;

  constructor(ledger: Ledger, upstream: Upstream, bucket: BucketPlan) {
    this.#ledger = ledger;
    this.#reports = (bucket.reports !== 'nothing' || bucket.windows !== undefined) && !isStatedLess(bucket);
    this.#isDescribed = bucket.windows !== undefined;
    this.#upstream = upstream;
  }

  /** Since when the call could have gone without a break; `null` = it could not, when last looked. */
  get since(): number | null {
    return this.#since;
  }

  /** Called when an instant is over. */
  check(call: CallRecord, now: number): void {
    if (!this.#couldGo(call, now)) this.#since = null;
    else this.#since ??= now;
  }

  #couldGo(call: CallRecord, now: number): boolean {
    const ledger = this.#ledger;
    const lane = ledger.lane(call.plan.lane.key);
    const bucket = ledger.bucket(call.plan.lane.bucket);
    // An upstream that refuses for other reasons than its quota does not say whether it counted the call.
    if (!this.#reports || bucket.blurred || (bucket.isTroubled && !this.#isDescribed)) return false;
    if (!lane.line.has(call) || ledger.asleepUntil(lane, now) >= now || isShut(bucket, now)) return false;
    const ahead = [...lane.line].filter(
      (other) => other.plan.caller !== call.plan.caller || isBefore(other, call),
    );
    if (!isBelowCap(ledger, lane, ahead.length, now) || !haveSlots(ledger, lane, ahead.length + 1, now))
      return false;
    const others = bucket.lanes
      .filter((other) => other !== lane)
      .flatMap((other) =>
        isBackground(lane.plan) && !isBackground(other.plan) ? [...other.line] : firstOf(other),
      );
    const wanted = [call, ...ahead, ...others].map(({ plan }) => plan);
    const all = [...wanted, ...this.#onTheirWay(call.plan.lane.bucket)];
    return this.#isDescribed
      ? this.#upstream.hasDescribedRoom(all.length, now)
      : this.#upstream.hasRoom(all, keptFree, now);
  }

  /** Granted calls that the upstream has not counted yet. */
  #onTheirWay(bucket: string): CallPlan[] {
    const plans: CallPlan[] = [];
    for (const { leases } of this.#ledger.bucket(bucket).lanes) {
      for (const { counted, settlements, call } of leases) {
        if (!counted && settlements === 0) plans.push(call.plan);
      }
    }
    return plans;
  }
}
