/** The product's connection to a Redis on this machine, and what watches over it. */
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { RedisSettings } from '../../src/config/settings.ts';
import { connectRedis } from '../../src/redis/connection.ts';
import { RedisHealth } from '../../src/redis/health.ts';
import { noTelemetry } from './no-telemetry.ts';
import { plainRedis } from './plain-redis.ts';
import { until } from './until.ts';

/** Resolves when it is connected. A command may take longer than a busy machine keeps anybody waiting. */
export async function startHealth(
  { port, ...settings }: { readonly port: number } & Partial<RedisSettings>,
  parts: Partial<ConstructorParameters<typeof RedisHealth>[0]> = {},
) {
  const commandTimeoutMs = 2_000;
  const redis = plainRedis({ nodes: [{ host: '127.0.0.1', port }], commandTimeoutMs, ...settings });
  const connection = connectRedis(redis, { clock: systemClock, random: systemRandom }, () => {});
  await until(() => connection.isReady());
  const health = new RedisHealth({
    connection,
    clock: systemClock,
    telemetry: noTelemetry,
    commandTimeoutMs,
    tripsOnPermanentError: false,
    check: async () => void (await connection.client.ping()),
    ...parts,
  });
  const close = (): void => {
    health.close();
    connection.close();
  };
  return { health, connection, close };
}
