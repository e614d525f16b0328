/**
 * A granted call goes on and ends: it takes its slot of the workspace's ceiling, and its lease is settled once. Part of the
 * specification in `scheduler.policy.ts`; `lua/charge.lua` and `lua/settle.lua` mirror it.
 */
import type { CeilingEdge, Settlement } from '../limiter.ts';
import type { Bucket, Lane, Ticket } from './bucket-state.policy.ts';
import { endProbe, knownCosts } from './documents.policy.ts';
import { confirm, enqueue, refreshReadiness, sleep, takeable } from './lanes.policy.ts';
import {
  applyLesson,
  applySilence,
  applyThrottle,
  correct,
  giveBack,
  noteService,
  type TimedLesson,
} from './lessons.policy.ts';
import { end, forget, pump, type Effects } from './pump.policy.ts';

/**
 * A refusal under other limits than the lane has comes from a replica that has not heard of the new ones, or has heard of
 * them before: it holds the lane no longer than this. Milliseconds.
 */
export const maxOtherLimitsMs = 200;

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

function requeueOrForget(bucket: Bucket, lane: Lane, ticket: Ticket, requeue: boolean): void {
  if (requeue) {
    ticket.lease = null;
    ticket.costs = takeable(bucket, knownCosts(bucket, ticket.costs, ticket.document));
    enqueue(bucket, lane, ticket);
  } else {
    forget(bucket, ticket);
  }
}
