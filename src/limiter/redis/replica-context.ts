/** What all bucket sessions of a replica share. Data and ports only. */
import type { Clock } from '../../clock.ts';
import type { Telemetry } from '../../telemetry/telemetry.ts';
import type { Background } from './background.ts';
import type { EndedLeases } from './ended-leases.ts';
import type { LimiterListener } from '../limiter.ts';
import type { RedisHealth } from '../../redis/health.ts';
import type { Replica } from './replica.ts';
import type { Positioned } from './replica-calls.ts';
import type { ReplicaPositions } from './replica-positions.ts';

export interface ReplicaContext {
  readonly redis: RedisHealth;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly replica: Replica;
  readonly listener: LimiterListener;
  readonly positions: ReplicaPositions;
  readonly ended: EndedLeases;
  readonly background: Background;
  readonly recovery: Recovery;
  /** How long a lease lives without renewal, milliseconds. */
  readonly leaseMs: number;
  /** A ticket goes back to its lane while Redis is unavailable. True = another store has it now. */
  readonly onStranded: (admission: Positioned) => boolean;
}

/** What the latest recovery from an absence of Redis asks of every bucket, also of those that are first used after it. */
export interface Recovery {
  /**
   * Grants that Redis made before this time are returned (monotonic milliseconds): other replicas return later, with tickets that
   * stand before ours, and report then what they sent.
   */
  resumeAt: number | null;
  /** Since this time calls of an absence may be in flight that Redis does not know of; capped lanes wait one lease from then on. */
  overlapSince: number | null;
}
