/**
 * All calls of this replica that are in admission, and their lanes: who waits, until when, whose turn it is, and how each ends.
 *
 *   entering ──▶ waiting ──▶ sent ──▶ (waiting ──▶ sent)* ──▶ gone        any state ──▶ gone
 *
 * A call is also the ticket that the journey holds. A class, because thousands of calls wait and a factory would create these functions
 * for each. The registry changes a call's state with all that goes with it: counts, deadlines, listeners, the limiter's tickets.
 *
 * Does not own: who is refused early (`late-refusals.ts`), who may go (`ceiling-gate.ts`).
 * Keeps: a waiting caller is answered exactly once; a call that ends gives back its ticket, its timer and its listener
 * (9, 10); a call is not sent after its client left, its key was revoked or its wait has passed (9).
 */
import type { HeldTime } from '../call.ts';
import type { Clock } from '../clock.ts';
import { keyEnded } from '../errors.ts';
import { type CeilingKey, isBackground, type LaneKey, type TicketId } from '../ids.ts';
import { type CeilingRef, whole } from '../limiter/policy/ceiling.policy.ts';
import { type Hold, returnGraceMs } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import { ShortLived } from '../short-lived.ts';
import { type CallSettings, ceilingUnder } from './buckets.policy.ts';
import { type CallHeld, heldTimes, LaneView, WaitCauses } from './lanes.ts';
import { expired } from './refusals.ts';
import type { AdmissionParts, AdmissionRequest, Lease, Ticket } from './ticket.ts';

type CallState =
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
  /** `why`: what the promise of a caller that comes to wait is rejected with. */
  | { readonly kind: 'gone'; readonly why: unknown };

const entering: CallState = { kind: 'entering' };

type Waiting = Extract<CallState, { kind: 'waiting' }>;

/**
 * The deadline of a call is at least so far away when it comes, milliseconds: one that may not wait at all still has to pass through
 * admission, which takes replies of the stores. Whether it is refused as too late is decided by its own wait (`maxWaitMs`).
 */
export const passageMs = 100;
/** The ceiling's reply may take this many times as long as the limiter's, because the ceiling may have to be asked twice. */
export const repliesAhead = 2;

/** Who follows the ticket of a call that limits do not hold (`observed-call.ts`). */
interface Observer {
  /** The ticket has to wait. */
  onHeld(): void;
  /** Ends the reckoning. */
  stop(): void;
}

/** A lane whose grant went back counts as held for the same cause until it is granted again: a little longer than it sleeps. Milliseconds. */
const outsideSlackMs = 1_000;

const nothingHeldIt: readonly HeldTime[] = [];

export const handedIn = new Error('a ticket was used after it was handed in');

export class QueuedCall implements Ticket {
  /** As configuration has it now: replaced by a reload. */
  request: AdmissionRequest;
  readonly clientGone: AbortSignal;
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
  /** A grant of the call has asked the ceiling for a slot: nothing is known yet that holds the call. */
  asksForSlot = false;
  /** Its grant may take what its ceiling leaves to others (`Grant.isDue`). */
  mayTakeReserved = false;
  /** When its ceiling was last said to have a slot for it, monotonic milliseconds; `null` = it was not asked. */
  slotExpectedAt: number | null = null;
  /** Who follows the ticket, where limits do not hold the call; `null` = they do. */
  observer: Observer | null = null;
  /** What has held it (`lanes.ts`); `null` = it never waited without a grant. */
  heldSoFar: CallHeld | null = null;
  #state = entering;
  #onCallerWaits: (() => void) | null = null;
  #waitedMs = 0;
  readonly #clock: Clock;
  readonly #registry: WaitRegistry;

  constructor(request: AdmissionRequest, clientGone: AbortSignal, lane: LaneView, registry: WaitRegistry) {
    const { clock } = registry;
    const now = clock.monotonic();
    this.request = request;
    this.clientGone = clientGone;
    this.lane = lane;
    this.#clock = clock;
    this.#registry = registry;
    this.waitEndsAt = now + request.maxWaitMs;
    const isBack = request.admission.reservation !== undefined;
    this.passageEndsAt = now + passageMs;
    this.deadline = Math.max(this.waitEndsAt, isBack ? now + returnGraceMs : this.passageEndsAt);
  }

  /** Called when `clientGone` aborts: this object is its listener until the call is gone (no closure for each call). */
  handleEvent(): void {
    this.#registry.end(this, this.clientGone.reason);
  }

  /** The ceiling of which it may take a slot now. */
  get ceiling(): CeilingRef {
    const { ceiling } = this.request;
    return this.mayTakeReserved ? whole(ceiling) : ceiling;
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
    return this.#registry.wait(this);
  }

  remainingMs(): number {
    return Math.max(0, this.waitEndsAt - this.#clock.monotonic());
  }

  heldOutside(cause: 'paused' | 'credential', ms: number): void {
    this.lane.causes.outside = { cause, until: this.#clock.monotonic() + ms + outsideSlackMs };
  }

  waitedMs(): number {
    return this.#waitedMs;
  }

  held(): readonly HeldTime[] {
    return this.heldSoFar === null ? nothingHeldIt : heldTimes(this.heldSoFar, this.#waitedMs);
  }

  would(): Promise<null> {
    return Promise.resolve(null);
  }

  leave(): void {
    this.#registry.end(this, handedIn);
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
  reasonToStop(now: number): unknown {
    if (this.clientGone.aborted) return this.clientGone.reason;
    if (!this.request.stillValid()) return keyEnded();
    if (now > this.deadline) return expired(0, 'queue');
    return null;
  }
}

// The registry: also of the lanes that this process knows, and of whose turn it is under a ceiling. A lane that a call is in is not forgotten

/** How long a lane that is next needs to take its slot, milliseconds: each lane ahead delays a lane's waking by as much. */
const serviceMs = 10;
/** How many other lanes a lane lets go first at most. */
const maxAhead = 8;
/** The lanes under a ceiling ask again for slots that came back after so long, all at once; very many of them later. Milliseconds. */
const restMs = 20;
const restPerLaneMs = 0.5;

/** Lanes unused for this long are forgotten when there are more than `maxLanes`. Milliseconds. */
const retentionMs = 120_000;
const maxLanes = 10_000;

export class WaitRegistry {
  readonly clock: Clock;
  readonly causes: WaitCauses;
  readonly #parts: AdmissionParts;
  /** All calls by ticket, in the order of their coming, also those that do not wait now. */
  readonly calls = new ShortLived<TicketId, QueuedCall>();
  readonly #lanes = new Map<string, LaneView>();
  /** Ceilings whose lanes are about to ask again. */
  readonly #due = new Set<CeilingKey>();
  /** The lanes in which calls wait now, under each ceiling. */
  readonly #lanesUnder = new Map<CeilingKey, Set<LaneView>>();

  /** @param onHeld called now and then while calls are held */
  constructor(parts: AdmissionParts, onHeld: () => void) {
    this.clock = parts.clock;
    this.causes = new WaitCauses(parts, onHeld);
    this.#parts = parts;
  }

  /** The lanes that calls of this process have used lately. */
  lanes(): Iterable<LaneView> {
    return this.#lanes.values();
  }

  /** The view of the lane of a call, which is used now. */
  laneOf(call: AdmissionRequest): LaneView {
    const key = `${call.admission.bucket}/${call.admission.lane}`;
    const now = this.clock.monotonic();
    let lane = this.#lanes.get(key);
    if (lane === undefined) {
      if (this.#lanes.size >= maxLanes) this.#forgetUnused(now);
      lane = new LaneView(call, now);
      this.#lanes.set(key, lane);
    }
    lane.usedAt = now;
    lane.latest = call;
    return lane;
  }

  #forgetUnused(now: number): void {
    for (const [key, { calls, usedAt }] of this.#lanes)
      if (calls === 0 && usedAt + retentionMs < now) this.#lanes.delete(key);
  }

  /** Registers a call that enters admission. Its caller does not wait for a lease before it calls `wait`. */
  enter(request: AdmissionRequest, clientGone: AbortSignal): QueuedCall {
    const lane = this.laneOf(request);
    lane.calls += 1;
    lane.entered = { calls: lane.enteredUntil(lane.usedAt) + 1, at: lane.usedAt };
    const call = new QueuedCall(request, clientGone, lane, this);
    clientGone.addEventListener('abort', call, { once: true });
    this.calls.set(request.admission.ticket, call);
    return call;
  }

  /**
   * Calls that wait now under one ceiling; with `own`, as far as they count for a call that arrives in that lane: background calls take no place
   * in the line from others.
   */
  waitingUnder(key: CeilingKey, own?: LaneKey): number {
    let waiting = 0;
    for (const lane of this.lanesUnder(key))
      if (own === undefined || isBackground(own) || !isBackground(lane.key)) waiting += lane.waiting;
    return waiting;
  }

  /** The lanes in which calls under one ceiling wait now. */
  lanesUnder(key: CeilingKey): Iterable<LaneView> {
    return this.#lanesUnder.get(key) ?? [];
  }

  /** One more call, or one less, waits in the lane. */
  #count(lane: LaneView, more: 1 | -1): void {
    lane.waiting += more;
    const lanes = this.#lanesUnder.get(lane.ceiling) ?? new Set();
    if (lane.waiting > 0) lanes.add(lane);
    else lanes.delete(lane);
    if (lanes.size > 0) this.#lanesUnder.set(lane.ceiling, lanes);
    else this.#lanesUnder.delete(lane.ceiling);
  }

  /** Resolves with the lease of the call; rejects when the call ends before, at the latest at its deadline. */
  wait(call: QueuedCall): Promise<Lease> {
    const before = call.state;
    if (before.kind === 'gone') return Promise.reject(before.why as Error);
    const since = this.clock.monotonic();
    const { promise, resolve, reject } = Promise.withResolvers<Lease>();
    const cancelDeadline = this.clock.after(call.deadline - since, () =>
      this.#parts.detached(this.#expire(call)),
    );
    call.become({ kind: 'waiting', since, resolve, reject, cancelDeadline });
    this.#count(call.lane, 1);
    // A call that has a grant waits for its slot of the ceiling; if there is none, it begins to be held then.
    if (!call.asksForSlot) this.begins(call);
    const stop = call.reasonToStop(since);
    if (stop !== null) this.end(call, stop);
    else this.moveToJoinedBucket(call);
    return promise;
  }

  /** What holds the call is noted from now on. */
  begins(call: QueuedCall): void {
    call.heldSoFar = this.causes.begins(call.heldSoFar, call.lane);
    call.observer?.onHeld();
  }

  #ends(call: QueuedCall): void {
    if (call.heldSoFar !== null) call.heldSoFar = this.causes.ends(call.heldSoFar, call.lane);
  }

  /** The caller, if it waits, gets its lease. */
  grant(call: QueuedCall, lease: Lease): void {
    const { state } = call;
    if (state.kind !== 'waiting') return;
    this.#stopWaiting(call, state);
    call.become({ kind: 'sent', ticketEnded: false });
    if (call.lane.causes.calls > 0) this.causes.onEvent(call.lane);
    state.resolve(lease);
  }

  /**
   * A waiting call moves to the bucket into which its own was joined, at its position. So does a call whose grant is asking the
   * ceiling for a slot: that grant goes back with the ceiling's reply (`ceiling-gate.ts`). The bucket that stays knows nothing of it,
   * and a call that left with it would cost a refusal; and calls behind it, which move at once, would leave first (4).
   */
  moveToJoinedBucket(call: QueuedCall): void {
    const { joinedBucketOf, limiter, detached } = this.#parts;
    const joined = call.isWaiting ? joinedBucketOf(call.request) : null;
    if (joined === null) return;
    const { admission, arrivedAt, maxWaitMs } = call.request;
    this.#count(call.lane, -1);
    this.#ends(call);
    call.lane.calls -= 1;
    call.asksForSlot = false;
    call.request = { ...call.request, admission: { ...admission, ...joined } };
    call.lane = this.laneOf(call.request);
    call.lane.calls += 1;
    this.#count(call.lane, 1);
    this.begins(call);
    const position = { kind: 'arrival', at: arrivedAt } as const;
    detached(limiter.move(admission.bucket, { ...admission, ...joined, maxWaitMs, position }));
  }

  /** Ends the call in admission, and rejects its waiting caller. A second `end` of the same call does nothing. */
  end(call: QueuedCall, why: unknown): void {
    const { state } = call;
    if (state.kind === 'gone') return;
    if (state.kind === 'waiting') this.#stopWaiting(call, state);
    call.become({ kind: 'gone', why });
    call.lane.calls -= 1;
    this.calls.delete(call.request.admission.ticket);
    call.clientGone.removeEventListener('abort', call);
    if (state.kind !== 'sent' || !state.ticketEnded) this.#takeOut(call);
    if (state.kind === 'waiting') state.reject(why);
  }

  #stopWaiting(call: QueuedCall, { cancelDeadline }: Waiting): void {
    cancelDeadline();
    this.#count(call.lane, -1);
    this.#ends(call);
  }

  #takeOut({ request: { admission } }: QueuedCall): void {
    const { detached, limiter } = this.#parts;
    detached(limiter.cancel(admission.bucket, admission.ticket));
  }

  /** The call's wait is over: refuses it, and names the further wait that it would have needed. */
  async #expire(call: QueuedCall): Promise<void> {
    const { bucket, ticket } = call.request.admission;
    let known: Hold = { waitMs: 0, heldBy: 'queue' };
    try {
      known = (await this.#parts.limiter.forecast(bucket, ticket)) ?? known;
    } finally {
      const full = this.#parts.limiter.laneCeiling(call.lane.bucket, call.lane.key);
      const { waitMs, heldBy } = full !== null && full.waitMs > known.waitMs ? full : known;
      if (call.isWaiting) this.end(call, expired(waitMs, heldBy));
    }
  }

  // Lanes of one workspace that wait for slots of the same ceiling are served in rotation: the one that has gone longest without a slot is
  // first. No lane is passed over for ever, a lane alone waits for no other, and a slot that comes back is left over only if no lane can use
  // it (6). What other replicas gave a lane is not known here, so over replicas the rotation is fair on average only.

  /** How long after a slot has come free the lane wakes, milliseconds. */
  delayMs(own: LaneView): number {
    let ahead = 0;
    for (const { lane } of this.#rivalsOf(own)) {
      if (compare(lane, own) < 0) ahead += 1;
      if (ahead >= maxAhead) break;
    }
    return ahead * serviceMs;
  }

  /**
   * Tells positions under the ceiling of this lane (1 = next) with `ahead` calls of the same lane before: each other lane that waits for
   * the ceiling gets as many slots meanwhile, and one more if it is before the lane in the rotation. Of a lane that does not wait yet
   * those are before it that have gone without a slot for as long.
   *
   * Very many calls of very many lanes are told: a position takes no look at each lane.
   */
  turns(lane: LaneView): (own: LaneView, ahead: number) => number {
    const depths = new Map<LaneView, number>();
    /** Slots that others take before a background call, which takes no turn with them. */
    let reserved = 0;
    for (const { lane: other, depth } of this.#rivalsOf(lane)) {
      if (isBackground(lane.key) && !isBackground(other.key)) reserved += depth;
      else depths.set(other, depth);
    }
    /** By calls ahead: the slots that all lanes get meanwhile, and the lanes that want more, in order. */
    const rounds = [{ slots: 0, more: inOrder(depths.keys()) }];
    return (own, ahead) => {
      for (let at = rounds.length; at <= ahead; at += 1) {
        const { slots = 0, more = [] } = rounds[at - 1] ?? {};
        const still = more.filter((other) => (depths.get(other) ?? 0) > at);
        rounds.push({ slots: slots + more.length, more: still });
      }
      const { slots = 0, more = [] } = rounds[ahead] ?? {};
      const ofOwn = Math.min(depths.get(own) ?? 0, ahead);
      return ahead + 1 + reserved + slots - ofOwn + countBefore(more, own);
    };
  }

  /**
   * A slot of the ceiling came back from a call that was not sent, here or at another replica: the lanes that wait for one ask again, also
   * in other buckets than that of the call, the one that has gone longest without a slot first.
   */
  onSlotBack(key: CeilingKey): void {
    if (this.#due.has(key)) return;
    const { clock, limiter, detached } = this.#parts;
    this.#due.add(key);
    const lanes = Array.from(this.lanesUnder(key)).length;
    clock.after(Math.max(restMs, lanes * restPerLaneMs), () => {
      this.#due.delete(key);
      for (const lane of inOrder(this.lanesUnder(key)))
        if (lane.waiting > 0) detached(limiter.wake(lane.bucket, lane.key));
    });
  }

  /** Lanes that wait for the lane's ceiling, itself among them, each with its waiting calls. Those of the background are rivals of each other only. */
  *#rivalsOf(own: LaneView): Generator<{ readonly lane: LaneView; readonly depth: number }> {
    for (const lane of this.lanesUnder(own.ceiling)) {
      if (isBackground(lane.key) && !isBackground(own.key)) continue;
      const full = this.#parts.limiter.laneCeiling(lane.bucket, lane.key);
      if (full !== null) yield { lane, depth: Math.max(lane.waiting, full.waiting) };
    }
  }
}

/**
 * The request as default ceilings let it go: without them where a response of its bucket has stated a limit, here or at another replica.
 */
export function present(request: AdmissionRequest, limiter: Pick<Limiter, 'statesLimit'>): AdmissionRequest {
  const { yielded, admission } = request;
  return yielded !== null && limiter.statesLimit(admission.bucket) ? withSettings(request, yielded) : request;
}

export function withSettings(request: AdmissionRequest, settings: CallSettings): AdmissionRequest {
  const { setting, weight, maxInFlight, ceilingTag, maxQueued, perMinute, yielded } = settings;
  return {
    ...request,
    yielded,
    admission: { ...request.admission, setting, weight, maxInFlight, perMinute, ceilingTag, maxQueued },
    ceiling: ceilingUnder(request.ceiling.key, settings),
  };
}

/** The one that has gone longest without a slot is first; those of the background come last. */
function compare(one: LaneView, other: LaneView): number {
  if (isBackground(one.key) !== isBackground(other.key)) return isBackground(other.key) ? -1 : 1;
  const apart = (one.servedAt ?? -Infinity) - (other.servedAt ?? -Infinity);
  // Neither has had a slot, or both in the same moment.
  if (apart === 0 || Number.isNaN(apart))
    return one.bucket < other.bucket ? -1 : Number(one.bucket > other.bucket);
  return apart;
}

const inOrder = (lanes: Iterable<LaneView>): readonly LaneView[] => [...lanes].sort(compare);

/** How many of these lanes, which are in order, are before a lane. */
function countBefore(lanes: readonly LaneView[], own: LaneView): number {
  let [from, to] = [0, lanes.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    const other = lanes[middle];
    if (other !== undefined && compare(other, own) < 0) from = middle + 1;
    else to = middle;
  }
  return from;
}
