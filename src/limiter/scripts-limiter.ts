/** The limiter whose decisions scripts in Redis make. */
import { FailoverLimiter } from './failover/limiter.ts';
import type { LimiterOverRedis, LimiterParts } from './limiter-over-redis.ts';
import { BucketSessions } from './redis/bucket-sessions.ts';

export function limiterByScripts(parts: LimiterParts): LimiterOverRedis {
  const limiter = new FailoverLimiter({
    ...parts,
    replicas: () => parts.replica.count(),
    createRemote: (onStranded) => new BucketSessions({ ...parts, onStranded }),
  });
  const { remote } = limiter;
  return {
    limiter,
    start: () => remote.start(),
    hear: (text) => remote.hear(text),
    catchUp: () => remote.catchUp(),
    onLoss: () => remote.onLoss(),
    check: () => remote.check(),
  };
}
