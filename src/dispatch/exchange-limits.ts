/**
 * The limits of one exchange in time: connecting, the response's head, silence within the body, and all of it.
 *
 * Owns: which limit applies, and the one timer for all of them. Does not own: what a limit that has passed means.
 * Keeps: a limit that moves away costs nothing; the timer is only touched when it must fire earlier, because most
 * exchanges end before any of their limits and would otherwise pay for four timers.
 */
import type { CancelTimer, Clock } from '../clock.ts';
import type { UpstreamTimeouts } from '../config/settings.ts';

/** Silence is looked for this many times per idle limit: it is noticed at most a quarter too late. */
const checksPerIdle = 4;

/** The exchange that the limits apply to. */
export interface Limited {
  onLimit(): void;
  /** True when the body has moved since this was asked before. */
  hasMoved(): boolean;
}

export class ExchangeLimits {
  readonly #clock: Clock;
  readonly #timeouts: UpstreamTimeouts;
  readonly #of: Limited;
  readonly #totalEndsAt: number;
  #stageEndsAt: number;
  #isInBody = false;
  /** When the timer fires; `null` = there is none. Monotonic milliseconds, as all times here. */
  #ringsAt: number | null = null;
  #cancel: CancelTimer | null = null;

  /** The connect limit counts from now. */
  constructor(clock: Clock, timeouts: UpstreamTimeouts, of: Limited) {
    this.#clock = clock;
    this.#timeouts = timeouts;
    this.#of = of;
    const now = clock.monotonic();
    this.#totalEndsAt = now + timeouts.totalMs;
    this.#stageEndsAt = now + timeouts.connectMs;
    this.#ringAt(this.#endsAt, now);
  }

  /** The request is written: the limit of the head counts from now. */
  awaitHead(): void {
    const now = this.#clock.monotonic();
    this.#stageEndsAt = now + this.#timeouts.headMs;
    this.#ringAt(this.#endsAt, now);
  }

  /** The head is there: silence counts from now. */
  awaitBody(): void {
    const now = this.#clock.monotonic();
    this.#isInBody = true;
    this.#stageEndsAt = now + this.#timeouts.idleMs;
    this.#ringAt(this.#nextCheck(now), now);
  }

  /** Nothing is limited any more. */
  stop(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.#ringsAt = null;
  }

  get #endsAt(): number {
    return Math.min(this.#stageEndsAt, this.#totalEndsAt);
  }

  #nextCheck(now: number): number {
    return Math.min(this.#endsAt, now + Math.max(1, this.#timeouts.idleMs / checksPerIdle));
  }

  /** Sets the timer to `at`, unless it is set to an earlier time already: then it compares with the limits again. */
  #ringAt(at: number, now: number): void {
    if (this.#ringsAt !== null && at >= this.#ringsAt) return;
    this.#cancel?.();
    this.#ringsAt = at;
    this.#cancel = this.#clock.after(at - now, () => this.#ring());
  }

  #ring(): void {
    this.#cancel = null;
    this.#ringsAt = null;
    const now = this.#clock.monotonic();
    if (this.#isInBody && this.#of.hasMoved()) this.#stageEndsAt = now + this.#timeouts.idleMs;
    if (now >= this.#endsAt) this.#of.onLimit();
    else this.#ringAt(this.#isInBody ? this.#nextCheck(now) : this.#endsAt, now);
  }
}
