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
import type { HeldBy } from '../errors.ts';
import {
  closedMs,
  createBucket,
  orderUnit,
  sequencePerMs,
  type Bucket,
  type Lane,
  type Ticket,
} from './bucket-state.policy.ts';
import { endProbe, knownCosts } from './documents.policy.ts';
import { forecastAt } from './forecast.policy.ts';
import {
  applyLaneSetting,
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
import type { Admission, CeilingEdge, Reconfiguration, Settlement, Standing } from './limiter.ts';
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
  /** `order`: the position in the lane, to be given back when the ticket must be entered again. */
  | { readonly kind: 'granted'; readonly order: number }
  | {
      readonly kind: 'queued';
      readonly forecastMs: number;
      readonly ahead: number;
      readonly heldBy: HeldBy;
      readonly order: number;
    }
  | {
      readonly kind: 'refused';
      readonly reason: 'queue_full' | 'wait_too_long';
      readonly heldBy: HeldBy;
      readonly retryInMs: number;
      readonly ahead: number;
    };

/** An arrival that is claimed to be longer ago than this is taken for this long ago. Milliseconds. */
export const maxArrivalAgoMs = 10_000;
/**
 * One that is claimed to be later than now is taken for this much later at most. A clock that is known by half of a round
 * trip is ahead by less, and calls of one moment, which come one after the other, stay apart. Milliseconds.
 */
export const maxArrivalAheadMs = 50;

/**
 * A refusal under other limits than the lane has comes from a replica that has not heard of the new ones, or has heard of
 * them before: it holds the lane no longer than this. Milliseconds.
 */
export const maxOtherLimitsMs = 200;

export { createBucket };

/** Enters a ticket into its lane, or refuses it at once. Idempotent by ticket id. */
export function admit(
  bucket: Bucket,
  admission: Admission,
  replica: string,
  now: number,
): AdmitResult & { readonly effects: Effects } {
  if (bucket.tickets.has(admission.ticket)) bucket.replicas.set(replica, now);
  applySettings(bucket, admission.setting, now);
  const lane = bucket.lanes.get(admission.lane);
  if (lane !== undefined) applyLaneSetting(bucket, lane, admission);
  const before = pump(bucket, now);
  const known = bucket.tickets.get(admission.ticket);
  if (known !== undefined) return { ...standing(bucket, known, now), effects: before };
  const costs = takeable(bucket, knownCosts(bucket, admission.costs, admission.document));
  const newcomer = { ...admission, costs };
  const order = orderOf(admission, now);
  const refusal = admission.position.kind === 'kept' ? null : refusalOf(bucket, newcomer, order, now);
  if (refusal !== null) return { ...refusal, effects: before };

  bucket.replicas.set(replica, now);
  const ticket = enter(bucket, newcomer, { replica, order });
  const effects = merge(before, pump(bucket, now));
  return { ...standing(bucket, ticket, now), effects };
}

function enter(
  bucket: Bucket,
  admission: Admission,
  { replica, order }: { readonly replica: string; readonly order: number },
): Ticket {
  const lane = laneFor(bucket, admission.lane, admission);
  const ticket: Ticket = {
    id: admission.ticket,
    lane: admission.lane,
    replica,
    order,
    callClass: admission.callClass,
    costs: admission.costs,
    document: admission.document,
    leaseMs: admission.leaseMs,
    lease: null,
  };
  bucket.tickets.set(ticket.id, ticket);
  enqueue(bucket, lane, ticket);
  return ticket;
}

/**
 * The position of a ticket: its urgency, then the time at which its replica received it, or the order it had before the
 * store lost it. So a replica that was slow for a moment does not send its calls to the end of the line.
 */
function orderOf({ position, urgency }: Admission, now: number): number {
  if (position.kind === 'kept') return position.order;
  const at = Math.max(0, Math.min(now + maxArrivalAheadMs, Math.max(position.at, now - maxArrivalAgoMs)));
  return urgency * orderUnit + Math.floor(at * sequencePerMs);
}

/** Of a ticket that waits for nothing that is known. */
const atTheHead: Standing = { waitMs: 0, ahead: 0, heldBy: 'queue' };

function standing(bucket: Bucket, ticket: Ticket, now: number): AdmitResult {
  const { order } = ticket;
  if (ticket.lease !== null) return { kind: 'granted', order };
  const { waitMs, ahead, heldBy } = forecast(bucket, ticket.id, now) ?? atTheHead;
  return { kind: 'queued', forecastMs: waitMs, ahead, heldBy, order };
}

function refusalOf(
  bucket: Bucket,
  admission: Admission,
  order: number,
  now: number,
): Extract<AdmitResult, { kind: 'refused' }> | null {
  const lane = bucket.lanes.get(admission.lane);
  const ahead = lane === undefined ? 0 : lane.line.rank(admission.ticket, order);
  const { waitMs, heldBy } = forecastAt(bucket, lane, { ...admission, key: admission.lane, ahead }, now);
  const waiting = lane?.line.size ?? 0;
  if (waiting >= admission.maxQueued && (waiting > 0 || waitMs > 0)) {
    return { kind: 'refused', reason: 'queue_full', heldBy: 'queue', retryInMs: waitMs, ahead };
  }
  if (waitMs <= admission.maxWaitMs) return null;
  return { kind: 'refused', reason: 'wait_too_long', heldBy, retryInMs: waitMs, ahead };
}

/** Expected wait of a waiting ticket, what it waits for, and how many of its lane go first; `null` if it does not wait. */
export function forecast(bucket: Bucket, ticketId: string, now: number): Standing | null {
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
    perMinute: lane.perMinute,
    ahead,
  };
  return { ...forecastAt(bucket, lane, asked, now), ahead };
}

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

/** The grant took a slot of a ceiling that is nearly used; `null`: it is not nearly used any more. */
export function charged(bucket: Bucket, token: string, edge: CeilingEdge | null, now: number): Effects {
  const lease = bucket.leases.get(token);
  const lane = lease === undefined ? undefined : bucket.lanes.get(lease.ticket.lane);
  if (lease !== undefined && lane !== undefined) {
    confirm(lane, lease);
    const isOther = edge?.ceiling !== undefined && edge.ceiling !== lane.ceiling;
    lane.slots = edge === null ? null : isOther ? Math.max(1, edge.slots) : edge.slots;
    if (edge !== null && edge.slots <= 0) {
      const heldMs = isOther ? Math.min(edge.nextSlotMs, maxOtherLimitsMs) : edge.nextSlotMs;
      sleep(bucket, lane, 'ceiling_minute', now + heldMs);
    } else refreshReadiness(bucket, lane);
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
      if (settlement.sleepMs > 0) sleep(bucket, lane, 'backoff', now + settlement.sleepMs);
      break;
    case 'dropped':
    case 'returned':
      giveBack(bucket, lease, now);
      end(bucket, lane, lease);
      requeueOrForget(bucket, lane, lease.ticket, settlement.kind === 'returned');
      if (settlement.kind === 'returned') {
        const { because, sleepMs, ceiling = lane.ceiling } = settlement;
        if (because !== 'backoff') lane.slots = 1;
        const heldMs = ceiling === lane.ceiling ? sleepMs : Math.min(sleepMs, maxOtherLimitsMs);
        sleep(bucket, lane, because, now + heldMs);
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
  endProbe(bucket, lease, settlement.kind !== 'dropped' && settlement.kind !== 'returned', now);
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

function requeueOrForget(bucket: Bucket, lane: Lane, ticket: Ticket, requeue: boolean): void {
  if (requeue) {
    ticket.lease = null;
    ticket.costs = takeable(bucket, knownCosts(bucket, ticket.costs, ticket.document));
    enqueue(bucket, lane, ticket);
  } else {
    forget(bucket, ticket);
  }
}

function merge(first: Effects, second: Effects): Effects {
  return { grants: [...first.grants, ...second.grants], nextAt: second.nextAt };
}
