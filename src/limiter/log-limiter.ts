/** The limiter over logs that Redis orders and every replica folds. */
import type { Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { RedisLog } from '../log/redis-log.ts';
import type { RedisConnection } from '../redis/connection.ts';
import type { LimiterOverRedis, LimiterParts } from './limiter-over-redis.ts';
import { RestoredRedis } from './restored-redis.ts';
import { RedisLaneGuard } from './shared/lane-guard.ts';
import { SharedLimiter } from './shared/limiter.ts';
import { readEvent } from './shared/read-event.ts';
import type { LogEvent } from './shared/state.ts';

/** Goes up with every change after which equal entries no longer do the same: two folds never read one log. */
const foldVersion = '4';

export interface LogLimiterParts extends LimiterParts {
  readonly connection: RedisConnection;
  readonly random: Random;
  readonly settings: Pick<RedisSettings, 'database' | 'keyPrefix'>;
}

export function limiterByLog(parts: LogLimiterParts): LimiterOverRedis {
  const { clock, connection, leaseMs, listener, random, replica, settings, telemetry, whenDown } = parts;
  const { database, keyPrefix } = settings;
  const restore = (): Promise<unknown> =>
    parts
      .beforeResume()
      .catch((failure: unknown) => telemetry.log.bug('sends could not be put back', failure));
  const redis = new RestoredRedis(parts.redis, restore, (isUp) =>
    telemetry.limiterMode(isUp ? 'redis' : whenDown),
  );
  const limiter = new SharedLimiter({
    clock,
    leaseMs,
    listener,
    whenDown,
    replica: replica.id,
    replicas: () => replica.count(),
    guard: new RedisLaneGuard(parts.redis),
    restoreSends: () => redis.restoreSends(),
    onFailure: (failure) => telemetry.log.bug('the scheduler failed in a bucket, which was emptied', failure),
    onLeaseLost: (reason) => telemetry.leaseLost(reason),
    openLog: (key) =>
      new RedisLog<LogEvent>({
        redis,
        connection,
        clock,
        random,
        readEvent,
        name: { digest: key, version: foldVersion, database, keyPrefix },
        replica: replica.id,
        actsAlone: whenDown === 'local',
        log: telemetry.log,
      }),
  });
  // The logs themselves notice what they missed and what was lost.
  return {
    limiter,
    start() {},
    hear() {},
    catchUp() {},
    onLoss() {},
    check: () => Promise.resolve('whole'),
  };
}
