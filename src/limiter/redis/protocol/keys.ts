/**
 * Names in Redis: the keys of a bucket, and the channel on which a replica receives its grants.
 *
 * All keys of one bucket share the hash tag `{bucket}`, so that one script may touch them in a Cluster. The number after
 * it is the layout of the data: replicas of a version with another layout must not read these. Every part that comes
 * from outside is an opaque keyed digest before it gets here.
 */
import type { BucketKey, ReplicaId } from '../../../ids.ts';

/**
 * Layout of the records behind the keys, and of messages about them: raised when either changes. `layout.test.ts` pins
 * what it stands for.
 */
export const layoutVersion = 7;

/** The keys of one bucket in the order in which every script takes them. */
export type BucketKeys = readonly [state: string, records: string, order: string, replicas: string];

export function bucketKeys(bucket: BucketKey): BucketKeys {
  const prefix = `sluice:{${bucket}}:${layoutVersion}:`;
  return [`${prefix}state`, `${prefix}records`, `${prefix}order`, `${prefix}replicas`];
}

/** Before a replica's id: the channel on which scripts publish what other replicas did for this one. */
export const replicaChannelPrefix = 'sluice:r:';

export const replicaChannel = (replica: ReplicaId): string => `${replicaChannelPrefix}${replica}`;

/**
 * The channel to which a replica is subscribed from its first answered heartbeat on. Nothing is sent on it: a new replica that
 * finds no data learns that others of its installation live (`presence.lua`). Channels know neither databases nor key prefixes.
 */
export const livingChannel = (of: { readonly database: number; readonly keyPrefix: string }): string =>
  `sluice:1:living:${of.database}:${of.keyPrefix}`;
