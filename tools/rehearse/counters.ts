/**
 * The upstreams of a rehearsal, as far as they state how much of a quota is used: each counts what is sent to it, and says it in whole
 * units with its response, from which the product learns as it does from real ones.
 */
import type { Costs, MeterReport } from '../../src/call.ts';
import type { RecordedCall, RecordedMeter } from '../../src/recording/format.ts';

/** Levels are sums of fractions. Units. */
const rounding = 1e-6;

export class Counters {
  /** Used units and when they were counted, by bucket and meter. */
  readonly #levels = new Map<string, { units: number; at: number }>();

  /** Counts a call that is sent at `now` (milliseconds). Returns what its response states. */
  count(
    { bucket }: RecordedCall,
    { charged, meters }: { readonly charged: Costs; readonly meters: readonly RecordedMeter[] },
    now: number,
  ): readonly MeterReport[] {
    const stated = meters.filter(({ isStated }) => isStated === true);
    return stated.map(({ meter, limit, windowMs }) => {
      const key = `${bucket} ${meter}`;
      const level = this.#levels.get(key) ?? { units: 0, at: now };
      this.#levels.set(key, level);
      level.units = Math.max(0, level.units - ((now - level.at) * limit) / windowMs) + (charged[meter] ?? 0);
      level.at = now;
      const remaining = Math.floor(limit - level.units + rounding);
      const used = { lowest: Math.max(0, limit - remaining - 1), highest: Math.max(0, limit - remaining) };
      return { meter, limit, windowMs, level: used };
    });
  }
}
