/** The limiter of several replicas: over logs that Redis orders and every replica folds. */
import type { Clock, Random } from '../../clock.ts';
import type { RedisSettings } from '../../config/settings.ts';
import { RedisLog } from '../../log/redis-log.ts';
import type { RedisConnection } from '../../redis/connection.ts';
import type { RedisHealth } from '../../redis/health.ts';
import type { Telemetry } from '../../telemetry/telemetry.ts';
import type { LimiterListener } from '../limiter.ts';
import type { WhenDown } from '../failover/when-down.ts';
import { RedisLaneGuard } from '../over-log/lane-guard.ts';
import { SharedLimiter } from '../over-log/limiter.ts';
import { readEvent } from '../over-log/read-event.ts';
import type { LogEvent } from '../over-log/state.ts';
import type { Presence } from './presence.ts';
import { RestoredRedis } from './restored-redis.ts';

/** Goes up with every change after which equal entries no longer do the same: two folds never read one log. */
const foldVersion = '13';

export interface RedisLimiterParts {
  readonly connection: RedisConnection;
  readonly redis: RedisHealth;
  readonly replica: Pick<Presence, 'id' | 'count'>;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  readonly settings: Pick<RedisSettings, 'database' | 'keyPrefix' | 'whenDown'>;
  /** What this replica does while Redis is unavailable. */
  readonly whenDown: () => WhenDown;
  /** How long a lease lives, milliseconds. */
  readonly leaseMs: number;
  /** Awaited before calls go by Redis again after it was away. */
  readonly beforeResume: () => Promise<unknown>;
}

export function createRedisLimiter(parts: RedisLimiterParts): SharedLimiter {
  const { beforeResume, clock, connection, leaseMs, listener, random, replica, telemetry, whenDown } = parts;
  const { database, keyPrefix } = parts.settings;
  const restore = (): Promise<unknown> =>
    beforeResume().catch((failure: unknown) => telemetry.log.bug('sends could not be put back', failure));
  const redis = new RestoredRedis(parts.redis, restore, (isUp) =>
    telemetry.limiterMode(isUp ? 'redis' : whenDown()),
  );
  return new SharedLimiter({
    clock,
    leaseMs,
    listener,
    whenDown,
    replica: replica.id,
    replicas: () => replica.count(),
    guard: new RedisLaneGuard(parts.redis),
    onFailure: (failure) => telemetry.log.bug('the scheduler failed in a bucket, which was emptied', failure),
    restoreSends: () => redis.restoreSends(),
    onLeaseLost: (reason) => telemetry.leaseLost(reason),
    openLog: (key) =>
      new RedisLog<LogEvent>({
        redis,
        connection,
        clock,
        random,
        readEvent,
        actsAlone: parts.settings.whenDown === 'local',
        name: { digest: key, version: foldVersion, database, keyPrefix },
        replica: replica.id,
        log: telemetry.log,
      }),
  });
}
