/** The limiter that replicas share over Redis, and what is to be told to it beside what it asks Redis itself. Types only. */
import type { Clock } from '../clock.ts';
import type { RedisHealth } from '../redis/health.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import type { WhenDown } from './failover/when-down.ts';
import type { Limiter, LimiterListener } from './limiter.ts';
import type { Presence } from './redis/presence.ts';
import type { Found } from './redis/replica.ts';

export interface LimiterOverRedis {
  readonly limiter: Limiter;
  /** The first contact with Redis was made, or has failed. */
  start(): void;
  /** A message on this replica's channel that no other store knows, of a server of which it is known what it has. */
  hear(text: string): void;
  /** Messages may have been missed. */
  catchUp(): void;
  /** Redis lost what it held. */
  onLoss(): void;
  /** Whether Redis has all that this replica holds there; `null` = it could not be found out. */
  check(): Promise<Found | null>;
}

export interface LimiterParts {
  readonly redis: RedisHealth;
  readonly replica: Presence;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  readonly whenDown: WhenDown;
  /** How long a lease lives, milliseconds. */
  readonly leaseMs: number;
  /** Awaited before calls go by Redis again after it was away. */
  readonly beforeResume: () => Promise<unknown>;
}
