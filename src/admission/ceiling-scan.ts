/**
 * Refuses waiting calls whose slot under their ceiling would come after their deadline. A scan follows each event that may have
 * made slots come later, and newcomers (`scan-schedule.ts`).
 *
 * Owns: when the calls of a ceiling are gone over, and how much of its forecast is asked for. Does not own: newcomers
 * (`newcomer-check.ts`). Keeps: a call that is refused does not count as being ahead of the calls behind it.
 */
import type { CeilingHold, CeilingKey } from '../limiter/ceilings.ts';
import { refused } from './ending.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { LaneView } from './lanes.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import { waitTooLong } from './refusals.ts';
import { ScanSchedule } from './scan-schedule.ts';
import { ScanThrottle } from './scan-throttle.ts';
import type { WaitRegistry } from './wait-registry.ts';

/** The times of so many next slots are known without asking for them (`ceiling-read.policy.ts`). */
const knownSlots = 64;

/** A scan of those who wait for slots of one ceiling. */
interface Scan {
  readonly key: CeilingKey;
  /** Slots to ask for (`null` = one for every waiting call); a call further back is taken to get the last of them. */
  upTo: number | null;
  /** Calls that are in their lane already though their callers do not wait yet. */
  readonly entered: Set<QueuedCall>;
}

export class CeilingScan {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  readonly #rotation: LaneRotation;
  /** Scans that are due; one scan serves everything that brought it about. */
  readonly #due = new Map<CeilingKey, Scan>();
  readonly #throttle: ScanThrottle;
  readonly #schedule: ScanSchedule;

  constructor(parts: AdmissionParts, registry: WaitRegistry, rotation: LaneRotation) {
    this.#parts = parts;
    this.#registry = registry;
    this.#rotation = rotation;
    this.#throttle = new ScanThrottle(parts.clock, () => this.#runDue());
    this.#schedule = new ScanSchedule({
      clock: parts.clock,
      scan: (ceiling) => void this.#plan(ceiling, knownSlots),
    });
    registry.onNobodyWaits = (ceiling) => this.#schedule.forget(ceiling);
  }

  /** Checks all calls under the ceiling: their slots may come later than was forecast before. */
  all(ceiling: CeilingKey): void {
    this.#plan(ceiling, null);
  }

  /** A more urgent call went before others that wait for a slot of its ceiling. */
  behind(call: QueuedCall): void {
    this.#plan(call.request.ceiling.key, null).entered.add(call);
  }

  /** A ceiling's slots were forecast for a newcomer. */
  afterForecast(ceiling: CeilingKey): void {
    this.#schedule.onNewcomer(ceiling);
  }

  /** The planned scan of this ceiling, which callers may widen: it does not begin before the current tick has ended. */
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
    // Not the limits by which the scan was planned: a reload since has changed those of the calls.
    const holds = await this.#parts.ceilings.forecast(first.request.ceiling, positions);
    this.#refuseLate(
      calls.filter((call) => call.isWaiting || (entered.has(call) && !call.isGone)),
      holds,
    );
  }

  /** @param holds how long the ceiling holds each position under it, the last one also those behind it. */
  #refuseLate(calls: readonly QueuedCall[], holds: readonly CeilingHold[]): void {
    const now = this.#parts.clock.monotonic();
    const aheadIn = new Map<LaneView, number>();
    for (const call of calls) {
      const ahead = aheadIn.get(call.lane) ?? 0;
      const position = Math.min(this.#rotation.positionOf(call, ahead), holds.length);
      const hold = holds[position - 1];
      const isLate = hold !== undefined && now + hold.waitMs > call.deadline;
      if (isLate && call.isWaiting) this.#registry.end(call, refused(waitTooLong(hold, call.request)));
      else aheadIn.set(call.lane, ahead + 1);
    }
  }
}
