/**
 * Tokens that replicas share over Redis: the sealed texts, the lock of the replica that renews, messages about new and refused tokens.
 * All of it uses a separate connection, opened with the first token, so that no renewal delays an admission.
 *
 * Owns: keys, commands, the connection. Does not own: what is sealed and when (`shared-tokens.ts`).
 * Keeps: every operation ends within a few seconds; one that fails is `null` or `false`, never thrown.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { connectRedis, type RedisConnection } from '../redis/connection.ts';
import type { TokenStore } from './shared-tokens.ts';

/** How long the first operation waits for the connection. Milliseconds. */
const connectWithinMs = 2_000;
const connectPollMs = 10;
const channel = 'sluice:1:tokens';

const tokenKey = (name: string): string => `sluice:{token:${name}}:1:sealed`;
const renewalKey = (name: string): string => `sluice:{token:${name}}:1:renewal`;

export interface RedisTokensParts {
  readonly settings: RedisSettings;
  readonly clock: Clock;
  readonly random: Random;
  readonly onError: () => void;
  /** Another replica, or this one, has stored a token under this name. */
  readonly onStored: (name: string) => void;
  /** An upstream has refused the token of this name that has this mark. */
  readonly onRefused: (name: string, mark: string) => void;
}

export class RedisTokens implements TokenStore {
  readonly #parts: RedisTokensParts;
  #connection: RedisConnection | null = null;
  #isClosed = false;

  constructor(parts: RedisTokensParts) {
    this.#parts = parts;
  }

  read(name: string): ReturnType<TokenStore['read']> {
    return this.#try(null, async ({ client }) => {
      const replies = await client.multi().get(tokenKey(name)).pttl(tokenKey(name)).exec();
      const [sealed, leftMs] = (replies ?? []).map(([, reply]) => reply);
      if (typeof sealed !== 'string' || typeof leftMs !== 'number' || leftMs <= 0) return { kind: 'none' };
      return { kind: 'sealed', text: sealed, leftMs };
    });
  }

  async store(name: string, text: string, lifeMs: number): Promise<void> {
    await this.#try(null, async ({ client }) => {
      await client.set(tokenKey(name), text, 'PX', Math.max(1, Math.floor(lifeMs)));
      await client.publish(channel, name);
    });
  }

  begin(name: string, withinMs: number): ReturnType<TokenStore['begin']> {
    return this.#try(
      null,
      async ({ client }) => (await client.set(renewalKey(name), '1', 'PX', withinMs, 'NX')) === 'OK',
    );
  }

  async reportRefused(name: string, mark: string): Promise<void> {
    await this.#try(null, async ({ client }) => void (await client.publish(channel, `${name} ${mark}`)));
  }

  async end(name: string): Promise<void> {
    await this.#try(null, async ({ client }) => void (await client.del(renewalKey(name))));
  }

  close(): void {
    this.#isClosed = true;
    this.#connection?.close();
  }

  async #try<T>(otherwise: null, run: (connection: RedisConnection) => Promise<T>): Promise<T | null> {
    try {
      const connection = await this.#connected();
      return connection === null ? otherwise : await run(connection);
    } catch {
      this.#parts.onError();
      return otherwise;
    }
  }

  async #connected(): Promise<RedisConnection | null> {
    const { clock } = this.#parts;
    if (this.#isClosed) return null;
    const connection = (this.#connection ??= this.#connect());
    for (const until = clock.monotonic() + connectWithinMs; !connection.isReady();) {
      if (this.#isClosed || clock.monotonic() > until) return null;
      await new Promise<void>((resolve) => void clock.after(connectPollMs, resolve));
    }
    return connection;
  }

  #connect(): RedisConnection {
    const { settings, clock, random, onError, onStored, onRefused } = this.#parts;
    const connection = connectRedis(settings, { clock, random }, onError);
    const onMessage = (text: string): void => {
      const [name = '', mark] = text.split(' ');
      if (mark === undefined) onStored(name);
      else onRefused(name, mark);
    };
    connection.subscribe(channel, { onMessage, onReady: () => {}, onError });
    return connection;
  }
}
