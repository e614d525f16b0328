/** A bucket's meters as Redis named them last, and what this replica's calls took since. */
import type { Costs } from '../../call.ts';
import type { BucketSetting, MeterSnapshot } from '../limiter.ts';

/** Meters as a reply named them. */
export interface MeterReading {
  readonly meters: readonly MeterSnapshot[];
  /** Monotonic milliseconds. */
  readonly at: number;
  /** The operator's setting in force then; `null` = not known. */
  readonly setting: BucketSetting | null;
}

export class MeterReadings {
  #latest: MeterReading | null = null;
  #takenSince: Record<string, number> = {};

  get latest(): MeterReading | null {
    return this.#latest;
  }

  /** What calls of this replica took since the meters were read. */
  get takenSince(): Costs {
    return this.#takenSince;
  }

  note(reading: MeterReading): void {
    this.#latest = reading;
    this.#takenSince = {};
  }

  /** A call took these units. */
  noteTaken(costs: Costs): void {
    for (const [meter, units] of Object.entries(costs)) this.#add(meter, units);
  }

  /** A call that was not sent gave these units back. */
  noteReturned(costs: Costs): void {
    for (const [meter, units] of Object.entries(costs)) this.#add(meter, -units);
  }

  #add(meter: string, units: number): void {
    this.#takenSince[meter] = (this.#takenSince[meter] ?? 0) + units;
  }
}
