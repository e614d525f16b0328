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
import {
  createBucket,
  orderUnit,
  sequencePerMs,
  type Bucket,
  type Lane,
  type Ticket,
} from './bucket-state.policy.ts';
import { forecastAt } from './forecast.policy.ts';
import {
  confirm,
  dequeue,
  enqueue,
  forgetIdleLanes,
  laneFor,
  refreshReadiness,
  sleep,
  takeable,
} from './lanes.policy.ts';
import {
  applyLesson,
  applySettings,
  applySilence,
  applyThrottle,
  correct,
  giveBack,
  noteService,
  type TimedLesson,
} from './lessons.policy.ts';
import type { Admission, Settlement } from './limiter.ts';
import {
  end,
  forget,
  forgetDeadReplicas,
  mostPerPump,
  pump,
  type Effects,
  type Granted,
} from './pump.policy.ts';

export type { Effects, Granted, TimedLesson };

export type AdmitResult =
  | {
      readonly kind: 'granted' | 'queued';
      readonly forecastMs: number;
      readonly ahead: number;
      /** Place in the lane, to be given back when the ticket must be entered again. */
      readonly order: number;
    }
  | {
      readonly kind: 'refused';
      readonly reason: 'queue_full' | 'wait_too_long' | 'day_quota_exhausted';
      readonly retryInMs: number;
    };

export { createBucket };

/** Enters a ticket into its lane, or refuses it at once. Idempotent by ticket id. */
export function admit(
  bucket: Bucket,
  admission: Admission,
  replica: string,
  now: number,
): AdmitResult & { readonly effects: Effects } {
  if (bucket.tickets.has(admission.ticket)) bucket.replicas.set(replica, now);
  applySettings(bucket, admission, now);
  const before = pump(bucket, now);
  const known = bucket.tickets.get(admission.ticket);
  if (known !== undefined) return { ...standing(bucket, known, now), effects: before };
  const costs = takeable(bucket, admission.costs);
  const refusal = refusalOf(bucket, { ...admission, costs }, now);
  if (refusal !== null) return { ...refusal, effects: before };

  bucket.replicas.set(replica, now);
  const lane = laneFor(bucket, admission);
  const ticket: Ticket = {
    id: admission.ticket,
    lane: admission.lane,
    replica,
    order: placeOf(bucket, admission, now),
    callClass: admission.callClass,
    costs,
    leaseMs: admission.leaseMs,
    lease: null,
  };
  bucket.tickets.set(ticket.id, ticket);
  enqueue(bucket, lane, ticket);
  const effects = merge(before, pump(bucket, now));
  return { ...standing(bucket, ticket, now), effects };
}

/**
 * The place at the end of the ticket's urgency, or the one it had before the store lost it; whoever comes later then
 * stands behind it. Places follow time, so that a ticket that could not be entered at once stands where it arrived.
 */
function placeOf(bucket: Bucket, admission: Admission, now: number): number {
  if (admission.order === null) {
    bucket.sequence = Math.max(bucket.sequence + 1, Math.floor(now * sequencePerMs));
    return admission.urgency * orderUnit + bucket.sequence;
  }
  bucket.sequence = Math.max(bucket.sequence, admission.order % orderUnit);
  return admission.order;
}

function standing(bucket: Bucket, ticket: Ticket, now: number): AdmitResult {
  const { order } = ticket;
  if (ticket.lease !== null) return { kind: 'granted', forecastMs: 0, ahead: 0, order };
  const { waitMs, ahead } = forecast(bucket, ticket.id, now) ?? { waitMs: 0, ahead: 0 };
  return { kind: 'queued', forecastMs: waitMs, ahead, order };
}

function refusalOf(
  bucket: Bucket,
  admission: Admission,
  now: number,
): Extract<AdmitResult, { kind: 'refused' }> | null {
  if (admission.order !== null) return null;
  const lane = bucket.lanes.get(admission.lane);
  const order = admission.urgency * orderUnit + bucket.sequence + 1;
  const ahead = lane === undefined ? 0 : lane.line.rank('', order);
  const wait = forecastAt(bucket, lane, { ...admission, key: admission.lane, ahead }, now);
  const waiting = lane?.line.size ?? 0;
  if (waiting >= admission.maxQueued && (waiting > 0 || wait.waitMs > 0)) {
    return { kind: 'refused', reason: 'queue_full', retryInMs: wait.waitMs };
  }
  if (wait.waitMs <= admission.maxWaitMs) return null;
  return {
    kind: 'refused',
    reason: wait.day ? 'day_quota_exhausted' : 'wait_too_long',
    retryInMs: wait.waitMs,
  };
}

/** Expected wait of a waiting ticket, milliseconds, and how many of its lane go first; `null` if it does not wait. */
export function forecast(
  bucket: Bucket,
  ticketId: string,
  now: number,
): { readonly waitMs: number; readonly ahead: number } | null {
  const ticket = bucket.tickets.get(ticketId);
  if (ticket === undefined || ticket.lease !== null) return null;
  const lane = bucket.lanes.get(ticket.lane);
  if (lane === undefined) return null;
  const ahead = lane.line.rank(ticket.id, ticket.order);
  const asked = {
    key: lane.key,
    costs: ticket.costs,
    weight: lane.weight,
    maxInFlight: lane.maxInFlight,
    ahead,
  };
  return { waitMs: forecastAt(bucket, lane, asked, now).waitMs, ahead };
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

/** The grant took a place under a ceiling that is nearly used; `Infinity` places: it is not any more. */
export function charged(
  bucket: Bucket,
  token: string,
  places: number,
  nextPlaceMs: number,
  now: number,
): Effects {
  const lease = bucket.leases.get(token);
  const lane = lease === undefined ? undefined : bucket.lanes.get(lease.ticket.lane);
  if (lease !== undefined && lane !== undefined) {
    confirm(lane, lease);
    lane.places = Number.isFinite(places) ? places : null;
    if (places <= 0) sleep(bucket, lane, now + nextPlaceMs);
    else refreshReadiness(bucket, lane);
  }
  return pump(bucket, now);
}

/** Learns from an answer whose call is still in flight. */
export function learn(bucket: Bucket, token: string, lesson: TimedLesson, now: number): Effects {
  const lease = bucket.leases.get(token);
  if (lease !== undefined) applyLesson(bucket, lease, lesson, now);
  return pump(bucket, now);
}

/** Ends a lease, once: a token that is not known any more changes nothing. */
export function settle(
  bucket: Bucket,
  token: string,
  settlement: Settlement,
  lesson: TimedLesson | null,
  now: number,
): Effects {
  const lease = bucket.leases.get(token);
  if (lease === undefined || lease.abandoned) return pump(bucket, now);
  const lane = bucket.lanes.get(lease.ticket.lane);
  if (lane === undefined) return pump(bucket, now);
  confirm(lane, lease);
  switch (settlement.kind) {
    case 'succeeded':
      // Before learning: an answer that tells the level has the correction in it.
      if (settlement.spent !== null) correct(bucket, lease, settlement.spent, now);
      if (lesson !== null) applyLesson(bucket, lease, lesson, now);
      else applySilence(bucket, lease, now);
      noteService(lane, now - lease.grantedAt);
      end(bucket, lane, lease);
      forget(bucket, lease.ticket);
      break;
    case 'throttled':
      applyThrottle(bucket, lease, settlement.closeMs, lesson, now);
      end(bucket, lane, lease);
      requeueOrForget(bucket, lane, lease.ticket, settlement.requeue);
      if (settlement.sleepMs > 0) sleep(bucket, lane, now + settlement.sleepMs);
      break;
    case 'dropped':
    case 'returned':
      giveBack(bucket, lease, now);
      end(bucket, lane, lease);
      if (settlement.kind === 'returned' && settlement.costs !== undefined) {
        lease.ticket.costs = takeable(bucket, settlement.costs);
      }
      requeueOrForget(bucket, lane, lease.ticket, settlement.kind === 'returned');
      if (settlement.kind === 'returned') {
        if (settlement.asBefore !== true) lane.places = 1;
        sleep(bucket, lane, now + settlement.sleepMs);
      }
      break;
    case 'unknown':
      if (lane.maxInFlight === null) {
        end(bucket, lane, lease);
      } else {
        lease.abandoned = true;
        lease.expiresAt = now + lease.ticket.leaseMs;
        bucket.expiries.set(token, lease.expiresAt);
        lane.abandoned.push(lease.expiresAt);
        lane.abandoned.sort((a, b) => a - b);
      }
      forget(bucket, lease.ticket);
      break;
  }
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
  return bucket.tickets.size === 0 && bucket.leases.size === 0 && bucket.closedUntil <= now;
}

function requeueOrForget(bucket: Bucket, lane: Lane, ticket: Ticket, requeue: boolean): void {
  if (requeue) {
    ticket.lease = null;
    enqueue(bucket, lane, ticket);
  } else {
    forget(bucket, ticket);
  }
}

function merge(first: Effects, second: Effects): Effects {
  return { grants: [...first.grants, ...second.grants], nextAt: second.nextAt };
}
