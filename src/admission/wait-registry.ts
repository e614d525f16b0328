/**
 * All calls of this replica that are in admission: who waits, until when, and how each ends.
 *
 * Owns: the changes of a call's state with all that goes with them: counts, deadlines, listeners, the limiter's tickets.
 * Does not own: who is refused early (`late-refusals.ts`), who may go (`ceiling-gate.ts`).
 * Keeps: a waiting caller is answered exactly once; a call that ends gives back its ticket, its timer and its listener
 * (9, 10).
 */
import type { CallSignal } from '../call-abort.ts';
import { type CeilingKey, isBackground, type LaneKey, type TicketId } from '../ids.ts';
import { ShortLived } from '../short-lived.ts';
import { enteredUntil, type Lanes, type LaneView } from './lanes.ts';
import { ObservedBuckets, ObservedCall, type ObservedParts } from './observed-call.ts';
import {
  type CallKeeper,
  type Ending,
  type ObservedTicket,
  QueuedCall,
  refused,
  rejectionOf,
  type Waiting,
} from './queued-call.ts';
import { expired, type Hold, waitTooLong } from './refusals.ts';
import type { AdmissionParts, AdmissionRequest, BucketLane, Lease } from './ticket.ts';
import type { WaitCauses } from './wait-causes.ts';

/** More calls than so many are sent without a ticket while limits do not hold them: what is reckoned is bounded, as what waits is. */
const maxReckoned = 20_000;

const always = (): boolean => true;
/** The client of a ticket whose call has left already. */
const nobody: CallSignal = {
  aborted: false,
  reason: undefined,
  throwIfAborted() {},
  addEventListener() {},
  removeEventListener() {},
};

export class WaitRegistry implements CallKeeper {
  /** A call has left; none waits under its ceiling now. */
  onNoneWaiting: (ceiling: CeilingKey) => void = () => {};
  readonly #parts: AdmissionParts;
  readonly #lanes: Lanes;
  readonly #causes: WaitCauses;
  readonly #calls = new ShortLived<TicketId, QueuedCall>();
  readonly #queues = new CeilingQueues();
  readonly #observedParts: ObservedParts;

  constructor(parts: AdmissionParts, lanes: Lanes, causes: WaitCauses) {
    this.#parts = parts;
    this.#lanes = lanes;
    this.#causes = causes;
    this.#observedParts = {
      ...parts,
      buckets: new ObservedBuckets(),
      wait: (call) => this.wait(call),
      end: (call) => this.end(call, { kind: 'left' }),
    };
  }

  /** Registers a call that enters admission. Its caller does not wait for a lease before it calls `wait`. */
  enter(request: AdmissionRequest, clientGone: CallSignal): QueuedCall {
    const lane = this.#lanes.of(request);
    lane.calls += 1;
    lane.entered.calls = enteredUntil(lane, lane.usedAt) + 1;
    const call = new QueuedCall(request, clientGone, { lane, clock: this.#parts.clock, keeper: this });
    clientGone.addEventListener('abort', call, { once: true });
    this.#calls.set(request.admission.ticket, call);
    return call;
  }

  /** The call with this ticket, for a grant of the limiter. */
  find(ticket: TicketId): QueuedCall | undefined {
    return this.#calls.get(ticket);
  }

  /** All calls in the order of their coming, also those that do not wait now. */
  all(): Iterable<QueuedCall> {
    return this.#calls.values();
  }

  /** How many calls `all()` returns. */
  get size(): number {
    return this.#calls.size;
  }

  /** Calls that wait now under one ceiling. */
  waitingUnder(key: CeilingKey): number {
    return this.#queues.waitingUnder(key);
  }

  /** The same, as far as they count for a call that arrives in this lane. */
  waitingBeside(key: CeilingKey, lane: LaneKey): number {
    return this.#queues.waitingBeside(key, lane);
  }

  /** The lanes in which calls under one ceiling wait now. */
  lanesUnder(key: CeilingKey): Iterable<LaneView> {
    return this.#queues.lanesUnder(key);
  }

  /** Resolves with the lease of the call; rejects when the call ends before, at the latest at its deadline. */
  wait(call: QueuedCall): Promise<Lease> {
    const before = call.state;
    if (before.kind === 'gone') {
      // A call that ended while it was on its way upstream may have come back into the lane with its response.
      this.#takeOut(call);
      return Promise.reject(rejectionOf(before.ending) as Error);
    }
    return new Promise<Lease>((resolve, reject) => {
      const since = this.#parts.clock.monotonic();
      const cancelDeadline = this.#parts.clock.after(call.deadline - since, () => this.#expire(call));
      call.become({ kind: 'waiting', since, resolve, reject, cancelDeadline });
      this.#queues.add(call);
      // A call that has a grant waits for its slot of the ceiling; if there is none, it begins to be held then.
      if (!call.asksForSlot) this.#causes.begins(call);
      const stop =
        call.reasonToStop(since) ?? (before.kind === 'sent' ? this.#lateForCeiling(call, since) : null);
      if (stop !== null) this.end(call, stop);
      else if (before.kind !== 'waiting') this.moveToJoinedBucket(call);
    });
  }

  /**
   * Enters a call that limits do not hold. Its ticket keeps nothing of it.
   * @param enterLane takes the ticket into its lane; rejects where it is refused
   */
  enterObserved(
    request: AdmissionRequest,
    audience: CallSignal,
    enterLane: (call: QueuedCall) => Promise<unknown>,
  ): QueuedCall {
    const { stillValid } = request;
    const call = this.enter({ ...request, stillValid: always }, nobody);
    audience.addEventListener('abort', call, { once: true });
    const observed = new ObservedCall(call, { audience, stillValid }, this.#observedParts);
    call.observed = observed;
    if (this.#calls.size <= maxReckoned) void observed.follow(enterLane(call));
    else observed.stop();
    return call;
  }

  observe(call: QueuedCall): ObservedTicket {
    const observed = this.#observedOf(call);
    void observed.follow(Promise.resolve());
    return observed;
  }

  #observedOf(call: QueuedCall): ObservedCall {
    const caller = { audience: call.clientGone, stillValid: call.request.stillValid };
    return new ObservedCall(call, caller, this.#observedParts);
  }

  /** A reload has changed whether limits hold the call: who is held by them is sent now, and whose call was sent already leaves its lane. */
  changeMode(call: QueuedCall): void {
    const { state, observed } = call;
    if (call.request.mode === 'enforce') return observed?.stop();
    if (observed !== null || state.kind !== 'waiting') return;
    // What has held the caller ends here; what holds its ticket goes on.
    const { wasHeld } = call;
    this.#causes.ends(call);
    const caller = this.#observedOf(call);
    if (wasHeld) this.#causes.begins(call);
    call.observed = caller;
    call.become({ ...state, since: this.#parts.clock.monotonic(), ...caller.takeOver() });
    state.resolve(caller.lease());
  }

  /** The caller gets its lease. False: no caller waits for it any more. */
  grant(call: QueuedCall, lease: Lease): boolean {
    const { state } = call;
    if (state.kind !== 'waiting') return false;
    this.#stopWaiting(call, state);
    call.become({ kind: 'sent', ticketEnded: false });
    this.#causes.onEvent(call.lane);
    this.#noteLeft(call);
    state.resolve(lease);
    return true;
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
    const from = call.request.admission.bucket;
    this.#transfer(call, joined);
    const { admission, arrivedAt, maxWaitMs } = call.request;
    const position = { kind: 'arrival', at: arrivedAt } as const;
    detached(limiter.move(from, { ...admission, maxWaitMs, position }));
  }

  #transfer(call: QueuedCall, to: BucketLane): void {
    const { admission } = call.request;
    this.#queues.remove(call);
    this.#causes.ends(call);
    call.lane.calls -= 1;
    call.asksForSlot = false;
    call.request = { ...call.request, admission: { ...admission, ...to } };
    call.lane = this.#lanes.of(call.request);
    call.lane.calls += 1;
    this.#queues.add(call);
    this.#causes.begins(call);
  }

  /** Ends the call in admission, and rejects its waiting caller. A second `end` of the same call does nothing. */
  end(call: QueuedCall, ending: Ending): void {
    const { state } = call;
    if (state.kind === 'gone') return;
    if (state.kind === 'waiting') this.#stopWaiting(call, state);
    call.become({ kind: 'gone', ending });
    call.lane.calls -= 1;
    this.#calls.delete(call.request.admission.ticket);
    call.clientGone.removeEventListener('abort', call);
    if (state.kind !== 'sent' || !state.ticketEnded) this.#takeOut(call);
    this.#noteLeft(call);
    if (state.kind === 'waiting') state.reject(rejectionOf(ending));
  }

  #stopWaiting(call: QueuedCall, { cancelDeadline }: Waiting): void {
    cancelDeadline();
    this.#queues.remove(call);
    this.#causes.ends(call);
  }

  #noteLeft({ request: { ceiling } }: QueuedCall): void {
    if (this.#queues.waitingUnder(ceiling.key) === 0) this.onNoneWaiting(ceiling.key);
  }

  #takeOut({ request: { admission } }: QueuedCall): void {
    const { detached, limiter } = this.#parts;
    detached(limiter.cancel(admission.bucket, admission.ticket));
  }

  /** The call's wait is over: refuses it, and names the further wait that it would have needed. */
  #expire(call: QueuedCall): void {
    const { limiter, detached } = this.#parts;
    const { bucket, ticket } = call.request.admission;
    const end = (forecast: Hold | null): void => {
      const full = this.#fullFor(call);
      const known: Hold = forecast ?? { waitMs: 0, heldBy: 'queue' };
      const { waitMs, heldBy } = full !== null && full.waitMs > known.waitMs ? full : known;
      if (call.isWaiting) this.end(call, refused(expired(waitMs, heldBy)));
    };
    const failed = (failure: unknown): void => {
      end(null);
      throw failure;
    };
    detached(limiter.forecast(bucket, ticket).then(end, failed));
  }

  /** The ceiling may have refused the next grant of a call before its caller came back to wait for it. */
  #lateForCeiling(call: QueuedCall, now: number): Ending | null {
    const full = isBackground(call.lane.key) ? null : this.#fullFor(call);
    if (full === null || now + full.waitMs <= call.deadline) return null;
    return refused(waitTooLong(full, call.request));
  }

  /** How long the call's ceiling will have no slot, as known under the limits that hold for the call; `null` = it may have one. */
  #fullFor({ lane, request }: QueuedCall): Hold | null {
    const known = this.#parts.limiter.laneCeiling(lane.bucket, lane.key);
    return known !== null && known.waitMs > 0 && known.tag === request.admission.ceilingTag ? known : null;
  }
}

// Counts of the calls that wait under each ceiling, over all buckets, and in each lane; and the lanes in which they wait

interface CeilingQueue {
  waiting: number;
  /** Of these the background calls. */
  background: number;
  readonly lanes: Set<LaneView>;
}

class CeilingQueues {
  readonly #queues = new Map<CeilingKey, CeilingQueue>();

  waitingUnder(key: CeilingKey): number {
    return this.#queues.get(key)?.waiting ?? 0;
  }

  /** Those that the arrival of a call in this lane is judged by: background calls take no place in the line from others. */
  waitingBeside(key: CeilingKey, lane: LaneKey): number {
    const queue = this.#queues.get(key);
    if (queue === undefined) return 0;
    return isBackground(lane) ? queue.waiting : queue.waiting - queue.background;
  }

  lanesUnder(key: CeilingKey): Iterable<LaneView> {
    return this.#queues.get(key)?.lanes ?? [];
  }

  /** The call begins to wait. */
  add({ lane, request: { ceiling } }: QueuedCall): void {
    let queue = this.#queues.get(ceiling.key);
    if (queue === undefined)
      this.#queues.set(ceiling.key, (queue = { waiting: 0, background: 0, lanes: new Set() }));
    queue.waiting += 1;
    if (isBackground(lane.key)) queue.background += 1;
    lane.waiting += 1;
    queue.lanes.add(lane);
  }

  /** The call waits no longer. */
  remove({ lane, request: { ceiling } }: QueuedCall): void {
    const queue = this.#queues.get(ceiling.key);
    lane.waiting -= 1;
    if (queue === undefined) return;
    queue.waiting -= 1;
    if (isBackground(lane.key)) queue.background -= 1;
    if (lane.waiting === 0) queue.lanes.delete(lane);
    if (queue.waiting === 0) this.#queues.delete(ceiling.key);
  }
}
