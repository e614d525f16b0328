/**
 * Tries the Redis of a configuration once, for `sluice check --connect`: connects, reads the server's version and settings, runs a
 * script that writes a key with an expiry of one second, and publishes to a channel without subscribers. Owns: what is tried. Does
 * not own: the text for the terminal (`cli/`).
 */
import type { Clock, Random } from '../../clock.ts';
import type { RedisSettings } from '../../config/settings.ts';
import { connectRedis, isReadyWithin, type RedisConnection } from '../../redis/connection.ts';
import { redisTrouble, requireUsable, type RedisTrouble, troubleOf } from '../../redis/trouble.policy.ts';

/**
 * How long to wait for a connection. TLS to a server without TLS fails after 2 s, and name resolution may take time before.
 * Milliseconds.
 */
const patienceMs = 4_000;
const keyLifeMs = 1_000;

/** Resolves with why Redis cannot be used, `null` = it can. Leaves no connection. */
export async function tryRedis(
  settings: RedisSettings,
  ports: { readonly clock: Clock; readonly random: Random },
): Promise<RedisTrouble | null> {
  let trouble: RedisTrouble | null = null;
  const note = (failure: unknown): void => void (trouble = redisTrouble(failure) ?? trouble);
  const connection = connectRedis(settings, ports, note);
  try {
    if (!(await isReadyWithin(connection, patienceMs, ports.clock))) return trouble ?? troubleOf('unknown');
    requireUsable(await connection.info());
    await connection.reachAll();
    await useIt(connection, ports.random.hex(16));
    return trouble;
  } catch (failure) {
    note(failure);
    return trouble ?? troubleOf('unknown');
  } finally {
    connection.close();
  }
}

async function useIt({ client }: RedisConnection, name: string): Promise<void> {
  const script = "return redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])";
  await client.eval(script, 1, `sluice:{check}:${name}`, keyLifeMs);
  await client.publish(`sluice:r:check-${name}`, '');
}
