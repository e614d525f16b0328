/**
 * The bucket scheduler: who may be sent now, who waits, who is refused. THE specification of admission;
 * every replica folds it over the entries of a log (`shared/fold.ts`).
 *
 * Every transition takes the bucket, an event and the time, changes the bucket, and ends in the same pump:
 * sweep what expired, wake lanes, then grant heads of lanes in fair order while the bucket is open and every meter the
 * head needs has room. Inside a lane: by urgency, then arrival. Between lanes: start-time fair queueing
 * (Goyal, Vin, Cheng 1996), each grant counting the time for which it
 * keeps its most expensive meter busy / weight.
 *
 * Guarantees: no grant while closed or without room (2), at most `maxInFlight` leases per lane and per bucket (3), order within a lane
 * (4), weighted shares (5), a grant as soon as there is room (6), a refusal leaves no trace (11).
 * Does not own: time, sockets, deadlines of callers, ceilings (they are charged by the sender).
 */
import type { LeaseToken, TicketId } from '../../ids.ts';
import type { Reconfiguration } from '../limiter.ts';
import { closedMs, createBucket, type Bucket } from './bucket-state.policy.ts';
import { forgetDeadReplicas, forgetTheirTickets } from './dead-replicas.policy.ts';
import { applyLaneSetting, dequeue, forgetIdleLanes } from './lanes.policy.ts';
import { applyLesson, applySettings, type TimedLesson } from './lessons.policy.ts';
import { reopen } from './meter-learning.policy.ts';
import { maxPerPump, pump, type Effects, type Granted } from './pump.policy.ts';

export { admit, maxArrivalAgoMs, maxArrivalAheadMs } from './admit.policy.ts';
export { forecast, forecastFirst } from './forecast.policy.ts';
export { reserve } from './reserve.policy.ts';
export { charged, maxOtherLimitsMs, settle, wakeForSlot } from './settle.policy.ts';
export { createBucket };
export type { Effects, Granted, TimedLesson };

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
export function open(bucket: Bucket, agoMs: number, now: number): Effects {
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
  forgetTheirTickets(bucket, now);
  forgetIdleLanes(bucket, maxPerPump);
  const effects = pump(bucket, now);
  // The rest of the search is due at once.
  return bucket.searchedTo === null ? effects : { ...effects, nextAt: now };
}

/** The time named by `nextAt` has come: grants what has room now. */
export const pumpOnly = (bucket: Bucket, now: number): Effects => pump(bucket, now);

/** Nothing waits, nothing is in flight and nothing is closed: only what was learned is left. */
export function isIdle(bucket: Bucket, now: number): boolean {
  return bucket.tickets.size === 0 && bucket.leases.size === 0 && closedMs(bucket, now) === 0;
}
