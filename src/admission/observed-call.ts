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
import { atMost } from '../bounded.ts';
import type { Reckoned } from '../call.ts';
import { delay } from '../clock.ts';
import { keyEnded, limitRefusals, Refusal } from '../errors.ts';
import { type BucketKey, laneKey, leaseToken } from '../ids.ts';
import type { Lesson, Settlement } from '../limiter/limiter.ts';
import { isCapped } from '../limiter/policy/lanes.policy.ts';
import { handedIn, type QueuedCall, type WaitRegistry } from './queued-call.ts';
import type { AdmissionParts, Lease, Ticket } from './ticket.ts';

/** What observed calls share. */
export interface ObservedParts extends AdmissionParts {
  readonly buckets: ObservedBuckets;
  readonly registry: WaitRegistry;
}

/** Whose call it is. */
interface Caller {
  readonly audience: AbortSignal;
  /** False once the key of the call is not valid any more. */
  readonly stillValid: () => boolean;
}

/**
 * A response may come before the stores have said what becomes of its ticket: its head waits for them so long, once, rather than go without
 * the field that says it. Milliseconds.
 */
const headWaitsMs = 250;

export class ObservedCall implements Ticket {
  /** How long the caller was held nevertheless: while the upstream was paused. Milliseconds. */
  #heldMs = 0;
  readonly #call: QueuedCall;
  readonly #parts: ObservedParts;
  readonly #sentAt: number;
  /** Resolves when the ticket is granted. */
  readonly #granted = Promise.withResolvers<Lease>();
  #lease: Lease | null = null;
  #grantedAt = 0;
  #reckoned: Reckoned | null = null;
  /** Resolves when the stores have said what becomes of the ticket, or when that has been awaited for long enough. */
  readonly #known = Promise.withResolvers<void>();
  /** Who waits for the response; `null` = the caller has left. */
  #caller: Caller | null;
  /** The caller has permission to send, and has not said what came of it; it has said so for the last time. */
  #isSending = false;
  #isOver = false;
  #isStopped = false;
  /** The caller is not sent before, monotonic milliseconds: what holds it is no limit. */
  #sleepsUntil = 0;
  /** What the ticket is about to repeat: called sooner, it repeats that at once. */
  readonly #due = new Set<() => void>();

  /** @param call the ticket: it keeps nothing of the call */
  constructor(call: QueuedCall, caller: Caller, parts: ObservedParts) {
    this.#call = call;
    this.#caller = caller;
    this.#parts = parts;
    this.#sentAt = parts.clock.monotonic();
    call.observer = this;
    caller.audience.addEventListener('abort', this, { once: true });
  }

  /** Called when the client has left. */
  handleEvent(): void {
    this.#endTicket();
  }

  /** Follows the ticket. `entered` rejects where it was refused. */
  async follow(entered: Promise<unknown>): Promise<void> {
    try {
      await entered;
      this.#onGranted(await this.#parts.registry.wait(this.#call));
    } catch (failure) {
      this.#onNotGranted(failure);
    }
  }

  /** Permission to send, which no limit delays. Rejects when the call must not be sent any more. */
  async whenGranted(): Promise<Lease> {
    const { clock } = this.#parts;
    const sleepMs = this.#sleepsUntil - clock.monotonic();
    const caller = this.#caller;
    if (sleepMs > 0 && caller !== null) {
      await delay(clock, sleepMs, caller.audience);
      this.#heldMs += sleepMs;
      if (!caller.stillValid()) throw keyEnded();
    }
    this.#caller?.audience.throwIfAborted();
    this.#isSending = true;
    const { admission } = this.#call.request;
    const { ticket, bucket } = admission;
    let isSettled = false;
    return {
      ceiling: null,
      // A lane of its own: it is written in no order with others.
      grant: {
        ticket,
        bucket,
        lane: laneKey(ticket),
        lease: leaseToken(ticket),
        holdsPlace: isCapped(admission),
      },
      holds: () => true,
      learn: (lesson) => {
        if (!isSettled) this.#learn(lesson);
      },
      settle: (settlement, lesson) => {
        if (!isSettled) this.#settle(settlement, lesson);
        isSettled = true;
      },
    };
  }

  remainingMs(): number {
    return this.#call.remainingMs();
  }

  /** The ticket has a lane of its own. */
  heldOutside(): void {}

  waitedMs(): number {
    return this.#heldMs;
  }

  held(): readonly [] {
    return [];
  }

  async would(): Promise<Reckoned | null> {
    return this.#reckoned ?? (await this.#expected());
  }

  /** What is expected of a ticket that waits, or of which nothing is known yet. */
  async #expected(): Promise<Reckoned | null> {
    const { clock, buckets, limiter } = this.#parts;
    const cancel = clock.after(headWaitsMs, this.#known.resolve);
    await this.#known.promise;
    cancel();
    const call = this.#call;
    const { bucket, ticket } = call.request.admission;
    // Its own response is a hint as well, while few have come.
    const serviceMs = Math.max(buckets.usualMs(bucket), this.#sinceSent());
    const forecast = call.isWaiting ? await limiter.forecast(bucket, ticket, serviceMs) : null;
    if (this.#reckoned !== null || !call.isWaiting) return this.#reckoned;
    const now = clock.monotonic();
    const leftMs = Math.max(forecast?.waitMs ?? 0, (call.slotExpectedAt ?? now) - now);
    return { kind: 'wait', waitMs: call.inLaneMs() + leftMs };
  }

  #learn(lesson: Lesson): void {
    this.#happens((lease) => lease.learn(this.#seen(lesson)));
  }

  #settle(settlement: Settlement, lesson: Lesson | null): void {
    this.#isSending = false;
    if (settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue)) {
      // The caller asks again; for the ticket all attempts count as one.
      const closeMs = settlement.kind === 'throttled' ? settlement.closeMs : 0;
      this.#sleepsUntil = this.#parts.clock.monotonic() + Math.max(closeMs, settlement.sleepMs);
      if (lesson !== null) this.#learn(lesson);
      return;
    }
    this.#isOver = true;
    if (settlement.kind === 'dropped') return this.#drop();
    const isRefused = lesson !== null && lesson.feedback.throttle !== null;
    if (!isRefused) this.#parts.buckets.noteServed(this.#bucket, this.#sinceSent());
    this.#happens((lease) => {
      const seen = lesson === null ? null : this.#seen(lesson);
      lease.settle(isRefused ? { kind: 'succeeded', spent: null } : settlement, seen);
      this.#endTicket();
    }, isRefused);
  }

  leave(): void {
    this.#caller?.audience.removeEventListener('abort', this);
    this.#caller = null;
    if (this.#isSending || this.#isOver) return;
    this.#isOver = true;
    this.#drop();
  }

  /** What has happened to the call happens to its ticket now, and a ticket that waits leaves. */
  stop(): void {
    this.#isStopped = true;
    for (const repeatNow of this.#due) repeatNow();
    this.#known.resolve();
    if (this.#lease === null) this.#endTicket();
  }

  /** The call was not sent: its ticket gives back what it has. */
  #drop(): void {
    this.#lease?.settle({ kind: 'dropped' }, null);
    this.#endTicket();
  }

  #endTicket(): void {
    this.#parts.registry.end(this.#call, handedIn);
  }

  get #bucket(): BucketKey {
    return this.#call.request.admission.bucket;
  }

  #sinceSent(): number {
    return this.#parts.clock.monotonic() - this.#sentAt;
  }

  /**
   * Does to the ticket's lease what happened to the call, as long after its grant as it happened after the sending. A call that was not held
   * is granted when it is sent, but for the replies of the stores.
   * @param isRefusal the upstream refused it at once: when it is the ticket's turn, it takes the usual time
   */
  #happens(act: (lease: Lease) => void, isRefusal = false): void {
    const { clock, buckets, detached } = this.#parts;
    const happenedMs = this.#sinceSent();
    const repeatLater = (lease: Lease): void => {
      const afterMs = Math.max(happenedMs, isRefusal ? buckets.usualMs(this.#bucket) : 0);
      const inMs = (this.#call.wasHeld ? this.#grantedAt : this.#sentAt) + afterMs - clock.monotonic();
      if (inMs <= 0 || this.#isStopped) return act(lease);
      const repeat = (): void => {
        cancel();
        this.#due.delete(repeat);
        act(lease);
      };
      const cancel = clock.after(inMs, repeat);
      this.#due.add(repeat);
    };
    if (this.#lease === null) detached(this.#granted.promise.then(repeatLater));
    else repeatLater(this.#lease);
  }

  /** The ticket has to wait: the upstream has been used in another way than is reckoned. */
  onHeld(): void {
    this.#parts.buckets.noteHeld(this.#bucket, this.#call.deadline);
    this.#known.resolve();
  }

  #onGranted(lease: Lease): void {
    const { wasHeld } = this.#call;
    this.#lease = lease;
    this.#grantedAt = this.#parts.clock.monotonic();
    this.#reckon({ kind: wasHeld ? 'wait' : 'send', waitMs: wasHeld ? this.#call.inLaneMs() : 0 });
    this.#granted.resolve(lease);
  }

  #onNotGranted(failure: unknown): void {
    const code = failure instanceof Refusal ? limitRefusals.find((one) => one === failure.code) : undefined;
    if (failure instanceof Refusal && code !== undefined) {
      this.#parts.buckets.noteHeld(this.#bucket, this.#parts.clock.monotonic());
      return this.#reckon({ kind: 'refuse', waitMs: failure.details.retryInMs ?? 0, code });
    }
    this.#known.resolve();
    // Nobody waits for the ticket who would hear of a store that failed.
    if (failure !== handedIn && !(failure instanceof Refusal)) throw failure;
  }

  #reckon(reckoned: Reckoned): void {
    this.#reckoned = reckoned;
    this.#parts.onReckoned(this.#call.request, reckoned);
    this.#known.resolve();
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

// What is known of each bucket whose calls limits do not hold: whether the upstream sees other traffic than is reckoned, and how long it takes

const maxBuckets = 10_000;
/** How long an upstream remembers a call, milliseconds: most quotas are those of a minute. */
const rememberedMs = 60_000;
/** The weight of the latest call in the mean time, as TCP estimates round trips (RFC 6298). */
const latestShare = 1 / 8;

export class ObservedBuckets {
  /** Until when what the upstream says of its use is not true of what is reckoned, monotonic milliseconds. */
  readonly #differsUntil = new LRUCache<BucketKey, number>(atMost(maxBuckets));
  /** Mean time of a call that was served, milliseconds. */
  readonly #serviceMs = new LRUCache<BucketKey, number>(atMost(maxBuckets));

  /** A call was sent that limits would have held until `until` at most (monotonic milliseconds), or refused. */
  noteHeld(bucket: BucketKey, until: number): void {
    this.#differsUntil.set(bucket, Math.max(this.#differsUntil.get(bucket) ?? until, until + rememberedMs));
  }

  differs(bucket: BucketKey, now: number): boolean {
    return (this.#differsUntil.get(bucket) ?? now) > now;
  }

  noteServed(bucket: BucketKey, ms: number): void {
    const known = this.#serviceMs.get(bucket) ?? ms;
    this.#serviceMs.set(bucket, known + (ms - known) * latestShare);
  }

  /** The time that the upstream takes for a call, milliseconds; 0 = not known. */
  usualMs(bucket: BucketKey): number {
    return this.#serviceMs.get(bucket) ?? 0;
  }
}
