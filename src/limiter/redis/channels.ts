/** Channels in Redis. */
import type { ReplicaId } from '../../ids.ts';

/** On which a replica hears what other replicas have to say to it. */
export const replicaChannel = (replica: ReplicaId): string => `sluice:r:${replica}`;

/**
 * The channel to which a replica is subscribed from its first answered heartbeat on. Nothing is published on it: its
 * subscriptions show a new replica that finds no data that others of its installation are running (`presence.lua`). The name has
 * database and key prefix, because channels belong to no database.
 */
export const livingChannel = (of: { readonly database: number; readonly keyPrefix: string }): string =>
  `sluice:2:living:${of.database}:${of.keyPrefix}`;
