/**
 * A clock whose time runs faster than ours, for promises about minutes and days. Give the same one to the gateway and
 * to the simulators: between them nothing looks different, except that sockets seem slow.
 */
import { systemClock, type Clock } from '../../src/clock.ts';

/** @param speed seconds of this clock per real second. */
export function fastClock(speed: number): Clock {
  const began = { now: systemClock.now(), monotonic: systemClock.monotonic() };
  const passed = (): number => (systemClock.monotonic() - began.monotonic) * speed;
  return {
    now: () => began.now + passed(),
    monotonic: () => began.monotonic + passed(),
    after: (delayMs, run) => systemClock.after(delayMs / speed, run),
  };
}
