/**
 * What an event does to a bucket. Part of the specification in `scheduler.policy.ts`.
 */
import type { BucketEvent, EventReply } from './bucket-events.ts';
import type { Bucket } from './bucket-state.policy.ts';
import type { ReplicaId } from '../../ids.ts';
import type { Effects } from './pump.policy.ts';
import * as scheduler from './scheduler.policy.ts';
import type { TimedLesson } from './scheduler.policy.ts';

export interface Applied extends Effects {
  readonly reply: EventReply;
  /** The event closed the bucket. */
  readonly closes: boolean;
}

/** Applies an event of a replica to a bucket that is there. */
export function apply(
  bucket: Bucket,
  { replica, event }: { readonly replica: ReplicaId; readonly event: BucketEvent },
  now: number,
): Applied {
  const { reply, effects, closes = false } = applied(bucket, { replica, event }, now);
  // What a search for tickets of dead replicas has left is due at once.
  const nextAt = bucket.searchedTo === null ? effects.nextAt : now;
  return { reply, grants: effects.grants, nextAt, closes };
}

interface Done {
  readonly reply: EventReply;
  readonly effects: Effects;
  readonly closes?: boolean;
}

function applied(
  bucket: Bucket,
  { replica, event }: { readonly replica: ReplicaId; readonly event: BucketEvent },
  now: number,
): Done {
  switch (event.kind) {
    case 'admit': {
      const { admission } = event;
      const { effects, ...reply } = scheduler.admit(bucket, { admission, replica }, now);
      return { reply, effects };
    }
    case 'reserve': {
      const reply = scheduler.reserve(bucket, event, now) ?? { kind: 'done' as const };
      return { reply, effects: scheduler.pumpOnly(bucket, now) };
    }
    case 'settle': {
      const { lease, settlement, lesson } = event;
      const held = bucket.leases.get(lease);
      const known = held !== undefined && held.stage !== 'abandoned';
      const learned = lesson === null ? null : notAfter(lesson, now);
      return {
        reply: { kind: 'lease', known },
        effects: scheduler.settle(bucket, { lease, settlement, lesson: learned }, now),
        closes: known && settlement.kind === 'throttled' && settlement.closeMs > 0,
      };
    }
    case 'learn': {
      const { lease, lesson } = event;
      const known = bucket.leases.has(lease);
      const effects = scheduler.learn(bucket, { lease, lesson: notAfter(lesson, now) }, now);
      return { reply: { kind: 'lease', known }, effects };
    }
    case 'charge': {
      const known = bucket.leases.has(event.lease);
      return { reply: { kind: 'lease', known }, effects: scheduler.charged(bucket, event, now) };
    }
    case 'cancel':
      return { reply: { kind: 'done' }, effects: scheduler.cancel(bucket, event.ticket, now) };
    case 'reconfigure':
      return { reply: { kind: 'done' }, effects: scheduler.reconfigure(bucket, event, now) };
    case 'wake':
      return { reply: { kind: 'done' }, effects: scheduler.wakeForSlot(bucket, event.lane, now) };
    case 'open':
      return { reply: { kind: 'done' }, effects: scheduler.open(bucket, event.agoMs, now) };
  }
}

/** Cuts the lesson's times at `now`: a replica knows the log's time only to half of a round trip, and may state a later one. */
const notAfter = ({ feedback, sentAt, headAt }: TimedLesson, now: number): TimedLesson => ({
  feedback,
  sentAt: Math.min(sentAt, now),
  headAt: Math.min(headAt, now),
});
