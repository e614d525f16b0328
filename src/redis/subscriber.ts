/**
 * The connection of a subscriber, made again whenever it ends.
 *
 * Owns: when the next connection is made. Does not own: whether it hears (`subscription.ts`), where it connects (`connection.ts`).
 */
import { Redis, type Cluster, type RedisOptions } from 'ioredis';
import type { Clock, Random } from '../clock.ts';
import { listen, type SubscriptionListener } from './subscription.ts';

export const maxRetryMs = 500;

/** Pause before the next attempt to connect, after this many attempts, milliseconds. Its second half is random. */
export const retryMs = (attempts: number, random: Random): number =>
  Math.min(maxRetryMs, 20 * 2 ** Math.min(attempts, 10)) * (0.5 + random.next() / 2);

/** An established connection that is lost counts as this many attempts, so that its pause is not the shortest. */
export const retriesOfLost = 4;

/**
 * How long messages are left unread that nobody waits for, milliseconds. To be woken for each message costs a process many times what the
 * message itself does.
 */
const unreadMs = 20;

export interface SubscriberParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly channel: string;
  readonly hear: SubscriptionListener & { readonly onError: (failure: unknown) => void };
  /** Further channels on the same connection. Each new connection subscribes to those known by then. */
  readonly joined: ReadonlyMap<string, SubscriptionListener>;
  /** The connection of the commands. */
  readonly client: Redis | Cluster;
  /** Where to connect; asked for each connection. */
  readonly options: () => RedisOptions & { replyMapping?: 'legacy' };
}

export class Subscriber {
  readonly #parts: SubscriberParts;
  #open: Redis | null = null;
  #cancel = (): void => {};
  #cancelUnread = (): void => {};
  #isClosed = false;

  constructor(parts: SubscriberParts) {
    this.#parts = parts;
  }

  begin(): void {
    const { client, channel, hear, clock, options } = this.#parts;
    if (this.#isClosed) return;
    // Where the commands do not get through, grants do not come either.
    if (client.status !== 'ready') {
      client.once('ready', () => this.begin());
      return;
    }
    const socket = new Redis<'legacy'>({
      ...options(),
      connectionName: 'sluice-grants',
      retryStrategy: () => null,
      lazyConnect: true,
    });
    this.#open = socket;
    socket.on('error', hear.onError);
    socket.on('end', () => this.#lost(socket));
    socket
      .connect()
      .then(() => {
        socket.on('message', (from: string, text: string) => {
          this.#parts.joined.get(from)?.onMessage(text);
          this.#readOnLater(socket);
        });
        for (const each of this.#parts.joined.keys()) this.#join(socket, each);
        return listen(socket, channel, { publisher: client, listener: hear, clock });
      })
      .catch((failure: unknown) => {
        hear.onError(failure);
        socket.disconnect();
      });
  }

  /** One more of the channels that are joined. */
  join(channel: string): void {
    if (this.#open?.status === 'ready') this.#join(this.#open, channel);
  }

  /** One less of them. */
  leave(channel: string): void {
    // A connection that fails at this is closed by what fails on it next.
    if (this.#open?.status === 'ready') this.#open.unsubscribe(channel).catch(() => {});
  }

  close(): void {
    this.#isClosed = true;
    this.#cancel();
    this.#cancelUnread();
    this.#open?.disconnect();
  }

  /** A refused subscription is reported; the other channels go on without this one. */
  #join(socket: Redis, channel: string): void {
    socket.subscribe(channel).then(
      () => this.#parts.joined.get(channel)?.onReady(),
      (failure: unknown) => {
        if (socket.status === 'ready') this.#parts.hear.onError(failure);
      },
    );
  }

  #readOnLater({ stream }: Redis): void {
    const { hear, joined, clock } = this.#parts;
    if (stream.isPaused()) return;
    for (const { mayWait } of [hear, ...joined.values()]) if (mayWait?.() !== true) return;
    stream.pause();
    this.#cancelUnread = clock.after(unreadMs, () => stream.resume());
  }

  #lost(socket: Redis): void {
    this.#cancel();
    this.#cancelUnread();
    if (this.#open !== socket || this.#isClosed) return;
    const { clock, random } = this.#parts;
    this.#cancel = clock.after(retryMs(retriesOfLost, random), () => this.begin());
  }
}
