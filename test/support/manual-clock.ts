/** Time that moves only when a test says so, for code on real sockets. Timers fire in order of their time. */
import type { Clock } from '../../src/clock.ts';

export interface ManualClock extends Clock {
  /** Moves time and fires what is due; what fires sees its own instant. */
  advance(ms: number): void;
  readonly waiting: number;
}

export function manualClock(startMs = 0, epochMs = Date.UTC(2026, 0, 1)): ManualClock {
  let time = startMs;
  const timers = new Set<{ at: number; run: () => void }>();
  return {
    now: () => epochMs + time - startMs,
    monotonic: () => time,
    after(delayMs, run) {
      const timer = { at: time + Math.max(0, Math.ceil(delayMs)), run };
      timers.add(timer);
      return () => void timers.delete(timer);
    },
    advance(ms) {
      const end = time + ms;
      for (;;) {
        const [due] = [...timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at);
        if (due === undefined) break;
        timers.delete(due);
        time = Math.max(time, due.at);
        due.run();
      }
      time = end;
    },
    get waiting() {
      return timers.size;
    },
  };
}
