/**
 * A grant: the head of a lane takes its units and gets a lease. Part of the specification in `scheduler.policy.ts`.
 */
import {
  isBackground,
  leaseToken,
  type LaneKey,
  type LeaseToken,
  type ReplicaId,
  type TicketId,
} from '../../ids.ts';
import { isOneDue, noteGranted } from './background.policy.ts';
import { meterOf, turnsOf, type Bucket, type Lane, type Lease } from './bucket-state.policy.ts';
import { takeTurn } from './callers.policy.ts';
import { beginProbe, knownCosts, type Head } from './documents.policy.ts';
import { notePilot } from './in-flight.policy.ts';
import { dequeue, noteInFlight } from './lanes.policy.ts';
import { costEntries, take } from './meter.policy.ts';
import { forgetReservation } from './reservations.policy.ts';
import { serviceCost } from './waiting-costs.policy.ts';

/** A grant on its way to the replica that holds the ticket. */
export interface Granted {
  readonly ticket: TicketId;
  readonly lane: LaneKey;
  readonly replica: ReplicaId;
  readonly lease: LeaseToken;
  readonly expiresAt: number;
  /** A background call that leaves before all others, as none has left for a minute. */
  readonly isDue?: true;
}

/** `isAhead`: it goes before lanes whose turn it would have been, for a reservation. */
interface GrantedHead extends Head {
  readonly isAhead?: boolean;
}

export function grant(bucket: Bucket, head: GrantedHead, now: number): Granted {
  return grantAs(bucket, { ...head, token: leaseToken(`${head.ticket.id}.${++bucket.sequence}`) }, now);
}

/** A grant under a given token: of a call that was granted before, of which the bucket has lost the lease. */
export function grantAs(
  bucket: Bucket,
  { lane, ticket, token, isAhead = false }: GrantedHead & { readonly token: LeaseToken },
  now: number,
): Granted {
  const isDue = isBackground(lane.key) && isOneDue(bucket, now);
  dequeue(bucket, lane, ticket);
  if (ticket.reservation !== undefined) forgetReservation(bucket, ticket.reservation.id);
  const costs = knownCosts(bucket, ticket.costs, ticket.document);
  const marks = new Map(
    costEntries(costs).map(([name, units]) => [name, take(meterOf(bucket, name, now), units, now)]),
  );
  const lease: Lease = {
    token,
    ticket,
    grantedAt: now,
    marks,
    expiresAt: now + ticket.leaseMs,
    answered: false,
    stage: lane.slots === null ? 'confirmed' : 'unconfirmed',
  };
  ticket.lease = lease.token;
  bucket.leases.set(lease.token, lease);
  bucket.expiries.set(lease.token, lease.expiresAt);
  notePilot(bucket, now);
  bucket.lastGrantAt = now;
  if (!bucket.opened && bucket.probingSince === null) bucket.probingSince = now;
  // The others' turns do not begin later because of it; its lane has had one.
  const turns = turnsOf(bucket, lane.key);
  if (!isAhead) turns.virtual = Math.max(turns.virtual, lane.start);
  noteGranted(bucket, lane, lease);
  countInLane({ lane, lease, service: serviceCost(bucket, costs) });
  beginProbe(bucket, lease, now);
  noteInFlight(bucket, lane);
  const granted = {
    ticket: ticket.id,
    lane: lane.key,
    replica: ticket.replica,
    lease: lease.token,
    expiresAt: lease.expiresAt,
  };
  return isDue ? { ...granted, isDue } : granted;
}

/** The lane has one more lease; `service`: what it counts for in the fair order. */
function countInLane({
  lane,
  lease,
  service,
}: {
  readonly lane: Lane;
  readonly lease: Lease;
  readonly service: number;
}): void {
  lane.start += service / lane.weight;
  takeTurn(lane, lease.ticket, service);
  lane.inFlight += 1;
  lane.grantedAt = lease.grantedAt;
  if (lease.stage === 'unconfirmed') lane.unconfirmed += 1;
}
