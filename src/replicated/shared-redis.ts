/**
 * The connection over which the features share what may be large, apart from that of the limiter, so that it does not delay an
 * admission.
 *
 * Keeps: every operation ends within a few seconds; one that fails is `null` and counted, never thrown.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { connectRedis, isReadyWithin, type RedisConnection } from '../redis/connection.ts';
import type { MapRedis } from './redis-map.ts';

/** How long an operation waits for the connection, and each command for its reply. Milliseconds. */
const connectWithinMs = 1_000;
const commandMs = 2_000;

export interface SharedRedisParts {
  readonly settings: RedisSettings;
  readonly clock: Clock;
  readonly random: Random;
  readonly onError: () => void;
}

export class SharedRedis implements MapRedis {
  readonly scope: string;
  readonly listen: MapRedis['listen'];
  readonly #parts: SharedRedisParts;
  readonly #connection: RedisConnection;
  #isClosed = false;

  constructor(parts: SharedRedisParts) {
    const { settings, onError } = parts;
    const connection = connectRedis({ ...settings, commandTimeoutMs: commandMs }, parts, onError);
    this.#parts = parts;
    this.#connection = connection;
    this.scope = `${settings.database}:${settings.keyPrefix}`;
    this.listen = (channel, listener) => void connection.subscribe(channel, listener);
  }

  async try<T>(run: (client: RedisConnection['client']) => Promise<T>): Promise<T | null> {
    try {
      const isReady = await isReadyWithin(this.#connection, connectWithinMs, this.#parts.clock);
      return isReady && !this.#isClosed ? await run(this.#connection.client) : null;
    } catch {
      this.#parts.onError();
      return null;
    }
  }

  close(): void {
    this.#isClosed = true;
    this.#connection.close();
  }
}
