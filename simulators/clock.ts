/** Time and chance as the simulators need them. The gateway's own clock has the same form, so a test drives both by one. */

/** Cancels a timer; calling it twice, or after the timer fired, does nothing. */
export type CancelTimer = () => void;

export interface Clock {
  /** Wall-clock time, milliseconds since the Unix epoch. */
  now(): number;
  /** Milliseconds on a clock that never steps back; only differences mean anything. */
  monotonic(): number;
  /** Runs `run` once after at least `delayMs`, below 2^31. */
  after(delayMs: number, run: () => void): CancelTimer;
}

export interface Random {
  /** Uniform in [0, 1). */
  next(): number;
  /** `bytes` random bytes as lower-case hex. */
  hex(bytes: number): string;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after(delayMs, run) {
    const timer = setTimeout(run, Math.ceil(delayMs));
    return () => clearTimeout(timer);
  },
};
