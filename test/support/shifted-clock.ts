/**
 * A clock that shows the same time from another origin, as two processes do that started at different times. The wall
 * clock, timers and everything else stay those of the clock behind it.
 */
import type { Clock } from '../../src/clock.ts';

/** @param originMs what it shows when the clock behind it shows 0. Milliseconds. */
export const shiftedClock = (clock: Clock, originMs: number): Clock => ({
  now: () => clock.now(),
  monotonic: () => clock.monotonic() + originMs,
  after: (delayMs, run) => clock.after(delayMs, run),
});
