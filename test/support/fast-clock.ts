/**
 * A clock whose time runs faster than ours. Give the same one to the gateway and to the simulators of the same process.
 * While somebody has set a timer it goes on in steps, each a round of the event loop and at most `stepMs` real milliseconds long:
 * a slow machine makes a test longer, not its sockets slower.
 */
import { systemClock, type Clock } from '../../src/clock.ts';

/** What one round of the event loop may take of this time. Real milliseconds. */
const stepMs = 10;
/** An idle event loop goes round this often. Real milliseconds. */
const tickMs = 5;

/** @param speed seconds of this clock per real second, at most. */
export function fastClock(speed: number): Clock {
  const began = { now: systemClock.now(), monotonic: systemClock.monotonic() };
  const timers = new Set<object>();
  let ticking: NodeJS.Timeout | null = null;
  let stepBegan = systemClock.monotonic();
  let passedBefore = 0;
  const inThisStep = (): number => {
    const tookMs = systemClock.monotonic() - stepBegan;
    return ticking === null ? tookMs : Math.min(tookMs, stepMs);
  };
  const passed = (): number => (passedBefore + inThisStep()) * speed;
  const nextStep = (): void => {
    passedBefore += inThisStep();
    stepBegan = systemClock.monotonic();
    if (timers.size > 0 || ticking === null) return;
    clearInterval(ticking);
    ticking = null;
  };
  return {
    now: () => began.now + passed(),
    monotonic: () => began.monotonic + passed(),
    after(delayMs, run) {
      if (ticking === null) {
        nextStep();
        ticking = setInterval(nextStep, tickMs).unref();
      }
      const due = passed() + Math.max(0, delayMs);
      const timer = {};
      timers.add(timer);
      let cancel = (): void => {};
      const ring = (): void => {
        const leftMs = due - passed();
        if (leftMs > 0) {
          cancel = systemClock.after(leftMs / speed, ring);
          return;
        }
        timers.delete(timer);
        run();
      };
      cancel = systemClock.after(delayMs / speed, ring);
      return () => {
        timers.delete(timer);
        cancel();
      };
    },
  };
}
