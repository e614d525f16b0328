/**
 * Deadline-based shedding of calls that wait already: whatever may make a waiting call too late is reported here, and the
 * call is refused as soon as that is known: a full ceiling, a closed bucket, a lane that stands still, a call that turned
 * out more expensive, a reload, the end of the process.
 *
 * Owns: which calls an event concerns. Does not own: arriving calls (`arriving-call-check.ts`).
 * Keeps: a call that is refused does not count as being ahead of the calls behind it.
 */
import type { CeilingKey } from '../limiter/ceilings.ts';
import type { BucketKey, LaneKey } from '../limiter/limiter.ts';
import { CeilingScan } from './ceiling-scan.ts';
import { refused } from './ending.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import { draining, waitTooLong, type Hold } from './refusals.ts';
import { StandstillScan } from './standstill-scan.ts';
import type { WaitRegistry } from './wait-registry.ts';

/** At most this many calls of one bucket have their waits forecast again after a change that may have made waits longer. */
const maxRejudged = 64;

export class EarlyRefusal {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  readonly #rotation: LaneRotation;
  readonly #ceilings: CeilingScan;
  readonly #standstills: StandstillScan;

  constructor(parts: AdmissionParts, registry: WaitRegistry, rotation: LaneRotation) {
    this.#parts = parts;
    this.#registry = registry;
    this.#rotation = rotation;
    this.#ceilings = new CeilingScan(parts, registry, rotation);
    this.#standstills = new StandstillScan(parts, registry, (call, waitMs) =>
      parts.background(this.#refuseHeld(call, { waitMs, heldBy: 'closed' }, 0)),
    );
  }

  /** A ceiling had no slot. */
  onCeilingFull(key: CeilingKey): void {
    this.#ceilings.all(key);
  }

  /** A more urgent call went before others that wait for a slot of its ceiling. */
  onOvertaken(by: QueuedCall): void {
    this.#ceilings.behind(by);
  }

  /** The slots of a ceiling were read for an arriving call. */
  onForecastRead(key: CeilingKey): void {
    this.#ceilings.afterForecast(key);
  }

  /** A bucket (`lane` is `null`), or one lane of it, sends nothing for this long. */
  onStandstill(bucket: BucketKey, lane: LaneKey | null, stillMs: number): void {
    this.#standstills.add(bucket, lane, stillMs);
  }

  /** A response stated the cost of this call's document: waiting calls with the same document may cost more than estimated. */
  onCostKnown({ request: { admission } }: QueuedCall, points: number): void {
    const { bucket, document } = admission;
    if (document === null || points <= (admission.costs.cost ?? 0)) return;
    const moreExpensive: QueuedCall[] = [];
    for (const call of this.#registry.all()) {
      if (!call.isWaiting) continue;
      const other = call.request.admission;
      const isSame = other.bucket === bucket && other.document === document;
      if (!isSame || points <= (other.costs.cost ?? 0)) continue;
      moreExpensive.push(call);
      if (moreExpensive.length >= maxRejudged) break;
    }
    this.#parts.background(this.#refuseLateOf(moreExpensive));
  }

  /** Configuration changed: calls that were expected to leave in time may be late. */
  onReconfigured(calls: readonly QueuedCall[]): void {
    const waiting = calls.filter((call) => call.isWaiting);
    for (const inBucket of Map.groupBy(waiting, ({ request }) => request.admission.bucket).values()) {
      this.#parts.background(this.#refuseLateOf(inBucket.slice(0, maxRejudged)));
    }
    for (const key of new Set(waiting.map(({ request }) => request.ceiling.key))) this.#ceilings.all(key);
  }

  /** The process will send nothing after `budgetMs`. With 0 every waiting call is refused without a forecast. */
  onDrain(budgetMs: number): void {
    const { limiter, background } = this.#parts;
    for (const call of this.#registry.all()) {
      if (!call.isWaiting) continue;
      if (budgetMs === 0) {
        this.#registry.end(call, refused(draining()));
        continue;
      }
      const { bucket, ticket } = call.request.admission;
      background(
        limiter.forecast(bucket, ticket).then((forecast) => {
          const isLate = forecast !== null && forecast.waitMs > budgetMs;
          if (isLate && call.isWaiting) this.#registry.end(call, refused(draining()));
        }),
      );
    }
  }

  /** Refuses the late calls of one bucket, one after the other, so that a refused call is not part of the next one's forecast. */
  async #refuseLateOf(calls: readonly QueuedCall[]): Promise<void> {
    const { clock, limiter } = this.#parts;
    const inOrder = calls.toSorted(
      (one, other) => one.request.admission.urgency - other.request.admission.urgency,
    );
    for (const call of inOrder) {
      if (!call.isWaiting) continue;
      const { bucket, ticket } = call.request.admission;
      const forecast = await limiter.forecast(bucket, ticket);
      if (forecast === null || !call.isWaiting) continue;
      const isLate = forecast.waitMs > 0 && clock.monotonic() + forecast.waitMs > call.deadline;
      if (isLate) await this.#refuseHeld(call, forecast, forecast.ahead);
    }
  }

  /** Refuses the call with the longer of two waits: `hold`, or its ceiling's with `ahead` calls of its lane before it. */
  async #refuseHeld(call: QueuedCall, hold: Hold, ahead: number): Promise<void> {
    const position = this.#rotation.positionOf(call, ahead);
    const [byCeiling] = await this.#parts.ceilings.forecast(call.request.ceiling, [position]);
    if (!call.isWaiting) return;
    const longest = byCeiling !== undefined && byCeiling.waitMs > hold.waitMs ? byCeiling : hold;
    this.#registry.end(call, refused(waitTooLong(longest, call.request)));
  }
}
