/**
 * When a bucket is to be pumped next. The replica that has claimed the next pump (the pump leader) asks in time, also for
 * others; replicas whose tickets wait for that pump ask a little later, in case the leader died.
 *
 * Owns: the timer of one bucket. Does not own: what is asked then (`bucket-session.ts`).
 */
import type { Clock } from '../../clock.ts';

/** How long a replica that is not the pump leader waits beyond the time at which a pump is due. Milliseconds. */
const followMs = 400;

/** The next pump that may grant. */
export interface PumpDue {
  /** Monotonic milliseconds. */
  readonly at: number;
  readonly isLeader: boolean;
}

export class PumpTimer {
  readonly #clock: Clock;
  readonly #pump: () => void;
  #isClosed = false;
  #due: PumpDue | null = null;
  #timer: { readonly at: number; readonly cancel: () => void } | null = null;

  constructor(clock: Clock, pump: () => void) {
    this.#clock = clock;
    this.#pump = pump;
  }

  /** What a reply said; `null` = only an event can make room. */
  note(due: PumpDue | null): void {
    this.#due = due;
  }

  /** The leader's pump has been seen: a pump is not due before now. */
  noteLeaderPumped(): void {
    if (this.#due?.isLeader !== false) return;
    this.#due = { ...this.#due, at: Math.max(this.#due.at, this.#clock.monotonic()) };
  }

  /** Sets the timer by what was noted. `isNeeded`: tickets of this replica wait. */
  schedule(isNeeded: boolean): void {
    const due = this.#due !== null && (this.#due.isLeader || isNeeded) ? this.#due : null;
    const at = due === null ? null : due.at + (due.isLeader ? 0 : followMs);
    if (at === (this.#timer?.at ?? null)) return;
    this.cancel();
    if (at === null || this.#isClosed) return;
    const cancel = this.#clock.after(at - this.#clock.monotonic(), () => {
      this.#timer = null;
      this.#pump();
    });
    this.#timer = { at, cancel };
  }

  /** Nothing is pumped from now on. */
  close(): void {
    this.#isClosed = true;
    this.cancel();
  }

  cancel(): void {
    this.#timer?.cancel();
    this.#timer = null;
  }
}
