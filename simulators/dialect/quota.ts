/**
 * One quota of a described upstream: its windows, its calls in flight, the time for which it stays closed.
 *
 * Owns: counting as the description says, to the millisecond. Does not own: which call belongs to it, what it is answered.
 */
import type { SpokenParts, SpokenWindow } from './parts.ts';

export type Verdict =
  | { readonly kind: 'admitted' }
  /** Until the quota has room, as far as it is known, milliseconds. */
  | { readonly kind: 'refused'; readonly waitMs: number };

/** What a window says of itself. */
export interface WindowState {
  readonly limit: number;
  readonly used: number;
  readonly seconds: number;
  /** Until it has room for all of its calls again, or ends, milliseconds. */
  readonly resetMs: number;
}

/** What counts one window. `at` and `now` are milliseconds since the epoch. */
interface Counter {
  used(now: number): number;
  take(now: number): void;
  /** Until one more call has room; 0 = now. */
  waitMs(now: number): number;
  resetMs(now: number): number;
}

export class Quota {
  readonly #windows: readonly { readonly window: SpokenWindow; readonly counter: Counter }[];
  readonly #maxInFlight: number;
  readonly #penaltyMs: number;
  #closedUntil = 0;
  #inFlight = 0;

  constructor({ windows = [], maxInFlight = Infinity, penaltySeconds = 0 }: SpokenParts) {
    this.#windows = windows.map((window) => ({ window, counter: counterOf(window) }));
    this.#maxInFlight = maxInFlight;
    this.#penaltyMs = penaltySeconds * 1000;
  }

  /** Asks for one call; a refusal starts the penalty anew. */
  ask(now: number): Verdict {
    const waits = this.#windows.map(({ counter }) => counter.waitMs(now));
    const waitMs = Math.max(0, this.#closedUntil - now, ...waits);
    if (waitMs > 0 || this.#inFlight >= this.#maxInFlight) {
      if (this.#penaltyMs > 0) this.#closedUntil = Math.max(this.#closedUntil, now + this.#penaltyMs);
      return { kind: 'refused', waitMs: Math.max(waitMs, this.#penaltyMs, 1) };
    }
    for (const { counter } of this.#windows) counter.take(now);
    this.#inFlight += 1;
    return { kind: 'admitted' };
  }

  done(): void {
    this.#inFlight -= 1;
  }

  close(until: number): void {
    this.#closedUntil = until;
  }

  /** The windows, shortest first. While it is closed they have no room. */
  windows(now: number): readonly WindowState[] {
    const closedMs = Math.max(0, this.#closedUntil - now);
    return this.#windows
      .map(({ window: { requests, seconds }, counter }) => ({
        limit: requests,
        used: closedMs > 0 ? requests : counter.used(now),
        seconds,
        resetMs: Math.max(closedMs, counter.resetMs(now)),
      }))
      .toSorted((a, b) => a.seconds - b.seconds);
  }
}

function counterOf({ requests, seconds, kind = 'rolling' }: SpokenWindow): Counter {
  const windowMs = seconds * 1000;
  if (kind === 'fixed') return fixed(requests, windowMs);
  return kind === 'leaky' ? leaky(requests, windowMs) : rolling(requests, windowMs);
}

function rolling(limit: number, windowMs: number): Counter {
  let sends: number[] = [];
  const used = (now: number): number => {
    sends = sends.filter((at) => at > now - windowMs);
    return sends.length;
  };
  const leavesInMs = (index: number, now: number): number => (sends[index] ?? now) + windowMs - now;
  return {
    used,
    take: (now) => void sends.push(now),
    waitMs: (now) => (used(now) < limit ? 0 : leavesInMs(sends.length - limit, now)),
    resetMs: (now) => (used(now) === 0 ? windowMs : leavesInMs(0, now)),
  };
}

function fixed(limit: number, windowMs: number): Counter {
  let window = 0;
  let count = 0;
  const used = (now: number): number => {
    const current = Math.floor(now / windowMs);
    if (current !== window) count = 0;
    window = current;
    return count;
  };
  const resetMs = (now: number): number => (Math.floor(now / windowMs) + 1) * windowMs - now;
  return {
    used,
    take(now) {
      count = used(now) + 1;
    },
    waitMs: (now) => (used(now) < limit ? 0 : resetMs(now)),
    resetMs,
  };
}

function leaky(limit: number, windowMs: number): Counter {
  let level = 0;
  let at = 0;
  const levelAt = (now: number): number => Math.max(0, level - ((now - at) * limit) / windowMs);
  return {
    used: (now) => Math.ceil(levelAt(now)),
    take(now) {
      level = levelAt(now) + 1;
      at = now;
    },
    // A rounding of the last digit is no unit.
    waitMs: (now) => Math.max(0, Math.ceil(((levelAt(now) + 1 - limit - 1e-6) * windowMs) / limit)),
    resetMs: (now) => Math.ceil((levelAt(now) * windowMs) / limit),
  };
}
