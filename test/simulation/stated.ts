/**
 * A bucket as the operator states it: a level that rises with every grant and drains at what is stated. `low`: no gateway that keeps to the
 * limits can have less; above the limit, too much was granted. `high`: none can have more; where that has room, a call can go.
 */
import type { MeterPlan } from './plan.ts';

/** A meter that leaves empty rests for up to this long, or a sixtieth of its window. Milliseconds. */
const restMs = 1_000;
const jitterMs = 100;
const rounding = 1e-6;

export class Stated {
  #low = 0;
  #high = 0;
  /** `high` as if no lowered limit had cut it off, and the limit at which it was cut off last. */
  #uncut = 0;
  #cutAt = Infinity;
  #at = 0;
  #restsUntil = 0;
  /** Units per millisecond: the fastest since something was granted. */
  #fastest = 0;

  /** @param quotas what may hold now, or a moment ago; `null` = no limit. */
  check(quotas: readonly (MeterPlan | null)[], now: number): void {
    const sinceMs = Math.max(0, now - this.#at);
    let isLimited = true;
    let slowest = Infinity;
    let minLimit = Infinity;
    for (const quota of quotas) {
      if (quota === null) isLimited = false;
      else {
        const rate = quota.limit / quota.windowMs;
        slowest = Math.min(slowest, rate);
        this.#fastest = Math.max(this.#fastest, rate);
        minLimit = Math.min(minLimit, quota.limit);
      }
    }
    this.#low = isLimited ? Math.max(0, this.#low - sinceMs * this.#fastest) : 0;
    // While no limit is known nothing drains for sure.
    const drainsMs = Math.max(0, Math.min(sinceMs, now - this.#restsUntil));
    if (isLimited) {
      this.#high = Math.max(0, this.#high - drainsMs * slowest);
      this.#uncut = Math.max(0, this.#uncut - drainsMs * slowest);
    }
    this.#low = Math.min(this.#low, minLimit);
    this.#at = now;
  }

  /** Something was granted. By how much it was too much, units; 0 = it was not. */
  take(units: number, quotas: readonly (MeterPlan | null)[], now: number): number {
    this.check(quotas, now);
    const stated = quotas.filter((quota) => quota !== null);
    const most = Math.max(0, ...stated.map(({ limit }) => limit));
    this.#low += Math.min(units, most);
    this.#fastest = 0;
    // A bucket learns of a change with the next call at the latest.
    this.#high = (stated.length === 0 ? this.#high : Math.min(this.#highAt(most), most)) + units;
    this.#uncut += units;
    if (stated.length > 0) this.#cutAt = most;
    this.#restsUntil = Math.max(
      this.#restsUntil,
      ...stated.map(({ windowMs }) => now + Math.max(jitterMs, Math.min(restMs, windowMs / 60))),
    );
    return stated.length < quotas.length || this.#low <= most + rounding ? 0 : this.#low - most;
  }

  back(units: number): void {
    this.#low = Math.max(0, this.#low - units);
  }

  /** So many units have room for sure, whichever of these limits holds. */
  hasRoom(units: number, quotas: readonly (MeterPlan | null)[], now: number): boolean {
    this.check(quotas, now);
    const least = Math.min(...quotas.map((quota) => quota?.limit ?? Infinity));
    return this.#highAt(least) + Math.min(units, least) <= least + rounding;
  }

  /**
   * `high` under this limit. A raised limit gives no more room than there would be if the one before it had not been lowered: what
   * that one cut off was sent, and counts again.
   */
  #highAt(limit: number): number {
    if (limit <= this.#cutAt) return this.#high;
    return Math.max(this.#high, Math.min(this.#high + limit - this.#cutAt, this.#uncut));
  }
}
