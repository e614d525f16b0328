/**
 * The embedded store: runs `apply.policy.ts` in this process, one bucket state per key, one timer per bucket.
 *
 * Owns: when the pump runs again (the policy says `nextAt`, the clock wakes), handing grants to the listener, and
 * forgetting buckets that have been idle long enough (`retention.policy.ts`). Does not own: any decision. Every operation
 * completes in the turn in which it was asked; the promises are the port's.
 */
import type { Clock } from '../../clock.ts';
import { replicaId, type TicketId } from '../../ids.ts';
import { apply, type BatchResult } from '../policy/apply.policy.ts';
import type { BucketEvent, EventKind, ReplyOf } from '../policy/bucket-events.ts';
import { createBucket, orderUnit, sequencePerMs, type Bucket } from '../policy/bucket-state.policy.ts';
import {
  defaultLeaseMs,
  queuedWithoutForecast,
  type Admission,
  type AdmissionReply,
  type BucketKey,
  type BucketSnapshot,
  type CeilingEdge,
  type Grant,
  type LaneKey,
  type Lesson,
  type Limiter,
  type LimiterListener,
  type Reconfiguration,
  type Settlement,
  type WaitForecast,
} from '../limiter.ts';
import { timed } from '../policy/lessons.policy.ts';
import { memoryMs } from '../policy/retention.policy.ts';
import type { Granted } from '../policy/pump.policy.ts';
import { forecast, isIdle, pumpOnly } from '../policy/scheduler.policy.ts';
import { snapshotOf } from './snapshot.ts';

const tickMs = 1_000;
const replica = replicaId('embedded');

interface Kept {
  readonly key: BucketKey;
  readonly bucket: Bucket;
  usedAt: number;
  wakeAt: number | null;
  cancelWake: (() => void) | null;
}

/** `leaseMs`: how long a lease lives, milliseconds. */
export const createEmbeddedLimiter = (
  clock: Clock,
  listener: LimiterListener,
  leaseMs = defaultLeaseMs,
): Limiter => new EmbeddedLimiter(clock, listener, leaseMs);

class EmbeddedLimiter implements Limiter {
  readonly #clock: Clock;
  readonly #listener: LimiterListener;
  readonly #leaseMs: number;
  readonly #buckets = new Map<BucketKey, Kept>();
  /** Grants that have not been passed to the listener yet. */
  readonly #outbox: Grant[] = [];
  #isDelivering = false;
  #cancelTick: (() => void) | null = null;
  #isClosed = false;

  constructor(clock: Clock, listener: LimiterListener, leaseMs: number) {
    this.#clock = clock;
    this.#listener = listener;
    this.#leaseMs = leaseMs;
  }

  async admit(admission: Admission): Promise<AdmissionReply> {
    const kept = this.#keep(admission);
    const stored = { ...admission, leaseMs: this.#leaseMs };
    const { reply, grants } = this.#applyTo<'admit'>(kept, { kind: 'admit', admission: stored });
    if (reply.kind !== 'granted') return reply;
    const granted = grants.find(({ lease }) => lease === reply.lease);
    if (granted === undefined) return queuedWithoutForecast;
    return { kind: 'granted', grant: grantOf(kept.key, granted) };
  }

  async settle({ bucket, lease }: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
    const learned = lesson === null ? null : timed(lesson, this.#clock.monotonic());
    this.#applyIfKnown<'settle'>(bucket, { kind: 'settle', lease, settlement, lesson: learned });
    if (settlement.kind === 'throttled' && settlement.closeMs > 0) {
      this.#listener.onClosed(bucket, settlement.closeMs);
    }
  }

  async learn({ bucket, lease }: Grant, lesson: Lesson): Promise<void> {
    const learned = timed(lesson, this.#clock.monotonic());
    this.#applyIfKnown<'learn'>(bucket, { kind: 'learn', lease, lesson: learned });
  }

  async charged({ bucket, lease }: Grant, edge: CeilingEdge | null): Promise<void> {
    this.#applyIfKnown<'charge'>(bucket, { kind: 'charge', lease, edge });
  }

  async reconfigure({ bucket, setting, lanes }: Reconfiguration): Promise<void> {
    this.#applyIfKnown<'reconfigure'>(bucket, { kind: 'reconfigure', setting, lanes });
  }

  async wake(bucket: BucketKey, lane: LaneKey): Promise<void> {
    this.#applyIfKnown<'wake'>(bucket, { kind: 'wake', lane });
  }

  async open(bucket: BucketKey, before: number | null): Promise<void> {
    this.#applyIfKnown<'open'>(bucket, { kind: 'open', before });
  }

  async move(from: BucketKey, admission: Admission): Promise<void> {
    const known = this.#buckets.get(from)?.bucket.tickets.get(admission.ticket);
    const order = known?.order ?? orderOf(admission);
    this.#applyIfKnown<'cancel'>(from, { kind: 'cancel', ticket: admission.ticket });
    const reply = await this.admit({ ...admission, position: { kind: 'kept', order } });
    if (reply.kind === 'granted') this.#listener.onGrant(reply.grant);
  }

  async cancel(bucket: BucketKey, ticket: TicketId): Promise<void> {
    this.#applyIfKnown<'cancel'>(bucket, { kind: 'cancel', ticket });
  }

  async forecast(bucket: BucketKey, ticket: TicketId): Promise<WaitForecast | null> {
    const kept = this.#buckets.get(bucket);
    return kept === undefined ? null : forecast(kept.bucket, ticket, this.#clock.monotonic());
  }

  snapshot(): readonly BucketSnapshot[] {
    const now = this.#clock.monotonic();
    return [...this.#buckets.values()].map((kept) => snapshotOf(kept.key, kept.bucket, now));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelTick?.();
    for (const kept of this.#buckets.values()) kept.cancelWake?.();
  }

  #keep({ bucket: key, setting }: Admission): Kept {
    let kept = this.#buckets.get(key);
    if (kept === undefined) {
      const now = this.#clock.monotonic();
      kept = {
        key,
        bucket: createBucket(setting.probe, now, now - this.#clock.now()),
        usedAt: now,
        wakeAt: null,
        cancelWake: null,
      };
      this.#buckets.set(key, kept);
    }
    return kept;
  }

  #applyIfKnown<K extends EventKind>(key: BucketKey, event: Extract<BucketEvent, { kind: K }>): void {
    const kept = this.#buckets.get(key);
    if (kept !== undefined) this.#applyTo<K>(kept, event);
  }

  /** Applies one event to a bucket, as every operation does: notes that the replica lives, then carries out the effects. */
  #applyTo<K extends EventKind>(
    kept: Kept,
    event: Extract<BucketEvent, { kind: K }>,
  ): { readonly reply: ReplyOf[K]; readonly grants: readonly Granted[] } {
    const applied = this.#touch(kept, (bucket, now) => apply(bucket, { replica, events: [event] }, now));
    // The policy replies to each event with a reply of the same kind.
    return { reply: applied.replies[0] as ReplyOf[K], grants: applied.grants };
  }

  #touch<T extends Pick<BatchResult, 'grants' | 'nextAt'> & Partial<Pick<BatchResult, 'replies'>>>(
    kept: Kept,
    transition: (bucket: Bucket, now: number) => T,
  ): T {
    const now = this.#clock.monotonic();
    kept.usedAt = now;
    kept.bucket.replicas.set(replica, now);
    const result = transition(kept.bucket, now);
    this.#scheduleTick();
    this.#wakeAgain(kept, result.nextAt, now);
    const replied = result.replies?.[0]?.kind === 'granted' ? result.replies[0].lease : null;
    for (const granted of result.grants)
      if (granted.lease !== replied) this.#outbox.push(grantOf(kept.key, granted));
    this.#deliver();
    return result;
  }

  /** Grants go out in the order in which they were made, also when a listener's response makes further ones. */
  #deliver(): void {
    if (this.#isDelivering) return;
    this.#isDelivering = true;
    for (let grant = this.#outbox.shift(); grant !== undefined; grant = this.#outbox.shift())
      this.#listener.onGrant(grant);
    this.#isDelivering = false;
  }

  #wakeAgain(kept: Kept, at: number | null, now: number): void {
    if (kept.wakeAt === at) return;
    kept.cancelWake?.();
    kept.wakeAt = at;
    kept.cancelWake = null;
    if (at === null || this.#isClosed) return;
    kept.cancelWake = this.#clock.after(at - now, () => {
      kept.wakeAt = null;
      kept.cancelWake = null;
      this.#touch(kept, pumpOnly);
    });
  }

  #scheduleTick(): void {
    if (this.#cancelTick !== null || this.#isClosed) return;
    this.#cancelTick = this.#clock.after(tickMs, () => {
      this.#cancelTick = null;
      if (this.#tickAll(this.#clock.monotonic())) this.#scheduleTick();
    });
  }

  /** Forgets what has been idle long enough. True = something is still in a bucket. */
  #tickAll(now: number): boolean {
    let isBusy = false;
    for (const kept of this.#buckets.values()) {
      if (!isIdle(kept.bucket, now)) {
        isBusy = true;
        this.#applyTo<'tick'>(kept, { kind: 'tick', leases: [...kept.bucket.leases.keys()] });
      } else if (now - kept.usedAt > memoryMs(kept.bucket, kept.usedAt)) {
        kept.cancelWake?.();
        this.#buckets.delete(kept.key);
      }
    }
    return isBusy;
  }
}

/** The position of a ticket whose arrival is all that is known. */
const orderOf = ({ position, urgency }: Admission): number =>
  position.kind === 'kept'
    ? position.order
    : urgency * orderUnit + Math.floor(Math.max(0, position.at) * sequencePerMs);

const grantOf = (bucket: BucketKey, granted: Granted): Grant => ({
  ticket: granted.ticket,
  bucket,
  lane: granted.lane,
  lease: granted.lease,
  expiresAt: granted.expiresAt,
});
