/** A clock that shows the same time from another origin, as a process does that started at another time. */
import type { Clock } from '../../src/clock.ts';

export const shiftedClock = (clock: Clock, originMs: number): Clock => ({
  now: () => clock.now(),
  monotonic: () => clock.monotonic() + originMs,
  after: (delayMs, run) => clock.after(delayMs, run),
});
