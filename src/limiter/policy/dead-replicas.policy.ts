/**
 * Replicas that are not heard of any more, and the calls that waited on them: they count as calls that go first until they are
 * forgotten. Part of the specification in `scheduler.policy.ts`.
 *
 * Bounds: one tick forgets `maxPerPump` replicas and as many tickets at most, and reads no more tickets, however long the line is. The
 * next tick goes on behind them, and is due at once.
 */
import type { ReplicaId, TicketId } from '../../ids.ts';
import type { Bucket, Lane, Ticket } from './bucket-state.policy.ts';
import { dequeue } from './lanes.policy.ts';
import { isAlive, maxPerPump, replicaLifeMs } from './pump.policy.ts';

/** Forgets some of the dead replicas. If calls waited on one, a search for their tickets begins, from the first ticket of the bucket. */
export function forgetDeadReplicas(bucket: Bucket, now: number): void {
  for (let left = maxPerPump; left > 0; left -= 1) {
    const first = bucket.replicas.first();
    if (first === undefined || first.score + replicaLifeMs >= now) return;
    bucket.replicas.delete(first.name);
    if (hasWaiting(bucket, first.name)) bucket.searchedTo = '';
  }
}

/**
 * Goes on with the search, if one is under way, and forgets the tickets of dead replicas that it finds. A replica that is alive after
 * all enters its tickets again, at their positions.
 */
export function forgetTheirTickets(bucket: Bucket, now: number): void {
  if (bucket.searchedTo === null) return;
  const tickets = waitingBehind(bucket, bucket.searchedTo);
  for (const ticket of tickets) {
    const lane = bucket.lanes.get(ticket.lane);
    if (lane === undefined || isAlive(bucket, ticket.replica, now)) continue;
    dequeue(bucket, lane, ticket);
    bucket.tickets.delete(ticket.id);
  }
  const last = tickets[maxPerPump - 1];
  bucket.searchedTo = last === undefined ? null : nameOf(last);
}

function hasWaiting(bucket: Bucket, replica: ReplicaId): boolean {
  for (const ticket of bucket.tickets.values())
    if (ticket.replica === replica && ticket.lease === null) return true;
  return false;
}

/** The next waiting tickets behind this name, in the order of their names: by the names of lanes, then by position. */
function waitingBehind({ lanes, tickets }: Bucket, name: string): Ticket[] {
  const next: Ticket[] = [];
  for (const lane of [...lanes.values()].sort((one, other) => (sectionOf(one) < sectionOf(other) ? -1 : 1))) {
    if (next.length >= maxPerPump) break;
    for (const id of behindIn(lane, name, maxPerPump - next.length)) {
      const ticket = tickets.get(id);
      if (ticket !== undefined) next.push(ticket);
    }
  }
  return next;
}

function behindIn(lane: Lane, name: string, most: number): TicketId[] {
  const section = sectionOf(lane);
  if (!name.startsWith(section)) return name < section ? lane.line.firstNames(most) : [];
  const place = name.slice(section.length);
  return lane.line.behind(Number(place.slice(0, orderDigits)), place.slice(orderDigits + 1), most);
}

/** Digits of a position, which is a whole number below 2^53. */
const orderDigits = 16;

/** A waiting ticket among all of its bucket, as text that sorts as they do. */
const nameOf = ({ lane, order, id }: Ticket): string =>
  `${lane}:${order.toFixed(0).padStart(orderDigits, '0')}:${id}`;

/** With what the names of all tickets of a lane begin. */
const sectionOf = ({ key }: Lane): string => `${key}:`;
