/**
 * Time and chance as ports, so that every wait can be driven by a test.
 *
 * Owns: the two ports and their system implementations. Nothing else in `src/` reads a clock, sets a timer
 * or draws a random number.
 */
import { randomBytes } from 'node:crypto';

/** Cancels a timer; calling it twice, or after the timer fired, does nothing. */
export type CancelTimer = () => void;

export interface Clock {
  /** Wall-clock time, milliseconds since the Unix epoch. May step; only for values shown to people or sent to others. */
  now(): number;
  /** Milliseconds on a clock that never steps back; only differences mean anything. */
  monotonic(): number;
  /** Runs `run` once after at least `delayMs` (fractions round up; negative counts as 0). */
  after(delayMs: number, run: () => void): CancelTimer;
}

/** Resolves after `ms` milliseconds, or when the signal aborts. */
export const delay = (clock: Clock, ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) {
      resolve();
      return;
    }
    const done = (): void => {
      cancel();
      signal.removeEventListener('abort', done);
      resolve();
    };
    const cancel = clock.after(ms, done);
    signal.addEventListener('abort', done);
  });

/** Runs `run` every `ms` milliseconds, until it is cancelled. */
export function every(clock: Pick<Clock, 'after'>, ms: number, run: () => void): CancelTimer {
  let cancel: CancelTimer;
  const wait = (): void => {
    cancel = clock.after(ms, () => {
      wait();
      run();
    });
  };
  wait();
  return () => cancel();
}

/**
 * A file is looked at so often: a mounted one is swapped as a link, and not every change of one makes an event. A change that is seen twice
 * before it is used is in use within a second. Milliseconds.
 */
export const filePollMs = 400;

export interface Random {
  /** Uniform in [0, 1). */
  next(): number;
  /** `bytes` random bytes as lower-case hex. */
  hex(bytes: number): string;
}

/** Longest delay a Node timer can hold (2^31 − 1 ms); longer ones would fire at once. */
const maxDelayMs = 2_147_483_647;

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after(delayMs, run) {
    const timer = setTimeout(run, Math.min(Math.max(0, Math.ceil(delayMs)), maxDelayMs));
    return () => clearTimeout(timer);
  },
};

/** Asking the system for a few bytes costs a microsecond each time; this many are drawn at once. */
const poolBytes = 4096;
let pool = Buffer.alloc(0);

export const systemRandom: Random = {
  next: () => Math.random(),
  hex(bytes) {
    if (bytes > poolBytes) return randomBytes(bytes).toString('hex');
    if (pool.length < bytes) pool = randomBytes(poolBytes);
    const hex = pool.toString('hex', 0, bytes);
    pool = pool.subarray(bytes);
    return hex;
  },
};
