/** The stores of a process, and what they are built of. `stores.ts` chooses. */
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import type { RedisTrouble } from '../redis/trouble.policy.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import type { CreateMap } from '../replicated/shared-map.ts';
import type { Ceilings } from './ceilings.ts';
import type { EstimateStore } from './estimate-store.ts';
import type { RedisContact } from './when-down.ts';
import type { Limiter, LimiterListener } from './limiter.ts';

export interface Stores {
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  readonly estimates: EstimateStore;
  /** Makes a map of small values, which all replicas share. */
  readonly createMap: CreateMap;
  /**
   * Resolves when calls may be taken. Rejects with a message for the operator when Redis answers but cannot be used. When Redis
   * does not answer, calls are taken in the mode configured for that, and Redis is used as soon as it answers.
   */
  ready(): Promise<void>;
  /** Why Redis is away; `null` while it is not, or where none is configured. */
  trouble(): RedisTrouble | null;
  /** Whether this replica has ever reached Redis, and what it does until then. */
  contact(): RedisContact;
  close(): Promise<void>;
}

export interface StoreParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  /** Replaces the life of a lease, milliseconds. */
  readonly leaseMs?: number;
}
