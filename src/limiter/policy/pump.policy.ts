/**
 * The pump in which every transition ends: sweep what expired, wake lanes, then grant heads of lanes in fair order
 * while the bucket is open, has a place in flight left, and every meter the head needs has room. Part of the specification in
 * `scheduler.policy.ts`.
 */
import type { MeterName } from '../../call.ts';
import {
  isBackground,
  leaseToken,
  type LaneKey,
  type LeaseToken,
  type ReplicaId,
  type TicketId,
} from '../../ids.ts';
import {
  allWaiting,
  type Bucket,
  closedMs,
  isFull,
  type Lane,
  type Lease,
  ensureMeter,
  nextFirstCallAt,
  noteGrant,
  type Ticket,
  type Turns,
  turnsOf,
  type Withheld,
} from './bucket-state.policy.ts';
import {
  asleepUntil,
  confirm,
  dequeue,
  headBefore,
  headOf,
  mayReturn,
  noteInFlight,
  readyNameOf,
  sleep,
  takeTurn,
  wakeLanes,
  goesFirst,
  isOneDue,
  leavesToTwin,
  nextOneDueAt,
  noteGranted,
} from './lanes.policy.ts';
import { knownCosts, serviceCost } from './costs.policy.ts';
import { markLeaseAnswered } from './learning.policy.ts';
import { costEntries, meterNames, roomInMs, take, type MeterMark } from './meter.policy.ts';
import {
  dueReservations,
  forgetReservation,
  forgetUnused,
  keptFreeBy,
  nextTurn,
} from './reservations.policy.ts';

/** A replica without an event for this long counts as dead, and its waiting tickets are passed over. Milliseconds. */
export const replicaLifeMs = 5_000;
/** Grants of one pump at most: a transition stays short. What is left is done by the next pump, which is due at once. */
export const maxPerPump = 64;

/**
 * What a transition asks the store to do. `nextAt`: earliest time at which another pump may grant; `null` = none before the next
 * event.
 */
export interface Effects {
  readonly grants: readonly Granted[];
  readonly nextAt: number | null;
}

/** Room that is kept free for a reservation until about now is looked at again after so long. Milliseconds. */
const retryMs = 1;
/** The same of room that is kept until a call leaves, which may be at any time. Milliseconds. */
const recheckMs = 1_000;

export function pump(bucket: Bucket, now: number): Effects {
  const round: Round = { left: maxPerPump, blocked: nothingBlocked };
  sweepLeases(bucket, now);
  wakeLanes(bucket, now);
  if (bucket.reservations.size > 0) forgetUnused(bucket, now);
  const grants: Granted[] = [];
  let nextAt = soonest(bucket.asleep.first()?.score ?? null, bucket.expiries.first()?.score ?? null);
  nextAt = soonest(nextAt, nextOneDueAt(bucket, now));
  if (bucket.reservations.size > 0 && allWaiting(bucket) > 0) nextAt = soonest(nextAt, nextTurn(bucket, now));
  // The fold looks at the bucket when nothing is withheld any more.
  if (bucket.withheld?.what === 'all') return { grants, nextAt: null };
  const isWaiting = allWaiting(bucket) > 0;
  if (isWaiting && closedMs(bucket, now) > 0) return { grants, nextAt: bucket.closedUntil };
  if (isWaiting && bucket.maxInFlight !== null && isWithheld(bucket, now))
    return { grants, nextAt: soonest(nextAt, bucket.withheld.until) };
  while (allWaiting(bucket) > 0) {
    if (round.left <= 0) return { grants, nextAt: now };
    if (isFull(bucket, now)) return { grants, nextAt };
    const nextFirst = nextFirstCallAt(bucket, now);
    if (nextFirst > now) return { grants, nextAt: soonest(nextAt, nextFirst) };
    const head = nextHead(bucket, round, now);
    if (head === null) return { grants, nextAt };
    if (waitsForReplicas(bucket, head, now)) {
      nextAt = soonest(nextAt, asleepUntil(head.lane));
      continue;
    }
    const isBehind = standsBehind(bucket, head, { blocked: round.blocked, now });
    const inMs = isBehind ? null : roomForHeadInMs(bucket, head, now);
    if (inMs === null || inMs > 0) {
      const awaits = inMs !== null && bucket.background !== null && goesFirst(bucket, head.lane, now);
      const awaited = awaits ? costEntries(head.ticket.costs).map(([name]) => name) : [];
      // Blocks the class by which the lane was chosen: if it blocked the one that the lane has now, the lane would be chosen again for ever.
      round.blocked = [...round.blocked, { readyAs: head.readyAs, lane: head.lane, awaited }];
      if (inMs !== null) nextAt = soonest(nextAt, now + inMs);
      continue;
    }
    round.left -= 1;
    grants.push(grant(bucket, head, now));
    // The grant may have taken the place in flight of a lane for which others of its class wait.
    if (round.blocked.length > 0)
      round.blocked = round.blocked.filter(({ lane, readyAs }) => lane.readyAs === readyAs);
  }
  return { grants, nextAt: null };
}

/** Most pumps find room for all that waits. */
const nothingBlocked: readonly Blocked[] = [];

/** A call class whose next lane has no room now, and the meters for which that lane waits if it goes first. */
interface Blocked {
  readonly readyAs: string;
  readonly lane: Lane;
  readonly awaited: readonly MeterName[];
}

/** How many calls one pump may still grant, and the call classes that it passes over. */
interface Round {
  left: number;
  blocked: readonly Blocked[];
}

const isBlocked = (blocked: readonly Blocked[], readyAs: string): boolean =>
  blocked.some((other) => other.readyAs === readyAs);

/** A lane and the ticket that is next in it. */
interface Head {
  readonly lane: Lane;
  readonly ticket: Ticket;
}

/** A head, and the class under which its lane is ready. */
interface ReadyHead extends Head {
  readonly readyAs: string;
  /** It goes before lanes whose turn it would be, and into what they leave free, because somebody came back for a reservation. */
  readonly isForReservation: boolean;
}

/**
 * Picks the next workspace: the head of the ready lane with the smallest start tag (start-time fair queueing), among the classes
 * that are not blocked, and the class under which the lane is ready. Tickets of dead replicas are passed over. The score of a lane
 * in `bucket.ready` is its start tag.
 */
function nextHead(bucket: Bucket, round: Round, now: number): ReadyHead | null {
  for (;;) {
    const reserved = bucket.reservations.size === 0 ? null : nextReserved(bucket, round, now);
    if (reserved !== null) return reserved;
    const best = nextLane(bucket, round, now);
    if (best === undefined) return null;
    const lane = bucket.lanes.get(best.name);
    const ticket = lane === undefined ? undefined : headOf(bucket, lane);
    if (lane === undefined || ticket === undefined) return null;
    if (isAlive(bucket, ticket.replica, now))
      return { lane, ticket, readyAs: best.readyAs, isForReservation: false };
    dequeue(bucket, lane, ticket);
    bucket.tickets.delete(ticket.id);
  }
}

/** A ready lane. */
interface NextLane {
  readonly name: LaneKey;
  readonly score: number;
  readonly readyAs: string;
}

/** Whose turn it is: of the background when no other lane can go, or first when one of its calls is due. */
function nextLane(bucket: Bucket, { blocked }: Round, now: number): NextLane | undefined {
  const { background } = bucket;
  if (background === null || background.waiting === 0) return nextIn(bucket, blocked);
  if (isOneDue(bucket, now)) return nextIn(background, blocked) ?? nextIn(bucket, blocked);
  return nextIn(bucket, blocked) ?? nextIn(background, blocked, (name) => !leavesToTwin(bucket, name));
}

function nextIn(
  { ready }: Turns,
  blocked: readonly Blocked[],
  mayGo?: (name: LaneKey) => boolean,
): NextLane | undefined {
  let best: NextLane | undefined;
  for (const [readyAs, lanes] of ready) {
    const first = lanes.first(mayGo);
    if (first === undefined || isBlocked(blocked, readyAs)) continue;
    if (
      best === undefined ||
      first.score < best.score ||
      (first.score === best.score && first.name < best.name)
    )
      best = { ...first, readyAs };
  }
  return best;
}

/** True when calls that go first wait for a meter from which this one takes, too. */
const standsBehind = (
  bucket: Bucket,
  { lane, ticket }: ReadyHead,
  { blocked, now }: Pick<Round, 'blocked'> & { readonly now: number },
): boolean =>
  blocked.some(({ awaited }) => awaited.length > 0) &&
  !goesFirst(bucket, lane, now) &&
  costEntries(ticket.costs).some(([name]) => blocked.some(({ awaited }) => awaited.includes(name)));

function isAlive(bucket: Bucket, replica: ReplicaId, now: number): boolean {
  const heardAt = bucket.replicas.scoreOf(replica);
  return heardAt !== null && heardAt + replicaLifeMs >= now;
}

/** True when a call of the lane may be under way of which its replica has not told yet: the lane sleeps until then. */
function waitsForReplicas(bucket: Bucket, { lane }: Head, now: number): boolean {
  if (lane.maxInFlight === null || !isWithheld(bucket, now)) return false;
  sleep(bucket, lane, { because: 'term', until: bucket.withheld.until });
  return true;
}

/** True when calls of which replicas have not told yet may hold the places of a cap. */
const isWithheld = (
  bucket: Bucket,
  now: number,
): bucket is Bucket & { readonly withheld: Exclude<Withheld, { what: 'all' }> } =>
  bucket.withheld !== null && bucket.withheld.what !== 'all' && bucket.withheld.until > now;

/**
 * The head of the first lane to which a call has come back for a reservation that is due. That call itself, unless others of its lane
 * and caller stand before it: they were expected to have left by now.
 */
function nextReserved(bucket: Bucket, { blocked }: Round, now: number): ReadyHead | null {
  for (const { lane: key, ticket: id, from } of dueReservations(bucket, now)) {
    const lane = bucket.lanes.get(key);
    if (id === null || from > now || lane === undefined || !mayReturn(bucket, lane, now)) continue;
    if (isBackground(key) && bucket.waiting > 0) continue;
    const ticket = headBefore(bucket, lane, id);
    if (ticket === undefined) continue;
    const readyAs = readyNameOf(lane, ticket);
    const isHindered = isBlocked(blocked, readyAs) || !isAlive(bucket, ticket.replica, now);
    if (!isHindered) return { lane, ticket, readyAs, isForReservation: true };
  }
  return null;
}

/** Milliseconds until every meter of the call has room for it, and for what it leaves free; 0 = now. */
function roomForHeadInMs(bucket: Bucket, { ticket, isForReservation }: ReadyHead, now: number): number {
  const costs = knownCosts(bucket, ticket.costs, ticket.document);
  const kept = isForReservation || bucket.reservations.size === 0 ? null : keptFreeBy(bucket, ticket, now);
  let maxMs = 0;
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    if (units <= 0) continue;
    const meter = ensureMeter(bucket, name, now);
    const waiting = bucket.waitingCosts.get(name) ?? 0;
    maxMs = Math.max(maxMs, roomInMs(meter, units, waiting, now));
    const keptUnits = kept?.units.get(name) ?? 0;
    if (kept === null || keptUnits === 0 || meter.limit === null) continue;
    // More than the meter ever has free has to wait until less is kept.
    const untilLess = kept.until === null ? recheckMs : Math.max(kept.until - now, retryMs);
    const both = units + keptUnits;
    const room = both > meter.limit ? untilLess : roomInMs(meter, both, waiting, now);
    maxMs = Math.max(maxMs, Math.min(room, untilLess));
  }
  return maxMs;
}

function sweepLeases(bucket: Bucket, now: number): void {
  for (const token of bucket.expiries.upTo(now)) {
    const lease = bucket.leases.get(token);
    const lane = lease === undefined ? undefined : bucket.lanes.get(lease.ticket.lane);
    if (lease === undefined || lane === undefined) continue;
    confirm(lane, lease);
    endLease(bucket, lane, lease);
    if (lease.stage !== 'abandoned') bucket.tickets.delete(lease.ticket.id);
  }
}

function soonest(a: number | null, b: number | null): number | null {
  if (a === null) return b;
  return b === null ? a : Math.min(a, b);
}

/** Ends the lease's hold on its lane; meters are settled by the caller. */
export function endLease(bucket: Bucket, lane: Lane, lease: Lease): void {
  markLeaseAnswered(bucket, lease);
  bucket.leases.delete(lease.token);
  bucket.expiries.delete(lease.token);
  lane.inFlight -= 1;
  if (lease.stage === 'abandoned') lane.abandoned.splice(lane.abandoned.indexOf(lease.expiresAt), 1);
  if (bucket.leases.size === 0 && !bucket.opened) bucket.probingSince = null;
  noteInFlight(bucket, lane);
}

// Grants: the head of a lane takes its units and gets a lease

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

/**
 * @param head with `isForReservation` it goes before lanes whose turn it would have been, for a reservation
 * @param token of a call that was granted before, of which the bucket has lost the lease
 */
export function grant(
  bucket: Bucket,
  { lane, ticket, isForReservation = false }: Head & { readonly isForReservation?: boolean },
  now: number,
  token = leaseToken(`${ticket.id}.${++bucket.sequence}`),
): Granted {
  const isDue = isBackground(lane.key) && isOneDue(bucket, now);
  dequeue(bucket, lane, ticket);
  if (ticket.reservation !== undefined) forgetReservation(bucket, ticket.reservation.id);
  const costs = knownCosts(bucket, ticket.costs, ticket.document);
  const marks = new Map<MeterName, MeterMark>();
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    if (units > 0) marks.set(name, take(ensureMeter(bucket, name, now), units, now));
  }
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
  noteGrant(bucket, lease, now);
  if (!bucket.opened && bucket.probingSince === null) bucket.probingSince = now;
  // The others' turns do not begin later because of it; its lane has had one.
  const turns = turnsOf(bucket, lane.key);
  if (!isForReservation) turns.virtual = Math.max(turns.virtual, lane.start);
  noteGranted(bucket, lane, lease);
  const service = serviceCost(bucket, costs);
  lane.start += service / lane.weight;
  takeTurn(lane, ticket, service);
  lane.inFlight += 1;
  lane.grantedAt = now;
  if (lease.stage === 'unconfirmed') lane.unconfirmed += 1;
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
