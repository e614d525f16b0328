/**
 * A grant: the head of a lane takes its units and gets a lease. Part of the specification in `scheduler.policy.ts`.
 */
import type { Costs, MeterName } from '../../call.ts';
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
import { costEntries, markName } from './meter-state.policy.ts';
import {
  calmLatenessMs,
  maxLatenessMs,
  quietGapMs,
  take,
  type InTransit,
  type Meter,
  type MeterMark,
  type Spacing,
} from './meter.policy.ts';
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
  const spacing = noteSpacing(bucket, now);
  const marks = takeUnits(bucket, { costs, spacing }, now);
  const lease: Lease = {
    token,
    ticket,
    grantedAt: now,
    spacing,
    marks,
    expiresAt: now + ticket.leaseMs,
    answered: false,
    stage: lane.slots === null ? 'confirmed' : 'unconfirmed',
  };
  ticket.lease = lease.token;
  bucket.leases.set(lease.token, lease);
  bucket.expiries.set(lease.token, lease.expiresAt);
  if (spacing !== 'crowded') bucket.unanswered.set(lease.token, now);
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

/** How far a grant that is made now is from the one before. */
function noteSpacing(bucket: Bucket, now: number): Spacing {
  const isQuiet = bucket.lastGrantAt === null || now - bucket.lastGrantAt >= quietGapMs;
  if (!isQuiet) bucket.crowdedAt = now;
  const isLong = bucket.crowdedAt === null || now - bucket.crowdedAt >= maxLatenessMs;
  if (!isQuiet) return 'crowded';
  return isLong ? 'calm' : 'quiet';
}

/** Takes the units of a call that is granted now from its meters. */
function takeUnits(
  bucket: Bucket,
  { costs, spacing }: { readonly costs: Costs; readonly spacing: Spacing },
  now: number,
): Map<MeterName, MeterMark> {
  const before = spacing === 'calm' ? bucket.unanswered.between(now - calmLatenessMs, now) : [];
  const marks = new Map<MeterName, MeterMark>();
  for (const [name, units] of costEntries(costs)) {
    const meter = meterOf(bucket, name, now);
    const inTransit = inTransitBefore(bucket, before, meter);
    marks.set(markName(meter), take(meter, { units, inTransit }, now));
  }
  return marks;
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

const inTransitBefore = (bucket: Bucket, tokens: readonly LeaseToken[], meter: Meter): InTransit[] =>
  tokens.flatMap((token) => {
    const lease = bucket.leases.get(token);
    const units = lease?.marks.get(markName(meter))?.cost ?? 0;
    return lease === undefined || units === 0 ? [] : [{ grantedAt: lease.grantedAt, units }];
  });
