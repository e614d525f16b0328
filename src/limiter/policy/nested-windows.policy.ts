/**
 * How long a call waits where several windows of one upstream count it: a window that opens does not let everybody go at once who
 * waits for it, because the shorter windows in it go on counting. Part of the specification in `scheduler.policy.ts`.
 *
 * Owns: what windows make of each other. Does not own: the wait for one of them (`window-log.policy.ts`, `forecast.policy.ts`). Pure.
 */
import type { Meter } from './meter.policy.ts';
import { loggedUnits, periodMs } from './window-log.policy.ts';

export interface NeededWindow {
  readonly meter: Meter;
  /** Units of the call and of all that go before it. */
  readonly units: number;
  /** The wait for this window alone, if so many units fewer go before. Milliseconds. */
  readonly waitMs: (fewer: number) => number;
}

/** The wait for all of these windows together, shortest first, if so many units fewer go before. Milliseconds. */
export function nestedWaitMs(windows: readonly NeededWindow[], fewer: number, now: number): number {
  const longest = windows.at(-1);
  if (longest === undefined) return 0;
  const shorter = windows.slice(0, -1);
  const { meter, waitMs } = longest;
  const { log, limit } = meter;
  const aloneMs = waitMs(fewer);
  const waitsMs = Math.max(aloneMs, nestedWaitMs(shorter, fewer, now));
  if (log === null || limit === null || shorter.length === 0) return waitsMs;
  const units = longest.units - fewer;
  if (log.counts === 'fixed') {
    const beyond = units - Math.max(0, limit - loggedUnits(log, now));
    if (beyond <= 0) return waitsMs;
    const inWindow = beyond - (Math.ceil(beyond / limit) - 1) * limit;
    return Math.max(waitsMs, aloneMs + Math.max(...shorter.map((each) => fromEmptyMs(each.meter, inWindow))));
  }
  // Each call of a rolling window goes one window after the one that is a whole limit before it, and that one went by the shorter windows.
  const rounds = Math.ceil(units / limit) - 1;
  if (rounds <= 0) return waitsMs;
  const before = fewer + rounds * limit;
  const firstMs = Math.max(waitMs(before), nestedWaitMs(shorter, before, now));
  return Math.max(waitsMs, rounds * periodMs(meter) + firstMs);
}

/** When the last of so many units leaves through a window in which nothing is counted yet. Milliseconds. */
function fromEmptyMs(meter: Meter, units: number): number {
  const { log, limit, windowMs } = meter;
  if (limit === null) return 0;
  if (log === null) return (Math.max(0, units - limit) * windowMs) / limit;
  return (Math.ceil(units / limit) - 1) * periodMs(meter);
}
