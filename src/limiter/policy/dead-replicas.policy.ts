/**
 * Replicas that are not heard of any more, and the calls that waited on them: they count as calls that go first until they are
 * forgotten. Part of the specification in `scheduler.policy.ts`; `lua/tick.lua` mirrors it.
 *
 * Bounds: one tick forgets `maxPerPump` replicas and as many tickets at most, and in Redis reads no more, however long the line is. The
 * next tick goes on behind them, and is due at once (`apply.policy.ts`). Here what waits is sorted for it: one process has no others.
 */
import type { ReplicaId } from '../../ids.ts';
import type { Bucket, Ticket } from './bucket-state.policy.ts';
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
  const tickets = waitingBehind(bucket, bucket.searchedTo).slice(0, maxPerPump);
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

/** Waiting tickets behind this name, in the order of their names. */
const waitingBehind = ({ tickets }: Bucket, name: string): Ticket[] =>
  [...tickets.values()]
    .filter((ticket) => ticket.lease === null && nameOf(ticket) > name)
    .sort((one, other) => (nameOf(one) < nameOf(other) ? -1 : 1));

/** A waiting ticket among all of its bucket, as text that sorts as they do: by the names of lanes, then by position. */
const nameOf = ({ lane, order, id }: Ticket): string => `${lane}:${order.toFixed(0).padStart(16, '0')}:${id}`;
