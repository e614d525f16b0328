/**
 * The system's clock, or a stopped one, which a test moves ahead: what is about minutes is tested on real sockets without waiting for
 * them. Timers that are due by then fire in order of their time; on a stopped clock also when as much time of the system has passed.
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

/** Time passes only where a test skips it, however busy the machine is. */
export function stoppedClock(): SkippingClock {
  const now = systemClock.now();
  return skippingClock({ now: () => now, monotonic: () => 0 });
}

export function skippingClock(base: Pick<Clock, 'now' | 'monotonic'> = systemClock): SkippingClock {
  const timers = new Set<Timer>();
  let skippedMs = 0;
  const monotonic = (): number => base.monotonic() + skippedMs;
  const arm = (timer: Timer): void => {
    timer.cancel = systemClock.after(timer.at - monotonic(), () => {
      timers.delete(timer);
      timer.run();
    });
  };
  return {
    now: () => base.now() + skippedMs,
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
