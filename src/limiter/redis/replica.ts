/** This replica among the others, as the parts over Redis see it. A port: `presence.ts` keeps it. */
import type { ReplicaId } from '../../ids.ts';
import type { RedisClient } from '../../redis/connection.ts';

/** What a check of everything that this replica holds in Redis came to. */
export type Found = 'whole' | 'missing';

export interface Replica {
  readonly id: ReplicaId;
  /** Number of live replicas, this one included. At least 1; stays as it is while Redis is unavailable. */
  count(): number;
  /**
   * Monotonic milliseconds at which the hold of serialized calls began, the same for all replicas: with the first of the losses
   * that came within a lease of one another's hold. `null` = no loss in this time.
   */
  heldSince(): number | null;
  /** How many losses this replica has noticed. */
  losses(): number;
  /** Sends a heartbeat now, and learns of losses of data. `comesBack`: this replica was without Redis. */
  beat(client: RedisClient, comesBack?: boolean): Promise<void>;
  /** Rejects when the server that serves now cannot be used. */
  checkServer(): Promise<void>;
  onLoss(watcher: () => void): void;
  /** Beats once a second from now on. */
  start(run: (beat: (client: RedisClient) => Promise<void>) => Promise<void>): void;
  close(): void;
}
