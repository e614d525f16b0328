/**
 * The bucket scheduler: who may be sent now, who waits, who is refused. THE specification of admission; the embedded
 * store runs it as it stands, the Redis scripts mirror it, and one property test binds the two.
 *
 * Every transition takes the bucket, an event and the time, changes the bucket, and ends in the same pump:
 * sweep what expired, wake lanes, then grant heads of lanes in fair order while the bucket is open and every meter the
 * head needs has room. Inside a lane: by urgency, then arrival. Between lanes: start-time fair queueing
 * (Goyal, Vin, Cheng 1996), each grant counting the time for which it
 * keeps its dearest meter busy / weight.
 *
 * Guarantees: no grant while closed or without room (2), at most `maxInFlight` leases per lane (3), order within a lane
 * (4), weighted shares (5), a grant as soon as there is room (6), a refusal leaves no trace (11).
 * Refuses to own: time, sockets, deadlines of callers, ceilings (they are charged by the sender).
 */
import type { Reconfiguration } from '../limiter.ts';
import { closedMs, createBucket, type Bucket } from './bucket-state.policy.ts';
import { applyLaneSetting, dequeue, forgetIdleLanes } from './lanes.policy.ts';
import { applyLesson, applySettings, type TimedLesson } from './lessons.policy.ts';
import { forgetDeadReplicas, mostPerPump, pump, type Effects, type Granted } from './pump.policy.ts';

export { admit, maxArrivalAgoMs, maxArrivalAheadMs, type AdmitResult } from './admit.policy.ts';
export { forecast } from './forecast.policy.ts';
export { charged, maxOtherLimitsMs, settle } from './settle.policy.ts';
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

/** A waiting ticket leaves; a granted or unknown one is left alone (its lease must be settled). */
export function cancel(bucket: Bucket, ticketId: string, now: number): Effects {
  const ticket = bucket.tickets.get(ticketId);
  if (ticket !== undefined && ticket.lease === null) {
    const lane = bucket.lanes.get(ticket.lane);
    if (lane !== undefined) dequeue(bucket, lane, ticket);
    bucket.tickets.delete(ticketId);
  }
  return pump(bucket, now);
}

/** Learns from an answer whose call is still in flight. */
export function learn(bucket: Bucket, token: string, lesson: TimedLesson, now: number): Effects {
  const lease = bucket.leases.get(token);
  if (lease !== undefined) applyLesson(bucket, lease, lesson, now);
  return pump(bucket, now);
}

/** Once a second per replica: it lives, its leases go on, and what is due is granted. */
export function tick(bucket: Bucket, replica: string, leases: readonly string[], now: number): Effects {
  bucket.replicas.set(replica, now);
  for (const token of leases) {
    const lease = bucket.leases.get(token);
    if (lease === undefined || lease.abandoned || lease.ticket.replica !== replica) continue;
    lease.expiresAt = now + lease.ticket.leaseMs;
    bucket.expiries.set(token, lease.expiresAt);
  }
  forgetDeadReplicas(bucket, mostPerPump, now);
  forgetIdleLanes(bucket, mostPerPump);
  return pump(bucket, now);
}

/** The time named by `nextAt` has come: grants what has room now. */
export const pumpOnly = (bucket: Bucket, now: number): Effects => pump(bucket, now);

/** Nothing waits, nothing is in flight and nothing is closed: only what was learned is left. */
export function isIdle(bucket: Bucket, now: number): boolean {
  return bucket.tickets.size === 0 && bucket.leases.size === 0 && closedMs(bucket, now) === 0;
}
