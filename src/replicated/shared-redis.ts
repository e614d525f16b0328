/**
 * The connection over which the features share what they know, apart from that of the limiter, so that a large response does not
 * delay an admission. It is opened when it is first needed.
 *
 * Keeps: every operation ends within a few seconds; one that fails is `null` and counted, never thrown.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { connectRedis, type RedisConnection } from '../redis/connection.ts';

/** How long an operation waits for the connection, and each command for its reply. Milliseconds. */
const connectWithinMs = 1_000;
const connectPollMs = 10;
const commandMs = 2_000;

export interface SharedRedisParts {
  readonly settings: RedisSettings;
  readonly clock: Clock;
  readonly random: Random;
  readonly onError: () => void;
}

export class SharedRedis {
  readonly #parts: SharedRedisParts;
  readonly #listeners = new Map<string, (text: string) => void>();
  #connection: RedisConnection | null = null;
  #isClosed = false;

  constructor(parts: SharedRedisParts) {
    this.#parts = parts;
  }

  /** Opens the connection, so that the first operation does not wait for it. */
  connect(): void {
    const { clock, settings, random, onError } = this.#parts;
    if (this.#isClosed || this.#connection !== null) return;
    this.#connection = connectRedis({ ...settings, commandTimeoutMs: commandMs }, { clock, random }, onError);
    for (const channel of this.#listeners.keys()) this.#subscribe(this.#connection, channel);
  }

  /** Calls back with every message of the channel, from the first operation on. */
  listen(channel: string, onMessage: (text: string) => void): void {
    this.#listeners.set(channel, onMessage);
    if (this.#connection !== null) this.#subscribe(this.#connection, channel);
  }

  /** What `run` resolves with; `null` when there is no connection, or it rejects. */
  async try<T>(run: (client: RedisConnection['client']) => Promise<T>): Promise<T | null> {
    try {
      const connection = await this.#connected();
      return connection === null ? null : await run(connection.client);
    } catch {
      this.#parts.onError();
      return null;
    }
  }

  close(): void {
    this.#isClosed = true;
    this.#connection?.close();
  }

  #subscribe(connection: RedisConnection, channel: string): void {
    const onMessage = (text: string): void => this.#listeners.get(channel)?.(text);
    connection.subscribe(channel, { onMessage, onReady: () => {}, onError: this.#parts.onError });
  }

  async #connected(): Promise<RedisConnection | null> {
    const { clock } = this.#parts;
    this.connect();
    const connection = this.#connection;
    if (connection === null) return null;
    for (const until = clock.monotonic() + connectWithinMs; !connection.isReady();) {
      if (this.#isClosed || clock.monotonic() > until) return null;
      await new Promise<void>((resolve) => void clock.after(connectPollMs, resolve));
    }
    return this.#isClosed ? null : connection;
  }
}
