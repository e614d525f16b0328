/**
 * A call that limits do not hold (`mode: observe`): it is sent at once, and its ticket goes through lane, bucket and ceiling beside it,
 * so that it is known what limits would have done.
 *
 *   the call     sent ──────────── answered
 *   its ticket   waits … granted ──────────── settled
 *
 * The ticket is settled as long after its grant as the call was after its sending, with what the call was settled with: so the ticket
 * outlives its call. Nobody waits for the ticket, and it keeps nothing of the call.
 *
 * Owns: what the caller is given in the place of a lease, and what becomes of the ticket. Does not own: any decision about the ticket:
 * that is made as for every other call. Keeps: a refusal by the upstream closes nothing, because it met traffic that nobody held.
 */
import { LRUCache } from 'lru-cache';
import type { CallSignal } from '../call-abort.ts';
import type { HeldTime, Reckoned } from '../call.ts';
import { type CancelTimer, delay } from '../clock.ts';
import { keyEnded, limitRefusals, Refusal } from '../errors.ts';
import { type BucketKey, laneKey, leaseToken } from '../ids.ts';
import { isCapped, type Lesson, type Settlement } from '../limiter/limiter.ts';
import type { ObservedTicket, QueuedCall } from './queued-call.ts';
import type { AdmissionParts, Lease } from './ticket.ts';

/** Whose call it is. */
export interface ObservedCaller {
  readonly audience: CallSignal;
  /** False once the key of the call is not valid any more. */
  readonly stillValid: () => boolean;
}

/** What observed calls share. */
export interface ObservedParts extends Pick<AdmissionParts, 'clock' | 'limiter' | 'detached'> {
  readonly buckets: ObservedBuckets;
  /** Waits in the call's lane, for its ticket. */
  readonly wait: (call: QueuedCall) => Promise<Lease>;
  /** Takes the ticket out. */
  readonly end: (call: QueuedCall) => void;
  /** It is known what limits would have done with a call. `told`: the forecast that its response had; `null` = none. */
  readonly onReckoned: AdmissionParts['onReckoned'];
}

/**
 * A response may come before the stores have said what becomes of its ticket: its head waits for them so long, once, rather than go without
 * the field that says it. Milliseconds.
 */
const headWaitsMs = 250;

/** Something that happened to the call, for its ticket: so long after it was sent, milliseconds. */
interface Happening {
  readonly afterMs: number;
  /** The upstream refused it at once: when it is the ticket's turn, it takes the usual time. */
  readonly isRefusal: boolean;
  readonly act: (lease: Lease) => void;
}

/** A happening whose time has not come yet. */
interface Due extends Happening {
  cancel: CancelTimer;
}

const none: readonly Happening[] = [];

export class ObservedCall implements ObservedTicket {
  /** How long the caller was held nevertheless: before the upstream was observed, and while it was paused. Milliseconds. */
  #heldMs: number;
  /** What held it before the upstream was observed. */
  readonly #held: readonly HeldTime[];
  readonly #call: QueuedCall;
  readonly #parts: ObservedParts;
  readonly #sentAt: number;
  #granted: { readonly lease: Lease; readonly at: number } | null = null;
  #reckoned: Reckoned | null = null;
  #told: Reckoned | null = null;
  #onKnown: (() => void) | null = null;
  /** Whether the stores have said what becomes of the ticket. */
  #isKnown = false;
  /** Who waits for the response; `null` = the caller has left. */
  #caller: ObservedCaller | null;
  /** The caller has permission to send, and has not said what came of it. */
  #isSending = false;
  /** It has said so for the last time. */
  #isOver = false;
  #isStopped = false;
  /** The caller is not sent before, monotonic milliseconds: what holds it is no limit. `null` = nothing does. */
  #sleepsUntil: number | null = null;
  /** What its ticket has to repeat, and what it is about to. */
  #happened = none;
  readonly #due: Due[] = [];

  constructor(call: QueuedCall, caller: ObservedCaller, parts: ObservedParts) {
    this.#heldMs = call.inLaneMs();
    this.#held = call.held();
    this.#call = call;
    this.#caller = caller;
    this.#parts = parts;
    this.#sentAt = parts.clock.monotonic();
  }

  /** Follows the ticket, from when it has entered its lane. `entered` rejects where it was refused. */
  async follow(entered: Promise<unknown>): Promise<void> {
    try {
      await entered;
      if (!this.#call.isGrantedAtOnce) this.onHeld();
      this.#onGranted(await this.#parts.wait(this.#call));
    } catch (failure) {
      this.#onNotGranted(failure);
    }
  }

  /** The ticket waits in the place of its caller from now on, with the lease that goes to the one that waits for it. */
  takeOver(): { readonly resolve: (lease: Lease) => void; readonly reject: (failure: unknown) => void } {
    this.onHeld();
    return {
      resolve: (lease) => this.#onGranted(lease),
      reject: (failure) => this.#onNotGranted(failure),
    };
  }

  /** Permission to send, which no limit delays. Rejects when the call must not be sent any more. */
  async whenGranted(): Promise<Lease> {
    if (this.#sleepsUntil !== null) await this.#sleep(this.#sleepsUntil);
    this.#caller?.audience.throwIfAborted();
    return this.lease();
  }

  async #sleep(until: number): Promise<void> {
    const { clock } = this.#parts;
    const caller = this.#caller;
    const sleepMs = until - clock.monotonic();
    if (sleepMs <= 0 || caller === null) return;
    await delay(clock, sleepMs, caller.audience);
    this.#heldMs += sleepMs;
    if (!caller.stillValid()) throw keyEnded();
  }

  /** Permission to send now. */
  lease(): Lease {
    this.#isSending = true;
    return new ObservedLease(this.#call, this);
  }

  waitedMs(): number {
    return this.#heldMs;
  }

  held(): readonly HeldTime[] {
    return this.#held;
  }

  async would(): Promise<Reckoned | null> {
    return (this.#told = this.#reckoned ?? (await this.#expected()));
  }

  /** What is expected of a ticket that waits, or of which nothing is known yet. */
  async #expected(): Promise<Reckoned | null> {
    if (!this.#isKnown) {
      await new Promise<void>((resolve) => {
        const cancel = this.#parts.clock.after(headWaitsMs, resolve);
        this.#onKnown = () => {
          cancel();
          resolve();
        };
      });
    }
    const call = this.#call;
    const { bucket, ticket } = call.request.admission;
    // Its own response is a hint as well, while few have come.
    const serviceMs = Math.max(this.#parts.buckets.usualMs(bucket), this.#sinceSent());
    const forecast = call.isWaiting ? await this.#parts.limiter.forecast(bucket, ticket, serviceMs) : null;
    if (this.#reckoned !== null || !call.isWaiting) return this.#reckoned;
    const now = this.#parts.clock.monotonic();
    const leftMs = Math.max(forecast?.waitMs ?? 0, (call.slotExpectedAt ?? now) - now);
    return { kind: 'wait', waitMs: call.inLaneMs() + leftMs };
  }

  learn(lesson: Lesson): void {
    this.#happens((lease) => lease.learn(this.#seen(lesson)));
  }

  settle(settlement: Settlement, lesson: Lesson | null): void {
    this.#isSending = false;
    if (settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue)) {
      // The caller asks again; for the ticket all attempts count as one.
      const closeMs = settlement.kind === 'throttled' ? settlement.closeMs : 0;
      this.#sleepsUntil = this.#parts.clock.monotonic() + Math.max(closeMs, settlement.sleepMs);
      if (lesson !== null) this.learn(lesson);
      return;
    }
    this.#isOver = true;
    if (settlement.kind === 'dropped') return this.#drop();
    const isRefused = lesson !== null && lesson.feedback.throttle !== null;
    if (!isRefused) this.#parts.buckets.noteServed(this.#bucket, this.#sinceSent());
    this.#happens((lease) => {
      const seen = lesson === null ? null : this.#seen(lesson);
      lease.settle(isRefused ? { kind: 'succeeded', spent: null } : settlement, seen);
      this.#parts.end(this.#call);
    }, isRefused);
  }

  leave(): void {
    this.#caller?.audience.removeEventListener('abort', this.#call);
    this.#caller = null;
    if (this.#isSending || this.#isOver) return;
    this.#isOver = true;
    this.#drop();
  }

  /** What has happened to the call happens to its ticket now, and a ticket that waits leaves. */
  stop(): void {
    this.#isStopped = true;
    for (const { cancel, act } of this.#due.splice(0)) {
      cancel();
      if (this.#granted !== null) act(this.#granted.lease);
    }
    if (this.#granted === null) this.#parts.end(this.#call);
  }

  /** The call was not sent: its ticket gives back what it has. */
  #drop(): void {
    this.#granted?.lease.settle({ kind: 'dropped' }, null);
    this.#parts.end(this.#call);
  }

  get #bucket(): BucketKey {
    return this.#call.request.admission.bucket;
  }

  #sinceSent(): number {
    return this.#parts.clock.monotonic() - this.#sentAt;
  }

  #happens(act: Happening['act'], isRefusal = false): void {
    const { isGone, wasHeld } = this.#call;
    // A call that was not held is granted when it is sent, but for the replies of the stores.
    if (this.#granted !== null && !wasHeld && !isRefusal) return act(this.#granted.lease);
    const happening = { afterMs: this.#sinceSent(), isRefusal, act };
    if (this.#granted !== null) this.#repeat(happening, this.#granted);
    else if (!isGone) this.#happened = [...this.#happened, happening];
  }

  /** Does to the ticket's lease what happened to the call, in its time. */
  #repeat(happening: Happening, { lease, at }: { readonly lease: Lease; readonly at: number }): void {
    const { clock, buckets } = this.#parts;
    const { isRefusal, act } = happening;
    const afterMs = Math.max(happening.afterMs, isRefusal ? buckets.usualMs(this.#bucket) : 0);
    const inMs = (this.#call.wasHeld ? at : this.#sentAt) + afterMs - clock.monotonic();
    if (inMs <= 0 || this.#isStopped) return act(lease);
    const due: Due = { ...happening, cancel() {} };
    due.cancel = clock.after(inMs, () => {
      this.#due.splice(this.#due.indexOf(due), 1);
      act(lease);
    });
    this.#due.push(due);
  }

  /** The ticket has to wait: the upstream has been used in another way than is reckoned. */
  onHeld(): void {
    this.#parts.buckets.noteHeld(this.#bucket, this.#call.deadline);
    this.#known();
  }

  #onGranted(lease: Lease): void {
    const call = this.#call;
    this.#granted = { lease, at: this.#parts.clock.monotonic() };
    this.#reckon({ kind: call.wasHeld ? 'wait' : 'send', waitMs: call.wasHeld ? call.inLaneMs() : 0 });
    for (const happening of this.#happened) this.#repeat(happening, this.#granted);
    this.#happened = none;
  }

  #onNotGranted(failure: unknown): void {
    const { state } = this.#call;
    this.#happened = none;
    if (state.kind === 'gone' && state.ending.kind === 'failed')
      this.#parts.detached(Promise.reject(failure));
    const code = failure instanceof Refusal ? limitRefusals.find((one) => one === failure.code) : undefined;
    if (!(failure instanceof Refusal) || code === undefined) return this.#known();
    this.#parts.buckets.noteHeld(this.#bucket, this.#parts.clock.monotonic());
    this.#reckon({ kind: 'refuse', waitMs: failure.details.retryInMs ?? 0, code });
  }

  #reckon(reckoned: Reckoned): void {
    this.#reckoned = reckoned;
    this.#parts.onReckoned(this.#call.request, reckoned, this.#told);
    this.#known();
  }

  #known(): void {
    this.#isKnown = true;
    this.#onKnown?.();
    this.#onKnown = null;
  }

  /** What the response teaches about the ticket's bucket: where that was used in another way, its limits and not how full it is. */
  #seen(lesson: Lesson): Lesson {
    const { buckets, clock } = this.#parts;
    const { throttle: _, refusesConcurrency, ...feedback } = lesson.feedback;
    const isTrue = !buckets.differs(this.#bucket, clock.monotonic());
    const meters = isTrue ? feedback.meters : feedback.meters.map((report) => ({ ...report, level: null }));
    const concurrency = isTrue && refusesConcurrency === true ? { refusesConcurrency } : {};
    return { ...lesson, feedback: { ...feedback, ...concurrency, meters, throttle: null } };
  }
}

/** What the caller of an observed call has in the place of a lease. */
class ObservedLease implements Lease {
  readonly ceiling = null;
  readonly grant: Lease['grant'];
  readonly #observed: ObservedCall;
  #isSettled = false;

  constructor({ request: { admission } }: QueuedCall, observed: ObservedCall) {
    const { ticket, bucket } = admission;
    this.#observed = observed;
    // A lane of its own: it is written in no order with others.
    this.grant = {
      ticket,
      bucket,
      lane: laneKey(ticket),
      lease: leaseToken(ticket),
      holdsPlace: isCapped(admission),
    };
  }

  holds(): boolean {
    return true;
  }

  learn(lesson: Lesson): void {
    if (!this.#isSettled) this.#observed.learn(lesson);
  }

  settle(settlement: Settlement, lesson: Lesson | null): void {
    if (this.#isSettled) return;
    this.#isSettled = true;
    this.#observed.settle(settlement, lesson);
  }
}

// What is known of each bucket whose calls limits do not hold: whether the upstream sees other traffic than is reckoned, and how long it takes

const maxBuckets = 10_000;
/** How long an upstream remembers a call, milliseconds: most quotas are those of a minute. */
const rememberedMs = 60_000;
/** The weight of the latest call in the mean time, as TCP estimates round trips (RFC 6298). */
const latestShare = 1 / 8;

interface ObservedBucket {
  /** Until when what the upstream says of its use is not true of what is reckoned, monotonic milliseconds; `null` = it is true. */
  differsUntil: number | null;
  /** Mean time of a call that was served, milliseconds; `null` = none was. */
  serviceMs: number | null;
}

export class ObservedBuckets {
  readonly #buckets = new LRUCache<BucketKey, ObservedBucket>({ max: maxBuckets });

  /** A call was sent that limits would have held until `until` at most (monotonic milliseconds), or refused. */
  noteHeld(bucket: BucketKey, until: number): void {
    const known = this.#of(bucket);
    known.differsUntil = Math.max(known.differsUntil ?? until, until + rememberedMs);
  }

  differs(bucket: BucketKey, now: number): boolean {
    return (this.#of(bucket).differsUntil ?? now) > now;
  }

  noteServed(bucket: BucketKey, ms: number): void {
    const known = this.#of(bucket);
    known.serviceMs = known.serviceMs === null ? ms : known.serviceMs + (ms - known.serviceMs) * latestShare;
  }

  /** The time that the upstream takes for a call, milliseconds; 0 = not known. */
  usualMs(bucket: BucketKey): number {
    return this.#of(bucket).serviceMs ?? 0;
  }

  #of(bucket: BucketKey): ObservedBucket {
    let known = this.#buckets.get(bucket);
    if (known === undefined) this.#buckets.set(bucket, (known = { differsUntil: null, serviceMs: null }));
    return known;
  }
}
