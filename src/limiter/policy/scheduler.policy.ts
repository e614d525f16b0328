/**
 * The bucket scheduler: who may be sent now, who waits, who is refused. THE specification of admission;
 * every replica folds it over the entries of a log (`over-log/fold.ts`).
 *
 * Every transition takes the bucket, an event and the time, changes the bucket, and ends in the same pump:
 * sweep what expired, wake lanes, then grant heads of lanes in fair order while the bucket is open and every meter the
 * head needs has room. Inside a lane: by urgency, then arrival. Between lanes: start-time fair queueing
 * (Goyal, Vin, Cheng 1996), each grant counting the time for which it
 * keeps its most expensive meter busy / weight.
 *
 * Guarantees: no grant while closed or without room (2), at most `maxInFlight` leases per lane and per bucket (3), order within a lane
 * (4), weighted shares (5), a grant as soon as there is room (6), a refusal leaves no trace (11).
 * Does not own: time, sockets, deadlines of callers, ceilings (whoever sends takes their slots).
 */
import type { LeaseToken, ReplicaId, TicketId } from '../../ids.ts';
import type { Reconfiguration } from '../limiter.ts';
import { admit } from './admit.policy.ts';
import type { BucketEvent, EventReply } from './bucket-events.ts';
import type { Bucket } from './bucket-state.policy.ts';
import { applyLaneSetting, dequeue, forgetIdleLanes } from './lanes.policy.ts';
import { applyLesson, applySettings, type TimedLesson } from './lessons.policy.ts';
import { reopen } from './meter-learning.policy.ts';
import { type Effects, maxPerPump, pump, replicaLifeMs } from './pump.policy.ts';
import { reserve } from './reserve.policy.ts';
import { slotTaken, settle, wakeForSlot } from './settle.policy.ts';

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
  return { reply, ...effects, closes };
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
      const { effects, ...reply } = admit(bucket, { admission, replica }, now);
      return { reply, effects };
    }
    case 'reserve': {
      const reply = reserve(bucket, event, now) ?? { kind: 'done' as const };
      return { reply, effects: pump(bucket, now) };
    }
    case 'settle': {
      const { lease, settlement, lesson } = event;
      const held = bucket.leases.get(lease);
      const known = held !== undefined && held.stage !== 'abandoned';
      const learned = lesson === null ? null : notAfter(lesson, now);
      return {
        reply: { kind: 'lease', known },
        effects: settle(bucket, { lease, settlement, lesson: learned }, now),
        closes: known && settlement.kind === 'throttled' && settlement.closeMs > 0,
      };
    }
    case 'learn': {
      const { lease, lesson } = event;
      const known = bucket.leases.has(lease);
      const effects = learn(bucket, { lease, lesson: notAfter(lesson, now) }, now);
      return { reply: { kind: 'lease', known }, effects };
    }
    case 'slot_taken': {
      const known = bucket.leases.has(event.lease);
      return { reply: { kind: 'lease', known }, effects: slotTaken(bucket, event, now) };
    }
    case 'cancel':
      return { reply: { kind: 'done' }, effects: cancel(bucket, event.ticket, now) };
    case 'reconfigure':
      return { reply: { kind: 'done' }, effects: reconfigure(bucket, event, now) };
    case 'wake':
      return { reply: { kind: 'done' }, effects: wakeForSlot(bucket, event.lane, now) };
    case 'open':
      return { reply: { kind: 'done' }, effects: open(bucket, event.agoMs, now) };
  }
}

/** Cuts the lesson's times at `now`: a replica knows the log's time only to half of a round trip, and may state a later one. */
const notAfter = ({ feedback, sentAt, headAt }: TimedLesson, now: number): TimedLesson => ({
  feedback,
  sentAt: Math.min(sentAt, now),
  headAt: Math.min(headAt, now),
});

/** Configuration changed: the bucket and its lanes go on under the new settings. */
export function reconfigure(bucket: Bucket, change: Omit<Reconfiguration, 'bucket'>, now: number): Effects {
  applySettings(bucket, change.setting, now);
  for (const setting of change.lanes) {
    const lane = bucket.lanes.get(setting.lane);
    if (lane !== undefined) applyLaneSetting(bucket, lane, setting);
  }
  return pump(bucket, now);
}

/** An operator reopens what a response closed up to `agoMs` ago; what was closed later stays closed. */
function open(bucket: Bucket, agoMs: number, now: number): Effects {
  if (bucket.closedAt === null || bucket.closedAt <= now - agoMs) {
    bucket.closedUntil = null;
    for (const meter of bucket.meters.values()) reopen(meter, now);
  }
  return pump(bucket, now);
}

/** A waiting ticket leaves; a granted or unknown one is left alone (its lease must be settled). */
export function cancel(bucket: Bucket, id: TicketId, now: number): Effects {
  const ticket = bucket.tickets.get(id);
  if (ticket !== undefined && ticket.lease === null) {
    const lane = bucket.lanes.get(ticket.lane);
    if (lane !== undefined) dequeue(bucket, lane, ticket);
    bucket.tickets.delete(id);
  }
  return pump(bucket, now);
}

/** A lesson for the lease of this token. */
export interface Learning {
  readonly lease: LeaseToken;
  readonly lesson: TimedLesson;
}

/** Learns from a response whose call is still in flight. */
export function learn(bucket: Bucket, { lease: token, lesson }: Learning, now: number): Effects {
  const lease = bucket.leases.get(token);
  if (lease !== undefined) applyLesson(bucket, { lease, lesson }, now);
  return pump(bucket, now);
}

/** What is done once a second in a bucket that is in use: the dead and the idle are forgotten, and what is due is granted. */
export function upkeep(bucket: Bucket, now: number): Effects {
  forgetDeadReplicas(bucket, now);
  forgetIdleLanes(bucket, maxPerPump);
  return pump(bucket, now);
}

/**
 * Forgets replicas that are not heard of any more, and the calls that waited on them: they count as calls that go first until then. A
 * replica that is alive after all enters its tickets again, at their positions.
 */
function forgetDeadReplicas(bucket: Bucket, now: number): void {
  const dead = bucket.replicas.between(-Infinity, now - replicaLifeMs);
  if (dead.length === 0) return;
  for (const replica of dead) bucket.replicas.delete(replica);
  for (const ticket of bucket.tickets.values()) {
    const lane = bucket.lanes.get(ticket.lane);
    if (ticket.lease !== null || lane === undefined || bucket.replicas.scoreOf(ticket.replica) !== null)
      continue;
    dequeue(bucket, lane, ticket);
    bucket.tickets.delete(ticket.id);
  }
}
