/**
 * Names of what the limiter keeps. An id of one kind never passes for an id of another kind, nor does a plain word: each is
 * made by the function of its kind, where the name is coined (a digest, a random word) or read from Redis, and nowhere else.
 */
declare const kind: unique symbol;
type Id<Kind extends string> = string & { readonly [kind]: Kind };

/**
 * Opaque name of a bucket, safe for Redis and logs: the name of its log, a dot, and a keyed digest. So calls whose bucket was joined
 * into one of another credential find the log of that bucket.
 */
export type BucketKey = Id<'bucket'>;
/** Opaque keyed digest of an upstream and a credential for it: their buckets share one log. */
export type LogKey = Id<'log'>;
/** Opaque keyed digest naming a workspace inside a bucket. */
export type LaneKey = Id<'lane'>;
/** Opaque keyed digest naming a caller of a workspace: `c_` and hexadecimal digits. */
export type CallerKey = Id<'caller'>;
/** Names a call in its lane, kept over resends. */
export type TicketId = Id<'ticket'>;
/** Owner token of a lease: only its owner can settle. */
export type LeaseToken = Id<'lease'>;
/** Opaque keyed digest of workspace and upstream. */
export type CeilingKey = Id<'ceiling'>;
/** Opaque, new with every start of the process. */
export type ReplicaId = Id<'replica'>;

export const bucketKey = (word: string): BucketKey => word as BucketKey;
export const logKey = (word: string): LogKey => word as LogKey;
/** The log that the bucket is in; a name without a dot names both. */
export function logOf(bucket: BucketKey): LogKey {
  const dot = bucket.indexOf('.');
  return logKey(dot < 0 ? bucket : bucket.slice(0, dot));
}
export const laneKey = (word: string): LaneKey => word as LaneKey;
export const callerKey = (word: string): CallerKey => word as CallerKey;
const background = '.background';
/** A workspace's background calls have a lane of their own beside its first one. */
export const backgroundLane = (lane: LaneKey): LaneKey => laneKey(lane + background);
export const isBackground = (lane: LaneKey): boolean => lane.endsWith(background);
/** Of the background lane the workspace's first one, and the reverse. */
export const twinOf = (lane: LaneKey): LaneKey =>
  isBackground(lane) ? laneKey(lane.slice(0, -background.length)) : backgroundLane(lane);
export const ticketId = (word: string): TicketId => word as TicketId;
export const leaseToken = (word: string): LeaseToken => word as LeaseToken;
export const ceilingKey = (word: string): CeilingKey => word as CeilingKey;
export const replicaId = (word: string): ReplicaId => word as ReplicaId;
