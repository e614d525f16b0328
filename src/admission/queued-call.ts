/**
 * One call in admission, from `enter` to its end: its states and what follows from them alone.
 *
 *   entering ──▶ waiting ──▶ sent ──▶ (waiting ──▶ sent)* ──▶ gone        any state ──▶ gone
 *
 * It is also the ticket that the journey holds. A class, because thousands of calls wait and a factory would create these functions
 * for each.
 * Does not own: counts, timers and the limiter's tickets (`wait-registry.ts`), grants (`ceiling-gate.ts`).
 * Keeps: a call is not sent after its client left, its key was revoked or its wait has passed (9).
 */
import type { CallSignal } from '../call-abort.ts';
import type { HeldTime, Reckoned } from '../call.ts';
import type { Clock } from '../clock.ts';
import { keyEnded, type Refusal } from '../errors.ts';
import { type CeilingRef, whole } from '../limiter/policy/ceiling.policy.ts';
import { returnGraceMs } from '../limiter/limiter.ts';
import type { LaneView } from './lanes.ts';
import { expired } from './refusals.ts';
import type { AdmissionRequest, Lease, Ticket } from './ticket.ts';
import { type CallHeld, heldTimes } from './wait-causes.policy.ts';

export type CallState =
  /** The call is in its lane, or on its way there; its caller does not wait for a lease yet. */
  | { readonly kind: 'entering' }
  /** The caller waits for a lease since then (monotonic milliseconds), at most until the deadline. */
  | {
      readonly kind: 'waiting';
      readonly since: number;
      readonly resolve: (lease: Lease) => void;
      readonly reject: (why: unknown) => void;
      readonly cancelDeadline: () => void;
    }
  /** The caller has a lease, or had one; it may come back to wait. `ticketEnded`: the limiter has no ticket of it any more. */
  | { readonly kind: 'sent'; readonly ticketEnded: boolean }
  | { readonly kind: 'gone'; readonly ending: Ending };

export type Waiting = Extract<CallState, { kind: 'waiting' }>;

/**
 * The deadline of a call is at least so far away when it comes, milliseconds: one that may not wait at all still has to pass through
 * admission, which takes replies of the stores. Whether it is refused as too late is decided by its own wait (`maxWaitMs`).
 */
export const passageMs = 100;
/** The ceiling's reply may take this many times as long as the limiter's, because the ceiling may have to be asked twice. */
export const repliesAhead = 2;

/** What changes a call's state, with all that goes with it: `wait-registry.ts`. */
export interface CallKeeper {
  wait(call: QueuedCall): Promise<Lease>;
  /** Limits do not hold the call any more: they are reckoned beside it. */
  observe(call: QueuedCall): ObservedTicket;
  end(call: QueuedCall, ending: Ending): void;
}

interface Entered {
  readonly lane: LaneView;
  readonly clock: Clock;
  readonly keeper: CallKeeper;
}

/** What the caller deals with where limits do not hold its call (`observed-call.ts`). */
export interface ObservedTicket extends Pick<
  Ticket,
  'whenGranted' | 'waitedMs' | 'held' | 'would' | 'leave'
> {
  /** The ticket has to wait. */
  onHeld(): void;
  /** Ends the reckoning. */
  stop(): void;
}

/** A lane whose grant went back counts as held for the same cause until it is granted again: a little longer than it sleeps. Milliseconds. */
const outsideSlackMs = 1_000;

export class QueuedCall implements Ticket {
  /** As configuration has it now: replaced by a reload. */
  request: AdmissionRequest;
  readonly clientGone: CallSignal;
  /** Replaced where its bucket is joined into another one. */
  lane: LaneView;
  /** When its own wait ends. Monotonic milliseconds. */
  readonly waitEndsAt: number;
  /** Until when it may be granted: its own wait, and what the stores take for their replies. Monotonic milliseconds. */
  deadline: number;
  /** The bucket granted it when it came. */
  isGrantedAtOnce = false;
  /** Until then the first replies of the stores may be on their way: whoever is refused has not waited. Monotonic milliseconds. */
  passageEndsAt: number;
  ahead = 0;
  /** A grant of the call has asked the ceiling for a slot: the call is not part of forecasts for those that have yet to ask. */
  asksForSlot = false;
  /** Its grant may take what its ceiling leaves to others (`Grant.isDue`). */
  mayTakeAll = false;
  /** Monotonic time at which the call last gave its slot back because an earlier grant was returned; `null` = it never did. */
  slotGivenBackAt: number | null = null;
  /** When its ceiling was last said to have a slot for it, monotonic milliseconds; `null` = it was not asked. */
  slotExpectedAt: number | null = null;
  /** What its caller deals with, where limits do not hold the call; `null` = they do. */
  observed: ObservedTicket | null = null;
  /** What has held it (`wait-causes.ts`); `null` = it never waited without a grant. */
  heldSoFar: CallHeld | null = null;
  #state: CallState = { kind: 'entering' };
  #onCallerWaits: (() => void) | null = null;
  #waitedMs = 0;
  readonly #clock: Clock;
  readonly #keeper: CallKeeper;

  constructor(request: AdmissionRequest, clientGone: CallSignal, entered: Entered) {
    const { lane, clock, keeper } = entered;
    const now = clock.monotonic();
    this.request = request;
    this.clientGone = clientGone;
    this.lane = lane;
    this.#clock = clock;
    this.#keeper = keeper;
    this.waitEndsAt = now + request.maxWaitMs;
    const isBack = request.admission.reservation !== undefined;
    this.passageEndsAt = now + passageMs;
    this.deadline = Math.max(this.waitEndsAt, isBack ? now + returnGraceMs : this.passageEndsAt);
  }

  /** Called when `clientGone` aborts: this object is its listener until the call is gone (no closure for each call). */
  handleEvent(): void {
    this.#keeper.end(this, { kind: 'client_gone', reason: this.clientGone.reason });
  }

  /** The ceiling of which it may take a slot now. */
  get ceiling(): CeilingRef {
    const { ceiling } = this.request;
    return this.mayTakeAll ? whole(ceiling) : ceiling;
  }

  get state(): CallState {
    return this.#state;
  }

  get isWaiting(): boolean {
    return this.#state.kind === 'waiting';
  }

  get isGone(): boolean {
    return this.#state.kind === 'gone';
  }

  /**
   * The limiter granted the call at once, with a reply that took `tookMs`. The ceiling's reply, mostly from the same store, may take
   * as long: the deadline is moved by that time, so that the slowness of the store does not refuse the call.
   */
  onGrantedAtOnce(tookMs: number, now: number): void {
    this.isGrantedAtOnce = true;
    this.passageEndsAt = now + passageMs + repliesAhead * tookMs;
    this.deadline = Math.max(this.deadline, this.passageEndsAt);
  }

  whenGranted(): Promise<Lease> {
    if (this.request.mode === 'observe') this.observed ??= this.#keeper.observe(this);
    return this.observed === null ? this.#keeper.wait(this) : this.observed.whenGranted();
  }

  remainingMs(): number {
    return Math.max(0, this.waitEndsAt - this.#clock.monotonic());
  }

  heldOutside(cause: 'paused' | 'credential', ms: number): void {
    this.lane.causes.outside = { cause, until: this.#clock.monotonic() + ms + outsideSlackMs };
  }

  ensureTimeLeft(ms: number): void {
    this.deadline = Math.max(this.deadline, this.#clock.monotonic() + ms);
  }

  waitedMs(): number {
    return this.observed === null ? this.#waitedMs : this.observed.waitedMs();
  }

  held(): readonly HeldTime[] {
    return this.observed === null ? heldTimes(this.heldSoFar, this.#waitedMs) : this.observed.held();
  }

  get isObserved(): boolean {
    return this.observed !== null;
  }

  would(): Promise<Reckoned | null> {
    return this.observed === null ? Promise.resolve(null) : this.observed.would();
  }

  leave(): void {
    if (this.observed === null) this.#keeper.end(this, { kind: 'left' });
    else this.observed.leave();
  }

  /** Milliseconds in its lane so far, the wait under way included. */
  inLaneMs(): number {
    const { state } = this;
    return this.#waitedMs + (state.kind === 'waiting' ? this.#clock.monotonic() - state.since : 0);
  }

  /** Limits have kept the call in its lane. */
  get wasHeld(): boolean {
    return this.heldSoFar !== null;
  }

  become(state: CallState): void {
    if (this.#state.kind === 'waiting') this.#waitedMs += this.#clock.monotonic() - this.#state.since;
    this.#state = state;
    if (state.kind !== 'waiting' && state.kind !== 'gone') return;
    this.#onCallerWaits?.();
    this.#onCallerWaits = null;
  }

  /** Resolves when the caller waits for its lease, or the call is gone: a grant may come before its caller. */
  callerWaits(): Promise<void> {
    if (this.isWaiting || this.isGone) return Promise.resolve();
    return new Promise((resolve) => {
      this.#onCallerWaits = resolve;
    });
  }

  /** Why the call must not be sent now; `null` = it may. */
  reasonToStop(now: number): Ending | null {
    if (this.clientGone.aborted) return { kind: 'client_gone', reason: this.clientGone.reason };
    if (!this.request.stillValid()) return refused(keyEnded());
    if (now > this.deadline) return refused(expired(0, 'queue'));
    return null;
  }
}

// Endings

export type Ending =
  /** Sluice refuses the call: it is too late, its key was revoked, or the process ends. */
  | { readonly kind: 'refused'; readonly refusal: Refusal }
  /** Nobody waits for the call's response any more; `reason` is that of the client's abort signal. */
  | { readonly kind: 'client_gone'; readonly reason: unknown }
  /** A store failed in a way that no refusal describes. The caller's promise rejects with the error. */
  | { readonly kind: 'failed'; readonly error: unknown }
  /** The journey ended the ticket: the call was answered, or its attempt was given up. */
  | { readonly kind: 'left' };

export const refused = (refusal: Refusal): Ending => ({ kind: 'refused', refusal });

/** What the promise of a caller that waits, or comes to wait, is rejected with. */
export function rejectionOf(ending: Ending): unknown {
  switch (ending.kind) {
    case 'refused':
      return ending.refusal;
    case 'client_gone':
      return ending.reason;
    case 'failed':
      return ending.error;
    case 'left':
      return new Error('a ticket was used after it was handed in');
  }
}
