/**
 * The connection over which the features share what may be large, apart from that of the limiter, so that it does not delay an
 * admission.
 *
 * Keeps: every operation ends within a few seconds; one that fails is `null` and counted, never thrown.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { connectRedis, isReadyWithin } from '../redis/connection.ts';
import type { MapRedis } from './redis-map.ts';

/** How long an operation waits for the connection, and each command for its reply. Milliseconds. */
const connectWithinMs = 1_000;
const commandMs = 2_000;

export function createSharedRedis(
  settings: RedisSettings,
  parts: { readonly clock: Clock; readonly random: Random },
  onError: () => void,
): MapRedis & { close(): void } {
  const connection = connectRedis({ ...settings, commandTimeoutMs: commandMs }, parts, onError);
  let isClosed = false;
  return {
    scope: `${settings.database}:${settings.keyPrefix}`,
    listen: (channel, onMessage) => void connection.subscribe(channel, { onMessage, onReady() {} }),
    async try(run) {
      try {
        const isReady = await isReadyWithin(connection, connectWithinMs, parts.clock);
        return isReady && !isClosed ? await run(connection.client) : null;
      } catch {
        onError();
        return null;
      }
    },
    close() {
      isClosed = true;
      connection.close();
    },
  };
}
