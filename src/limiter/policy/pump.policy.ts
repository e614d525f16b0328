/**
 * The pump in which every transition ends: sweep what expired, wake lanes, then grant heads of lanes in fair order
 * while the bucket is open and every meter the head needs has room. Part of the specification in
 * `scheduler.policy.ts`.
 */
import type { MeterName } from '../../call.ts';
import {
  closedMs,
  costEntries,
  meterOf,
  type Bucket,
  type Lane,
  type Lease,
  type Ticket,
} from './bucket-state.policy.ts';
import { beginProbe, endProbe, knownCosts, waitsForAnswer } from './documents.policy.ts';
import {
  asleepUntil,
  confirm,
  dequeue,
  refreshReadiness,
  turnOf,
  wakeLanes,
  type Budget,
} from './lanes.policy.ts';
import { answerUntold } from './lessons.policy.ts';
import {
  calmLatenessMs,
  mostLatenessMs,
  quietGapMs,
  roomInMs,
  take,
  type Behind,
  type MeterMark,
} from './meter.policy.ts';

/** Without any answer the number of probes doubles this often, so that a slow first answer holds nobody for long. */
export const probeDoublingMs = 250;
/** A replica not heard of for this long is dead: its waiting tickets are passed over. Milliseconds. */
export const replicaLifeMs = 5_000;
/**
 * Leases swept, lanes woken, tickets passed over and grants of one pump at most: one transition of a store shared by
 * many buckets stays short. What is left is done by the next pump, which is due at once.
 */
export const mostPerPump = 64;

/** A grant on its way to the replica that holds the ticket. */
export interface Granted {
  readonly ticket: string;
  readonly lane: string;
  readonly replica: string;
  readonly lease: string;
  readonly expiresAt: number;
}

/** What a transition asks the store to do. `nextAt`: earliest time at which another pump may grant; `null` = none by itself. */
export interface Effects {
  readonly grants: readonly Granted[];
  readonly nextAt: number | null;
}

export function pump(bucket: Bucket, now: number): Effects {
  const budget: Budget = { left: mostPerPump };
  sweepLeases(bucket, budget, now);
  wakeLanes(bucket, budget, now);
  const grants: Granted[] = [];
  let nextAt = soonest(bucket.asleep.first()?.score ?? null, bucket.expiries.first()?.score ?? null);
  if (bucket.waiting === 0) return { grants, nextAt: null };
  if (closedMs(bucket, now) > 0) return { grants, nextAt: bucket.closedUntil };
  const blocked = new Set<string>();
  for (;;) {
    if (budget.left <= 0) return { grants, nextAt: now };
    const probeAt = probeTime(bucket, now);
    if (probeAt > now) return { grants, nextAt: soonest(nextAt, probeAt) };
    const head = nextHead(bucket, blocked, budget, now);
    if (head === null) return { grants, nextAt: budget.left > 0 ? nextAt : now };
    if (waitsForAnswer(bucket, head.lane, head.ticket, now)) {
      budget.left -= 1;
      nextAt = soonest(nextAt, asleepUntil(head.lane));
      continue;
    }
    const inMs = room(bucket, head.ticket, now);
    if (inMs > 0) {
      // Not the ticket's own class: each round blocks a class that could be chosen, or spends some of the budget.
      blocked.add(head.readyAs);
      nextAt = soonest(nextAt, now + inMs);
      continue;
    }
    budget.left -= 1;
    grants.push(grant(bucket, head.lane, head.ticket, now));
  }
}

/** Head of the ready lane that is first in fair order, among the classes that are not blocked, and the class under which it is ready. */
function nextHead(
  bucket: Bucket,
  blocked: ReadonlySet<string>,
  budget: Budget,
  now: number,
): { lane: Lane; ticket: Ticket; readyAs: string } | null {
  while (budget.left > 0) {
    let best: { name: string; score: number; readyAs: string } | undefined;
    for (const [callClass, lanes] of bucket.ready) {
      const first = lanes.first();
      if (first === undefined || blocked.has(callClass)) continue;
      if (
        best === undefined ||
        first.score < best.score ||
        (first.score === best.score && first.name < best.name)
      ) {
        best = { ...first, readyAs: callClass };
      }
    }
    if (best === undefined) return null;
    const lane = bucket.lanes.get(best.name);
    const ticket = lane === undefined ? undefined : bucket.tickets.get(lane.line.first()?.name ?? '');
    if (lane === undefined || ticket === undefined) return null;
    if (isAlive(bucket, ticket.replica, now)) return { lane, ticket, readyAs: best.readyAs };
    budget.left -= 1;
    dequeue(bucket, lane, ticket);
    bucket.tickets.delete(ticket.id);
  }
  return null;
}

/** Forgets replicas that are dead, at most `most` of them: unknown is as dead as silent. */
export function forgetDeadReplicas(bucket: Bucket, most: number, now: number): void {
  for (let left = most; left > 0; left -= 1) {
    const first = bucket.replicas.first();
    if (first === undefined || first.score + replicaLifeMs >= now) return;
    bucket.replicas.delete(first.name);
  }
}

function isAlive(bucket: Bucket, replica: string, now: number): boolean {
  const heardAt = bucket.replicas.scoreOf(replica);
  return heardAt !== null && heardAt + replicaLifeMs >= now;
}

function room(bucket: Bucket, ticket: Ticket, now: number): number {
  let longest = 0;
  for (const [name, units] of costEntries(knownCosts(bucket, ticket.costs, ticket.document))) {
    const wanted = { units, waiting: bucket.waitingCosts.get(name) ?? 0 };
    longest = Math.max(longest, roomInMs(meterOf(bucket, name, now), wanted, now));
  }
  return longest;
}

function grant(bucket: Bucket, lane: Lane, ticket: Ticket, now: number): Granted {
  dequeue(bucket, lane, ticket);
  const marks = new Map<MeterName, MeterMark>();
  const costs = knownCosts(bucket, ticket.costs, ticket.document);
  const quiet = bucket.lastGrantAt === null || now - bucket.lastGrantAt >= quietGapMs;
  if (!quiet) bucket.crowdedAt = now;
  const calm = quiet && (bucket.crowdedAt === null || now - bucket.crowdedAt >= mostLatenessMs);
  const before = calm ? bucket.unanswered.between(now - calmLatenessMs, now) : [];
  for (const [name, units] of costEntries(costs))
    marks.set(name, take(meterOf(bucket, name, now), units, now, behind(bucket, before, name)));
  const lease: Lease = {
    token: `${ticket.id}.${++bucket.sequence}`,
    ticket,
    grantedAt: now,
    quiet,
    calm,
    marks,
    expiresAt: now + ticket.leaseMs,
    answered: false,
    unconfirmed: lane.slots !== null,
    abandoned: false,
  };
  ticket.lease = lease.token;
  bucket.leases.set(lease.token, lease);
  bucket.expiries.set(lease.token, lease.expiresAt);
  if (quiet) bucket.unanswered.set(lease.token, now);
  bucket.lastGrantAt = now;
  if (!bucket.opened && bucket.probingSince === null) bucket.probingSince = now;
  bucket.virtual = Math.max(bucket.virtual, lane.start);
  lane.start += turnOf(bucket, costs) / lane.weight;
  lane.inFlight += 1;
  lane.grantedAt = now;
  if (lease.unconfirmed) lane.unconfirmed += 1;
  beginProbe(bucket, lease, now);
  refreshReadiness(bucket, lane);
  return {
    ticket: ticket.id,
    lane: lane.key,
    replica: ticket.replica,
    lease: lease.token,
    expiresAt: lease.expiresAt,
  };
}

const behind = (bucket: Bucket, tokens: readonly string[], meter: MeterName): Behind[] =>
  tokens.flatMap((token) => {
    const lease = bucket.leases.get(token);
    const units = lease?.marks.get(meter)?.cost ?? 0;
    return lease === undefined || units === 0 ? [] : [{ grantedAt: lease.grantedAt, units }];
  });

/** Before the first answer only a few calls may be on their way; `now` or earlier = one more may go. */
function probeTime(bucket: Bucket, now: number): number {
  if (bucket.opened || bucket.probe <= 0 || bucket.probingSince === null) return now;
  const steps = Math.min(20, Math.floor((now - bucket.probingSince) / probeDoublingMs));
  if (bucket.leases.size < bucket.probe * 2 ** steps) return now;
  return bucket.probingSince + (steps + 1) * probeDoublingMs;
}

function sweepLeases(bucket: Bucket, budget: Budget, now: number): void {
  for (
    let first = bucket.expiries.first();
    first !== undefined && first.score <= now && budget.left > 0;
    first = bucket.expiries.first()
  ) {
    budget.left -= 1;
    const lease = bucket.leases.get(first.name);
    const lane = lease === undefined ? undefined : bucket.lanes.get(lease.ticket.lane);
    if (lease === undefined || lane === undefined) {
      bucket.expiries.delete(first.name);
      continue;
    }
    confirm(lane, lease);
    endProbe(bucket, lease, true, now);
    end(bucket, lane, lease);
    if (!lease.abandoned) forget(bucket, lease.ticket);
  }
}

function soonest(a: number | null, b: number | null): number | null {
  if (a === null) return b;
  return b === null ? a : Math.min(a, b);
}

/** Ends the lease's hold on its lane; meters are settled by the caller. */
export function end(bucket: Bucket, lane: Lane, lease: Lease): void {
  answerUntold(bucket, lease, lease.expiresAt);
  bucket.leases.delete(lease.token);
  bucket.expiries.delete(lease.token);
  lane.inFlight -= 1;
  if (lease.abandoned) lane.abandoned.splice(lane.abandoned.indexOf(lease.expiresAt), 1);
  if (bucket.leases.size === 0 && !bucket.opened) bucket.probingSince = null;
  refreshReadiness(bucket, lane);
}

export function forget(bucket: Bucket, ticket: Ticket): void {
  bucket.tickets.delete(ticket.id);
}
