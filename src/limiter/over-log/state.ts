/**
 * The state that every replica has of one log: the buckets of one upstream credential. It changes only by `fold` (`fold.ts`), and
 * everything that decides is in it: two replicas with the same state and the same entry do the same.
 */
import type { Costs } from '../../call.ts';
import type { BucketKey, LeaseToken, ReplicaId } from '../../ids.ts';
import type { BucketSetting } from '../limiter.ts';
import type { Bucket, BucketEvent, EventReply, StoredAdmission } from '../policy/bucket-state.policy.ts';
import type { Granted } from '../policy/pump.policy.ts';
import { SortedNames } from '../policy/sorted.policy.ts';

/** One term of the log: until every replica has said what it has under way, too little may be known of what was granted before. */
export interface Term {
  readonly number: number;
  /** Time of its first entry. */
  readonly beganAt: number;
  /** Replicas that were known when it began and have not said `here` in it. */
  readonly awaited: readonly ReplicaId[];
}

/** All times are the log's, milliseconds since 1970. Changed by `fold` alone. */
export interface SharedState {
  /** How long a lease lives after its replica was last heard of, milliseconds. */
  readonly leaseMs: number;
  /** Since when the replica of this state goes on alone (`alone.ts`); absent in the log of all replicas. */
  readonly aloneSince?: number;
  /** `null` before the first entry. */
  term: Term | null;
  /** Replicas that may have leases, by the time of their last entry. */
  readonly replicas: SortedNames<ReplicaId>;
  readonly buckets: Map<BucketKey, Bucket>;
  /** A response closed all buckets at once; each hears of it when something is done in it. `null` = none did. */
  closed: { readonly at: number; readonly until: number } | null;
  /** The buckets that have reservations. */
  readonly reserving: Set<BucketKey>;
  /** Buckets by the time at which a waiting call may have room. */
  readonly grantsDue: SortedNames<BucketKey>;
  /** All buckets: those in use by the time of their next upkeep, the others by the time at which they are forgotten. */
  readonly upkeepDue: SortedNames<BucketKey>;
}

/** A call that was sent under a grant which the state does not have. */
export interface SentCall {
  readonly bucket: BucketKey;
  readonly lease: LeaseToken;
  /** With its position. */
  readonly admission: StoredAdmission;
}

/** What ended calls did to a bucket that may have been lost with the entries that granted them. */
export interface UsedUnits {
  readonly bucket: BucketKey;
  readonly setting: BucketSetting;
  readonly costs: Costs;
  /** For how long the bucket is closed yet, milliseconds; 0 = it is not. */
  readonly closedMs: number;
  /** What closed it closed all buckets of the log. */
  readonly closesCredential?: true;
}

/** What a replica appends. */
export type LogEvent =
  /** Something happens in one bucket. A bucket that does not exist begins with an `admit`, and is passed over otherwise. */
  | {
      readonly kind: 'in';
      readonly bucket: BucketKey;
      readonly event: Exclude<BucketEvent, { kind: 'admit' }>;
    }
  | { readonly kind: 'admit'; readonly bucket: BucketKey; readonly admission: StoredAdmission }
  /** Time goes on: whatever is due happens. Also says that the replica lives. */
  | { readonly kind: 'tick' }
  /** What the state lacks: the replica has these calls under way, and these have ended. */
  | { readonly kind: 'report'; readonly sent: readonly SentCall[]; readonly used: readonly UsedUnits[] }
  /** In this term the replica has reported whatever of its own was lost, in the log and under the ceilings. */
  | { readonly kind: 'here'; readonly term: number }
  /** The replica has nothing under way and leaves: it has nothing to say in later terms. */
  | { readonly kind: 'leave' };

/** A grant, and in which bucket. */
export interface SharedGrant extends Granted {
  readonly bucket: BucketKey;
  /** The log's time, milliseconds. */
  readonly at: number;
}

/** What an entry did. */
export interface EntryEffects {
  /**
   * One for each event. `null` = no bucket knew of it, the event is answered by nothing (`tick`, `report`, `here`), or it failed.
   */
  readonly replies: readonly (EventReply | null)[];
  /** Of all replicas, in the order in which they were made. */
  readonly grants: readonly SharedGrant[];
  /** Buckets that a response closed, and for how long from the entry's time. */
  readonly closed: readonly { readonly bucket: BucketKey; readonly closedMs: number }[];
  /**
   * What failed in a bucket, which is a defect: the bucket was emptied, at every replica alike. Whoever has a call in it enters that again, or
   * reports it in a `report` if it was sent.
   */
  readonly failures: readonly unknown[];
  /** When a waiting call may have room, so that an entry is needed; `null` = none before the next event. At once where it is past. */
  readonly nextAt: number | null;
  /** A new term has begun with this entry: every replica says `here`. */
  readonly beginsTerm: boolean;
}

/** The state as it is now. Takes about three milliseconds for a thousand calls that wait. */
export const snapshot = (state: SharedState): string => JSON.stringify(state, plain);

/** @throws SyntaxError for what `snapshot` did not write */
export function restore(text: string): SharedState {
  // What is JSON was written by `snapshot`.
  const state = JSON.parse(text, revived) as SharedState;
  for (const { leases, tickets } of state.buckets.values()) {
    for (const [token, lease] of leases) {
      const ticket = tickets.get(lease.ticket.id);
      // The bucket may have the ticket no more (the fate of its call is unknown), or another one of its name.
      if (ticket?.lease === token) leases.set(token, { ...lease, ticket });
    }
  }
  return state;
}

/** What JSON has no form for becomes an object of one member, which no state has. */
function plain(_name: string, value: unknown): unknown {
  if (value instanceof Map) return { $map: [...value] };
  if (value instanceof Set) return { $set: [...value] };
  if (value instanceof SortedNames)
    return { $sorted: value.names().map((name) => [name, value.scoreOf(name)]) };
  return value;
}

function revived(_name: string, value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if ('$map' in value) return new Map(value.$map as [unknown, unknown][]);
  if ('$set' in value) return new Set(value.$set as unknown[]);
  if (!('$sorted' in value)) return value;
  const names = new SortedNames();
  for (const [name, number] of value.$sorted as [string, number][]) names.set(name, number);
  return names;
}
