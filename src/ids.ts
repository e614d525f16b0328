/**
 * Names of what the limiter keeps. An id of one kind never passes for an id of another kind, nor does a plain word: each is
 * made by the function of its kind, where the name is coined (a digest, a random word) or read from Redis, and nowhere else.
 */
declare const kind: unique symbol;
type Id<Kind extends string> = string & { readonly [kind]: Kind };

/** Opaque keyed digest naming a bucket; safe for Redis and logs. */
export type BucketKey = Id<'bucket'>;
/** Opaque keyed digest naming a workspace inside a bucket. */
export type LaneKey = Id<'lane'>;
/** Names a call in its lane, kept over resends. */
export type TicketId = Id<'ticket'>;
/** Owner token of a lease: only its owner can settle. */
export type LeaseToken = Id<'lease'>;
/** Opaque keyed digest of workspace and upstream. */
export type CeilingKey = Id<'ceiling'>;
/** Opaque, new with every start of the process. */
export type ReplicaId = Id<'replica'>;

export const bucketKey = (word: string): BucketKey => word as BucketKey;
export const laneKey = (word: string): LaneKey => word as LaneKey;
export const ticketId = (word: string): TicketId => word as TicketId;
export const leaseToken = (word: string): LeaseToken => word as LeaseToken;
export const ceilingKey = (word: string): CeilingKey => word as CeilingKey;
export const replicaId = (word: string): ReplicaId => word as ReplicaId;
