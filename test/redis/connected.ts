/** The product's connection to a Redis on this machine, which ends with its test. */
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { RedisSettings } from '../../src/config/settings.ts';
import { connectRedis, type RedisConnection } from '../../src/redis/connection.ts';
import { closers } from '../support/own-redis.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { until } from '../support/until.ts';

interface Connecting extends Partial<RedisSettings> {
  readonly port: number;
}

/** Resolves when the connection is ready, or at once where `onFailure` is to hear why it is not. */
export async function connected(
  { port, ...settings }: Connecting,
  onFailure?: (failure: unknown) => void,
  waits = onFailure === undefined,
): Promise<RedisConnection> {
  const redis = plainRedis({ nodes: [{ host: '127.0.0.1', port }], ...settings });
  const parts = { clock: systemClock, random: systemRandom };
  const connection = connectRedis(redis, parts, onFailure ?? (() => {}));
  closers.push(() => connection.close());
  if (waits) await until(() => connection.isReady());
  return connection;
}
