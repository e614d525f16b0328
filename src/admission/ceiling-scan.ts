/**
 * Refuses waiting calls whose slot under their ceiling would come after their deadline. A scan follows each event that may delay
 * slots; scans also follow arriving calls (`scan-schedule.ts`).
 *
 * Owns: when the calls of a ceiling are scanned, and how many of its slots are forecast. Does not own: refusing arriving
 * calls (`arriving-call-check.ts`). Keeps: a call that is refused does not count as ahead of the calls behind it.
 */
import type { CeilingHold, CeilingKey } from '../limiter/ceilings.ts';
import { refused } from './ending.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { LaneView } from './lanes.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import { waitTooLong } from './refusals.ts';
import { ScanThrottle } from './scan-throttle.ts';
import type { WaitRegistry } from './wait-registry.ts';

/** The times of this many next slots come with every reading of the ceiling (`ceiling-read.policy.ts`). */
const knownSlots = 64;

/** A scan of the calls that wait for slots of one ceiling. */
interface Scan {
  readonly key: CeilingKey;
  /** How many slots to forecast (`null` = one for every waiting call). A call further back is judged by the last of them. */
  upTo: number | null;
  /** Calls that have entered their lane, but whose callers do not wait yet: they count as ahead of others. */
  readonly entered: Set<QueuedCall>;
}

export class CeilingScan {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  readonly #rotation: LaneRotation;
  /** Scans that are due: one for each ceiling, whatever the number of requests. */
  readonly #due = new Map<CeilingKey, Scan>();
  readonly #throttle: ScanThrottle;

  constructor(parts: AdmissionParts, registry: WaitRegistry, rotation: LaneRotation) {
    this.#parts = parts;
    this.#registry = registry;
    this.#rotation = rotation;
    this.#throttle = new ScanThrottle(parts.clock, () => this.#runDue());
    registry.scans.scan = (key) => void this.#plan(key, knownSlots);
  }

  /** Plans a scan of all calls under the ceiling: their slots may come later than was forecast before. */
  all(key: CeilingKey): void {
    this.#plan(key, null);
  }

  /** Plans a scan because a more urgent call entered ahead of others that wait for a slot of its ceiling. */
  behind(call: QueuedCall): void {
    this.#plan(call.request.ceiling.key, null).entered.add(call);
  }

  /** Slots of the ceiling were forecast for an arriving call: schedules scans of the calls that wait already. */
  afterForecast(key: CeilingKey): void {
    this.#registry.scans.onForecast(key);
  }

  /** Plans a scan of the ceiling, or widens the planned one. It begins when the current tick has ended. */
  #plan(key: CeilingKey, upTo: number | null): Scan {
    let scan = this.#due.get(key);
    if (scan === undefined) {
      scan = { key, upTo, entered: new Set() };
      this.#due.set(key, scan);
      this.#parts.background(Promise.resolve().then(() => this.#throttle.request()));
    }
    scan.upTo = scan.upTo === null || upTo === null ? null : Math.max(scan.upTo, upTo);
    return scan;
  }

  #runDue(): number {
    const scans = [...this.#due.values()];
    this.#due.clear();
    let visits = 0;
    for (const scan of scans) {
      if (this.#registry.waitingUnder(scan.key) === 0) continue;
      visits += this.#registry.size;
      this.#parts.background(this.#run(scan));
    }
    return visits;
  }

  /** Forecasts slots for the calls under the ceiling, the most urgent first, then as they entered, and refuses the late ones. */
  async #run({ key, upTo, entered }: Scan): Promise<void> {
    const calls = [...this.#registry.all()]
      .filter((call) => call.request.ceiling.key === key)
      .filter((call) => call.isWaiting || entered.has(call))
      .filter(({ asksForSlot }) => !asksForSlot)
      .toSorted((one, other) => one.request.admission.urgency - other.request.admission.urgency);
    const count = upTo === null ? calls.length : Math.min(upTo, calls.length);
    const positions = Array.from({ length: count }, (_, index) => index + 1);
    const [first] = calls;
    if (first === undefined) return;
    // The limits are read from a call, because a reload may have changed them since the scan was planned.
    const holds = await this.#parts.ceilings.forecast(first.request.ceiling, positions);
    this.#refuseLate(
      calls.filter((call) => call.isWaiting || (entered.has(call) && !call.isGone)),
      holds,
    );
  }

  /** @param holds by position: how long the ceiling holds the call there. The last one stands for all positions behind it. */
  #refuseLate(calls: readonly QueuedCall[], holds: readonly CeilingHold[]): void {
    const now = this.#parts.clock.monotonic();
    const aheadIn = new Map<LaneView, number>();
    for (const call of calls) {
      const ahead = aheadIn.get(call.lane) ?? 0;
      const position = Math.min(this.#rotation.positionOf(call, ahead), holds.length);
      const hold = holds[position - 1];
      // A call that its ceiling does not hold waits for something else; its deadline ends its wait, also when that timer is late.
      const isLate = hold !== undefined && hold.waitMs > 0 && now + hold.waitMs > call.deadline;
      if (isLate && call.isWaiting) this.#registry.end(call, refused(waitTooLong(hold, call.request)));
      else aheadIn.set(call.lane, ahead + 1);
    }
  }
}
