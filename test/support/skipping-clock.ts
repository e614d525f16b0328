/**
 * The system's clock, which a test moves ahead: what is about minutes is tested on real sockets without waiting for
 * them. Timers that are due by then fire in order of their time. Does not own events and stalls (`fake-clock.ts`).
 */
import { systemClock, type CancelTimer, type Clock } from '../../src/clock.ts';

export interface SkippingClock extends Clock {
  skip(ms: number): void;
}

interface Timer {
  readonly at: number;
  readonly run: () => void;
  cancel: CancelTimer;
}

export function skippingClock(): SkippingClock {
  const timers = new Set<Timer>();
  let skippedMs = 0;
  const monotonic = (): number => systemClock.monotonic() + skippedMs;
  const arm = (timer: Timer): void => {
    timer.cancel = systemClock.after(timer.at - monotonic(), () => {
      timers.delete(timer);
      timer.run();
    });
  };
  return {
    now: () => systemClock.now() + skippedMs,
    monotonic,
    after(delayMs, run) {
      const timer: Timer = { at: monotonic() + delayMs, run, cancel: () => {} };
      timers.add(timer);
      arm(timer);
      return () => {
        timers.delete(timer);
        timer.cancel();
      };
    },
    skip(ms) {
      skippedMs += ms;
      const due = [...timers].filter(({ at }) => at <= monotonic()).sort((a, b) => a.at - b.at);
      for (const timer of due) {
        if (!timers.delete(timer)) continue;
        timer.cancel();
        timer.run();
      }
      for (const timer of timers) {
        timer.cancel();
        arm(timer);
      }
    },
  };
}
