/**
 * The embedded store: runs `scheduler.policy.ts` in this process, one bucket state per key, one timer per bucket.
 *
 * Owns: when the pump runs again (the policy says `nextAt`, the clock wakes), handing grants to the listener, and
 * forgetting buckets that have been idle long enough (`memory.policy.ts`). Refuses to own: any decision. Every operation
 * completes in the turn in which it was asked; the promises are the port's.
 */
import type { Clock } from '../clock.ts';
import { createBucket, type Bucket } from './bucket-state.policy.ts';
import type {
  Admission,
  AdmissionReply,
  BucketKey,
  BucketSnapshot,
  Grant,
  Lesson,
  Limiter,
  LimiterListener,
  Settlement,
} from './limiter.ts';
import { memoryMs } from './memory.policy.ts';
import { levelAt } from './meter.policy.ts';
import * as scheduler from './scheduler.policy.ts';

const tickMs = 1_000;
const replica = 'embedded';

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

  const keep = (key: BucketKey): Kept => {
    let kept = buckets.get(key);
    if (kept === undefined) {
      kept = { key, bucket: createBucket(), usedAt: clock.monotonic(), wakeAt: null, cancelWake: null };
      buckets.set(key, kept);
    }
    return kept;
  };

  /** Every touch of a bucket: the replica lives, the transition runs, its effects are carried out. */
  const touch = <T extends { readonly effects: scheduler.Effects }>(
    kept: Kept,
    transition: (bucket: Bucket, now: number) => T,
    own: string | null = null,
  ): T => {
    const now = clock.monotonic();
    kept.usedAt = now;
    kept.bucket.replicas.set(replica, now);
    const result = transition(kept.bucket, now);
    scheduleTick();
    wakeAgain(kept, result.effects.nextAt, now);
    for (const granted of result.effects.grants) {
      if (granted.ticket !== own) outbox.push(grantOf(kept.key, granted));
    }
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

  const run = (key: BucketKey, transition: (bucket: Bucket, now: number) => scheduler.Effects): void => {
    const kept = buckets.get(key);
    if (kept !== undefined) touch(kept, (bucket, now) => ({ effects: transition(bucket, now) }));
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
      run(kept.key, (bucket, then) => scheduler.pumpOnly(bucket, then));
    });
  };

  const scheduleTick = (): void => {
    if (cancelTick !== null || closed) return;
    cancelTick = clock.after(tickMs, () => {
      cancelTick = null;
      const now = clock.monotonic();
      let busy = false;
      for (const kept of buckets.values()) {
        if (!scheduler.isIdle(kept.bucket, now)) {
          busy = true;
          run(kept.key, (bucket, then) => scheduler.tick(bucket, replica, [...bucket.leases.keys()], then));
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
      const kept = keep(admission.bucket);
      const result = touch(
        kept,
        (bucket, now) => scheduler.admit(bucket, admission, replica, now),
        admission.ticket,
      );
      if (result.kind === 'refused') {
        return { kind: 'refused', reason: result.reason, retryInMs: result.retryInMs };
      }
      if (result.kind === 'queued') {
        return { kind: 'queued', forecastMs: result.forecastMs, ahead: result.ahead };
      }
      const granted = result.effects.grants.find((grant) => grant.ticket === admission.ticket);
      if (granted === undefined) return { kind: 'queued', forecastMs: 0, ahead: 0 };
      return { kind: 'granted', grant: grantOf(kept.key, granted) };
    },

    async settle(grant: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
      run(grant.bucket, (bucket, now) =>
        scheduler.settle(bucket, grant.lease, settlement, timed(lesson, now), now),
      );
      if (settlement.kind === 'throttled' && settlement.closeMs > 0) {
        listener.onClosed(grant.bucket, settlement.closeMs);
      }
    },

    async learn(grant: Grant, lesson: Lesson): Promise<void> {
      run(grant.bucket, (bucket, now) =>
        scheduler.learn(
          bucket,
          grant.lease,
          timed(lesson, now) ?? { feedback: lesson.feedback, sentAt: now, headAt: now },
          now,
        ),
      );
    },

    async charged(grant: Grant, places: number, nextPlaceMs: number): Promise<void> {
      run(grant.bucket, (bucket, now) => scheduler.charged(bucket, grant.lease, places, nextPlaceMs, now));
    },

    async cancel(bucket: BucketKey, ticket: string): Promise<void> {
      run(bucket, (state, now) => scheduler.cancel(state, ticket, now));
    },

    async forecast(bucket: BucketKey, ticket: string) {
      const kept = buckets.get(bucket);
      return kept === undefined ? null : scheduler.forecast(kept.bucket, ticket, clock.monotonic());
    },

    snapshot: () => [...buckets.values()].map((kept) => snapshotOf(kept, clock.monotonic())),

    async close(): Promise<void> {
      closed = true;
      cancelTick?.();
      for (const kept of buckets.values()) kept.cancelWake?.();
    },
  };
}

const grantOf = (bucket: BucketKey, granted: scheduler.Granted): Grant => ({
  ticket: granted.ticket,
  bucket,
  lane: granted.lane,
  lease: granted.lease,
  expiresAt: granted.expiresAt,
});

function timed(lesson: Lesson | null, now: number): scheduler.TimedLesson | null {
  if (lesson === null) return null;
  return { feedback: lesson.feedback, sentAt: now - lesson.sentAgoMs, headAt: now - lesson.headAgoMs };
}

function snapshotOf(kept: Kept, now: number): BucketSnapshot {
  const { bucket } = kept;
  return {
    bucket: kept.key,
    closedMs: Math.max(0, bucket.closedUntil - now),
    waiting: bucket.waiting,
    inFlight: bucket.leases.size,
    meters: [...bucket.meters.values()].flatMap((meter) => {
      const { name, limit, windowMs } = meter;
      return limit === null ? [] : [{ meter: name, limit, level: levelAt(meter, now), windowMs }];
    }),
  };
}
