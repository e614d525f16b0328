/** The limiter of several replicas: over logs that Redis orders and every replica folds. */
import type { Random } from '../../clock.ts';
import type { RedisSettings } from '../../config/settings.ts';
import { RedisLog } from '../../log/redis-log.ts';
import type { RedisConnection } from '../../redis/connection.ts';
import type { RedisHealth } from '../../redis/health.ts';
import type { Telemetry } from '../../telemetry/telemetry.ts';
import { RedisLaneGuard } from '../over-log/lane-guard.ts';
import { SharedLimiter, type SharedLimiterParts } from '../over-log/limiter.ts';
import { type LogEvent, readEvent } from '../over-log/state.ts';

/** Goes up with every change after which equal entries no longer do the same: two folds never read one log. */
const foldVersion = '23';

export interface RedisLimiterParts
  extends
    Pick<RedisSettings, 'database' | 'keyPrefix'>,
    Omit<SharedLimiterParts, 'guard' | 'onFailure' | 'onLeaseLost' | 'openLog'> {
  readonly connection: RedisConnection;
  readonly redis: RedisHealth;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** While Redis is away, this replica does what the others have to hear of. */
  readonly actsAlone: boolean;
}

export function createRedisLimiter(parts: RedisLimiterParts): SharedLimiter {
  const { actsAlone, clock, connection, database, keyPrefix, random, redis, replica, telemetry } = parts;
  const { log } = telemetry;
  return new SharedLimiter({
    ...parts,
    guard: new RedisLaneGuard(redis),
    onFailure: (failure) => log.bug('the scheduler failed in a bucket, which was emptied', failure),
    onLeaseLost: (reason) => telemetry.leaseLost(reason),
    openLog: (key) => {
      const name = { digest: key, version: foldVersion, database, keyPrefix };
      return new RedisLog<LogEvent>({
        redis,
        connection,
        clock,
        random,
        readEvent,
        actsAlone,
        name,
        replica,
        log,
      });
    },
  });
}
