/**
 * The embedded store: runs `apply.policy.ts` in this process, one bucket state per key, one timer per bucket.
 *
 * Owns: when the pump runs again (the policy says `nextAt`, the clock wakes), handing grants to the listener, and
 * forgetting buckets that have been idle long enough (`retention.policy.ts`). Refuses to own: any decision. Every operation
 * completes in the turn in which it was asked; the promises are the port's.
 */
import type { Clock } from '../../clock.ts';
import { replicaId, type TicketId } from '../../ids.ts';
import { apply, type Applied } from '../policy/apply.policy.ts';
import type { BucketEvent, EventKind, ReplyOf } from '../policy/bucket-events.ts';
import {
  closedMs,
  createBucket,
  orderUnit,
  sequencePerMs,
  type Bucket,
} from '../policy/bucket-state.policy.ts';
import {
  grantUnderWay,
  type Admission,
  type AdmissionReply,
  type BucketKey,
  type BucketSnapshot,
  type CeilingEdge,
  type Grant,
  type Lesson,
  type Limiter,
  type LimiterListener,
  type Reconfiguration,
  type Settlement,
} from '../limiter.ts';
import { timed } from '../policy/lessons.policy.ts';
import { memoryMs } from '../policy/retention.policy.ts';
import { levelAt } from '../policy/meter.policy.ts';
import type { Granted } from '../policy/pump.policy.ts';
import { forecast, isIdle, pumpOnly } from '../policy/scheduler.policy.ts';

const tickMs = 1_000;
const replica = replicaId('embedded');

interface Kept {
  readonly key: BucketKey;
  readonly bucket: Bucket;
  usedAt: number;
  wakeAt: number | null;
  cancelWake: (() => void) | null;
}

export function createMemoryLimiter(clock: Clock, listener: LimiterListener): Limiter {
  const buckets = new Map<BucketKey, Kept>();
  let cancelTick: (() => void) | null = null;
  let closed = false;
  const outbox: Grant[] = [];
  let delivering = false;

  const keep = ({ bucket: key, setting }: Admission): Kept => {
    let kept = buckets.get(key);
    if (kept === undefined) {
      const now = clock.monotonic();
      kept = {
        key,
        bucket: createBucket(setting.probe, now, now - clock.now()),
        usedAt: now,
        wakeAt: null,
        cancelWake: null,
      };
      buckets.set(key, kept);
    }
    return kept;
  };

  /** Every touch of a bucket: the replica lives, the event is applied, what it did is carried out. */
  const applyTo = <K extends EventKind>(
    kept: Kept,
    event: Extract<BucketEvent, { kind: K }>,
  ): { readonly reply: ReplyOf[K]; readonly grants: readonly Granted[] } => {
    const applied = touch(kept, (bucket, now) => apply(bucket, { replica, events: [event] }, now));
    // The policy replies in kind.
    return { reply: applied.replies[0] as ReplyOf[K], grants: applied.grants };
  };

  const touch = <T extends Pick<Applied, 'grants' | 'nextAt'> & Partial<Pick<Applied, 'replies'>>>(
    kept: Kept,
    transition: (bucket: Bucket, now: number) => T,
  ): T => {
    const now = clock.monotonic();
    kept.usedAt = now;
    kept.bucket.replicas.set(replica, now);
    const result = transition(kept.bucket, now);
    scheduleTick();
    wakeAgain(kept, result.nextAt, now);
    const replied = result.replies?.[0]?.kind === 'granted' ? result.replies[0].lease : null;
    for (const granted of result.grants)
      if (granted.lease !== replied) outbox.push(grantOf(kept.key, granted));
    deliver();
    return result;
  };

  /** Grants go out in the order in which they were made, also when a listener's answer makes further ones. */
  const deliver = (): void => {
    if (delivering) return;
    delivering = true;
    for (let grant = outbox.shift(); grant !== undefined; grant = outbox.shift()) listener.onGrant(grant);
    delivering = false;
  };

  const applyIfKnown = <K extends EventKind>(
    key: BucketKey,
    event: Extract<BucketEvent, { kind: K }>,
  ): void => {
    const kept = buckets.get(key);
    if (kept !== undefined) applyTo<K>(kept, event);
  };

  const wakeAgain = (kept: Kept, at: number | null, now: number): void => {
    if (kept.wakeAt === at) return;
    kept.cancelWake?.();
    kept.wakeAt = at;
    kept.cancelWake = null;
    if (at === null || closed) return;
    kept.cancelWake = clock.after(at - now, () => {
      kept.wakeAt = null;
      kept.cancelWake = null;
      touch(kept, pumpOnly);
    });
  };

  const scheduleTick = (): void => {
    if (cancelTick !== null || closed) return;
    cancelTick = clock.after(tickMs, () => {
      cancelTick = null;
      const now = clock.monotonic();
      let busy = false;
      for (const kept of buckets.values()) {
        if (!isIdle(kept.bucket, now)) {
          busy = true;
          applyTo<'tick'>(kept, { kind: 'tick', leases: [...kept.bucket.leases.keys()] });
        } else if (now - kept.usedAt > memoryMs(kept.bucket, kept.usedAt)) {
          kept.cancelWake?.();
          buckets.delete(kept.key);
        }
      }
      if (busy) scheduleTick();
    });
  };

  return {
    async admit(admission: Admission): Promise<AdmissionReply> {
      const kept = keep(admission);
      const { bucket: _bucket, ...asked } = admission;
      const { reply, grants } = applyTo<'admit'>(kept, { kind: 'admit', admission: asked });
      if (reply.kind === 'refused') return reply;
      if (reply.kind === 'queued') {
        const { forecastMs, ahead, heldBy } = reply;
        return { kind: 'queued', forecastMs, ahead, heldBy };
      }
      const granted = grants.find(({ lease }) => lease === reply.lease);
      if (granted === undefined) return grantUnderWay;
      return { kind: 'granted', grant: grantOf(kept.key, granted) };
    },

    async settle({ bucket, lease }: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
      const learned = lesson === null ? null : timed(lesson, clock.monotonic());
      applyIfKnown<'settle'>(bucket, { kind: 'settle', lease, settlement, lesson: learned });
      if (settlement.kind === 'throttled' && settlement.closeMs > 0) {
        listener.onClosed(bucket, settlement.closeMs);
      }
    },

    async learn({ bucket, lease }: Grant, lesson: Lesson): Promise<void> {
      applyIfKnown<'learn'>(bucket, { kind: 'learn', lease, lesson: timed(lesson, clock.monotonic()) });
    },

    async charged({ bucket, lease }: Grant, edge: CeilingEdge | null): Promise<void> {
      applyIfKnown<'charge'>(bucket, { kind: 'charge', lease, edge });
    },

    async reconfigure({ bucket, setting, lanes }: Reconfiguration): Promise<void> {
      applyIfKnown<'reconfigure'>(bucket, { kind: 'reconfigure', setting, lanes });
    },

    async open(bucket: BucketKey, before: number | null): Promise<void> {
      applyIfKnown<'open'>(bucket, { kind: 'open', before });
    },

    async move(from: BucketKey, admission: Admission): Promise<void> {
      const order = buckets.get(from)?.bucket.tickets.get(admission.ticket)?.order ?? orderOf(admission);
      applyIfKnown<'cancel'>(from, { kind: 'cancel', ticket: admission.ticket });
      const reply = await this.admit({ ...admission, position: { kind: 'kept', order } });
      if (reply.kind === 'granted') listener.onGrant(reply.grant);
    },

    async cancel(bucket: BucketKey, ticket: TicketId): Promise<void> {
      applyIfKnown<'cancel'>(bucket, { kind: 'cancel', ticket });
    },

    async forecast(bucket: BucketKey, ticket: TicketId) {
      const kept = buckets.get(bucket);
      return kept === undefined ? null : forecast(kept.bucket, ticket, clock.monotonic());
    },

    snapshot: () => [...buckets.values()].map((kept) => snapshotOf(kept, clock.monotonic())),

    async close(): Promise<void> {
      closed = true;
      cancelTick?.();
      for (const kept of buckets.values()) kept.cancelWake?.();
    },
  };
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

function snapshotOf(kept: Kept, now: number): BucketSnapshot {
  const { bucket } = kept;
  return {
    bucket: kept.key,
    closedMs: closedMs(bucket, now),
    waiting: bucket.waiting,
    inFlight: bucket.leases.size,
    meters: [...bucket.meters.values()].flatMap((meter) => {
      const { name, limit, windowMs } = meter;
      return limit === null ? [] : [{ meter: name, limit, level: levelAt(meter, now), windowMs }];
    }),
  };
}
