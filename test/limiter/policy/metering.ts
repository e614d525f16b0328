/** A meter on a clock that begins anywhere: tests speak of milliseconds since then. */
import type { MeterName, MeterReport } from '../../../src/call.ts';
import { learnMeter } from '../../../src/limiter/policy/learning.policy.ts';
import {
  applySetting,
  createMeter,
  giveUnitsBack,
  markAnswered,
  roomInMs,
  take,
  type Meter,
  type MeterMark,
  type Quota,
} from '../../../src/limiter/policy/meter.policy.ts';

/** Nothing may depend on where a clock begins: at zero, after a few days, or as the milliseconds of an epoch. */
export const origins = [0, 3e8, 1.79e12] as const;

export interface Seen {
  readonly sentMs: number;
  readonly headMs: number;
  readonly learn?: boolean;
}

export class TimedMeter {
  readonly meter: Meter;
  readonly #from: number;

  constructor(meter: Meter, from: number) {
    this.meter = meter;
    this.#from = from;
  }

  static unknown(name: MeterName, from: number): TimedMeter {
    return new TimedMeter(createMeter(name, from), from);
  }

  static stated(quota: Quota, from: number, learn = true): TimedMeter {
    const timed = TimedMeter.unknown('requests', from);
    timed.state(quota, 0, learn);
    return timed;
  }

  state(quota: Quota | null, atMs: number, learn = true): void {
    const stated = quota === null ? null : { meter: this.meter.name, ...quota };
    applySetting(this.meter, stated, learn, this.#from + atMs);
  }

  take(units: number, atMs: number): MeterMark {
    return take(this.meter, units, this.#from + atMs);
  }

  /** So many calls of one unit. */
  fill(calls: number, atMs: number): MeterMark[] {
    return Array.from({ length: calls }, () => this.take(1, atMs));
  }

  /** The call was not sent. */
  giveBack(mark: MeterMark, grantedMs: number, atMs: number): void {
    giveUnitsBack(this.meter, mark, this.#from + grantedMs, this.#from + atMs);
  }

  roomIn(units: number, atMs: number): number {
    return roomInMs(this.meter, units, 0, this.#from + atMs);
  }

  /** The response of a call that is no longer on its way. */
  respond(reported: MeterReport, mark: MeterMark, seen: Seen): void {
    const { sentMs, headMs, learn = true } = seen;
    markAnswered(this.meter, mark, reported.level !== null);
    learnMeter(
      this.meter,
      {
        report: reported,
        mark,
        sentAt: this.#from + sentMs,
        headAt: this.#from + headMs,
        closedMs: 0,
        learn,
      },
      this.#from + headMs,
    );
  }
}

/** Used units are exactly known. */
export const report = (limit: number, used: number, windowMs: number | null = null): MeterReport => ({
  meter: 'requests',
  limit,
  windowMs,
  level: { lowest: used, highest: used },
});
