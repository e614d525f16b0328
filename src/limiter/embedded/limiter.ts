/** The limiter of one process: the one that replicas share, over logs in memory that nobody else follows. */
import type { Clock } from '../../clock.ts';
import { replicaId } from '../../ids.ts';
import { MemoryLog } from '../../log/memory-log.ts';
import { defaultLeaseMs, type LimiterListener } from '../limiter.ts';
import { SharedLimiter, type SharedLimiterParts } from '../over-log/limiter.ts';
import type { LogEvent } from '../over-log/state.ts';

const replica = replicaId('embedded');

/** Without `onFailure`, a failure of the scheduler is thrown. */
export type EmbeddedLimiterOptions = Partial<Pick<SharedLimiterParts, 'onLeaseLost' | 'onFailure'>> & {
  /** How long a lease lives, milliseconds. */
  readonly leaseMs?: number | undefined;
};

export const createEmbeddedLimiter = (
  clock: Clock,
  listener: LimiterListener,
  { leaseMs = defaultLeaseMs, onFailure = fail, onLeaseLost = () => {} }: EmbeddedLimiterOptions = {},
): SharedLimiter =>
  new SharedLimiter({
    clock,
    listener,
    leaseMs,
    replica,
    onFailure,
    replicas: () => 1,
    openLog: () => new MemoryLog<LogEvent>({ clock, replica }),
    isKeptElsewhere: false,
    // What follows is for a log that may be away, or that others follow.
    guard: null,
    whenDown: () => 'deny',
    restoreSends: () => Promise.resolve(),
    onLeaseLost,
  });

function fail(failure: unknown): never {
  throw failure;
}
