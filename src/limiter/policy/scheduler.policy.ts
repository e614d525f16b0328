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
import type { ReplicaId, TicketId } from '../../ids.ts';
import type { Reconfiguration } from '../limiter.ts';
import { admit, reserve } from './admit.policy.ts';
import type { BucketEvent, EventReply } from './bucket-events.ts';
import type { Bucket } from './bucket-state.policy.ts';
import { applyLaneSetting, dequeue, forgetIdleLanes } from './lanes.policy.ts';
import { applyLesson, applySettings, type TimedLesson } from './lessons.policy.ts';
import { reopen } from './meter-learning.policy.ts';
import { type Effects, maxPerPump, pump, replicaLifeMs } from './pump.policy.ts';
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
  const done = (effects: Effects, reply: EventReply = { kind: 'done' }, closes = false): Applied => ({
    reply,
    ...effects,
    closes,
  });
  switch (event.kind) {
    case 'admit': {
      const { effects, ...reply } = admit(bucket, { admission: event.admission, replica }, now);
      return done(effects, reply);
    }
    case 'reserve': {
      const reply = reserve(bucket, event, now) ?? undefined;
      return done(pump(bucket, now), reply);
    }
    case 'settle': {
      const { lease, settlement } = event;
      const held = bucket.leases.get(lease);
      const known = held !== undefined && held.stage !== 'abandoned';
      const lesson = event.lesson === null ? null : notAfter(event.lesson, now);
      const closes = known && settlement.kind === 'throttled' && settlement.closeMs > 0;
      return done(settle(bucket, { lease, settlement, lesson }, now), { kind: 'lease', known }, closes);
    }
    case 'learn': {
      const lease = bucket.leases.get(event.lease);
      if (lease !== undefined) applyLesson(bucket, { lease, lesson: notAfter(event.lesson, now) }, now);
      return done(pump(bucket, now), { kind: 'lease', known: lease !== undefined });
    }
    case 'slot_taken': {
      const known = bucket.leases.has(event.lease);
      return done(slotTaken(bucket, event, now), { kind: 'lease', known });
    }
    case 'cancel':
      return done(cancel(bucket, event.ticket, now));
    case 'reconfigure':
      return done(reconfigure(bucket, event, now));
    case 'wake':
      return done(wakeForSlot(bucket, event.lane, now));
    case 'open':
      return done(open(bucket, event.agoMs, now));
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
