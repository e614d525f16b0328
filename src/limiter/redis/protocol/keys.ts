/**
 * Names in Redis: the keys of a bucket, and the channel on which a replica receives its grants.
 *
 * All keys of one bucket share the hash tag `{bucket}`, so that one script may touch them in a Cluster. The number after
 * it is the layout of the data, so that replicas of a version with another layout do not read these keys. Every part that
 * comes from outside has been made a keyed digest before.
 */
import type { BucketKey, ReplicaId } from '../../../ids.ts';

/** Layout of the records behind the keys and of the messages about them: raised when either changes. `layout.test.ts` pins both. */
export const layoutVersion = 7;

/** The keys of one bucket in the order in which every script takes them. */
export type BucketKeys = readonly [state: string, records: string, order: string, replicas: string];

export function bucketKeys(bucket: BucketKey): BucketKeys {
  const prefix = `sluice:{${bucket}}:${layoutVersion}:`;
  return [`${prefix}state`, `${prefix}records`, `${prefix}order`, `${prefix}replicas`];
}

/** Prefix of a replica's channel, on which scripts publish what other replicas' events did for it. */
export const replicaChannelPrefix = 'sluice:r:';

export const replicaChannel = (replica: ReplicaId): string => `${replicaChannelPrefix}${replica}`;

/**
 * The channel to which a replica is subscribed from its first answered heartbeat on. Nothing is published on it: its
 * subscriptions show a new replica that finds no data that others of its installation are running (`presence.lua`). The name has
 * database and key prefix, because channels belong to no database.
 */
export const livingChannel = (of: { readonly database: number; readonly keyPrefix: string }): string =>
  `sluice:2:living:${of.database}:${of.keyPrefix}`;
