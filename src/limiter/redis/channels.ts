/** Channels in Redis. */
import type { ReplicaId } from '../../ids.ts';

/** On which a replica hears what other replicas have to say to it. */
export const replicaChannel = (replica: ReplicaId): string => `sluice:r:${replica}`;
