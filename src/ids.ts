/**
 * Names of what the limiter keeps. Types only: an id of one kind never passes for an id of another kind, while a plain word
 * may become an id of any kind, where it is made (a digest, a random word) or read from Redis.
 */
declare const kind: unique symbol;
type Id<Kind extends string> = string & { readonly [kind]?: Kind };

/** Opaque keyed digest naming a bucket; safe for Redis and logs. */
export type BucketKey = Id<'bucket'>;
/** Opaque keyed digest naming a workspace inside a bucket. */
export type LaneKey = Id<'lane'>;
/** Names a call in its lane, kept over resends. */
export type TicketId = Id<'ticket'>;
/** Owner token of a lease: only its holder can settle. */
export type LeaseToken = Id<'lease'>;
/** Opaque keyed digest of workspace and upstream. */
export type CeilingKey = Id<'ceiling'>;
/** Opaque, new with every start of the process. */
export type ReplicaId = Id<'replica'>;
