/**
 * What the state says of this replica's calls against what the replica knows, after its copy has joined the log: entries may have been
 * lost, and others may have come that it has not heard. Pure.
 *
 * Keeps: a call that waits is in its lane again at its position (7); one that was sent holds its place, and is not sent again (8);
 * nothing stays in the state that no call here stands behind (9).
 */
import type { BucketKey, LeaseToken, ReplicaId, TicketId } from '../../ids.ts';
import type { Lease } from '../policy/bucket-state.policy.ts';
import type { OwnCall, OwnCallState } from './own-call.ts';
import type { SharedState } from './state.ts';

/** Where the state has a call. */
export type Standing =
  | { readonly kind: 'absent' }
  | { readonly kind: 'waits'; readonly order: number }
  | { readonly kind: 'granted'; readonly order: number; readonly lease: Lease };

const absent: Standing = { kind: 'absent' };

export function standingOf({ buckets }: SharedState, { admission }: OwnCall): Standing {
  const bucket = buckets.get(admission.bucket);
  const ticket = bucket?.tickets.get(admission.ticket);
  if (bucket === undefined || ticket === undefined) return absent;
  const { order } = ticket;
  const lease = ticket.lease === null ? undefined : bucket.leases.get(ticket.lease);
  return lease === undefined ? { kind: 'waits', order } : { kind: 'granted', order, lease };
}

export type Remedy =
  /** State and replica agree. */
  | { readonly kind: 'none' }
  /** The state lacks the call: it enters at its position. */
  | { readonly kind: 'enter' }
  /** It stands in its lane. */
  | { readonly kind: 'wait' }
  /** It was granted: it may be sent. */
  | { readonly kind: 'take'; readonly lease: Lease }
  /** It was granted again, although it is under way: the new lease is the one to settle. */
  | { readonly kind: 'go on'; readonly lease: Lease }
  /** It is under way, and the state lacks its grant. */
  | { readonly kind: 'hold' }
  /** The settlement that put it back to its position was lost. */
  | { readonly kind: 'settle again'; readonly lease: Lease };

const none: Remedy = { kind: 'none' };
const enter: Remedy = { kind: 'enter' };
const wait: Remedy = { kind: 'wait' };

/** @param ended leases that ended here */
export function remedyFor(
  state: OwnCallState,
  standing: Standing,
  ended: { has(lease: LeaseToken): boolean },
): Remedy {
  const isAbsent = standing.kind === 'absent';
  const lease = standing.kind === 'granted' ? standing.lease : null;
  switch (state.kind) {
    case 'entering':
    case 'waiting':
    case 'returning':
      if (lease !== null) return { kind: ended.has(lease.token) ? 'settle again' : 'take', lease };
      if (isAbsent) return enter;
      return state.kind === 'waiting' ? none : wait;
    case 'guarding':
      if (lease !== null) return lease.token === state.held.lease ? none : { kind: 'go on', lease };
      return isAbsent ? enter : wait;
    case 'sent':
      if (lease !== null) return lease.token === state.held.lease ? none : { kind: 'go on', lease };
      return { kind: 'hold' };
  }
}

/** A ticket that the state has for a replica, with the lease of its grant; `null` = it waits. */
export interface StoredTicket {
  readonly bucket: BucketKey;
  readonly ticket: TicketId;
  readonly lease: LeaseToken | null;
}

/** All tickets that the state has for the replica. */
export const ticketsOf = ({ buckets }: SharedState, replica: ReplicaId): StoredTicket[] =>
  [...buckets].flatMap(([bucket, { tickets }]) =>
    [...tickets.values()].flatMap(({ id: ticket, lease, replica: owner }) =>
      owner === replica ? [{ bucket, ticket, lease }] : [],
    ),
  );
