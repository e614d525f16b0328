/**
 * The connection of a replica's subscriptions, made again whenever it ends.
 *
 * A ping twice a second makes a reply due, so that a dead socket is noticed. That each message arrives is not proved: who follows a log
 * gets what it lacks with the reply to its next append.
 */
import { Redis, type Cluster, type RedisOptions } from 'ioredis';
import type { Clock, Random } from '../clock.ts';

export const maxRetryMs = 500;

/** Pause before the next attempt to connect, after this many attempts, milliseconds. Its second half is random. */
export const retryMs = (attempts: number, random: Random): number =>
  Math.min(maxRetryMs, 20 * 2 ** Math.min(attempts, 10)) * (0.5 + random.next() / 2);

/** An established connection that is lost counts as this many attempts, so that its pause is not the shortest. */
export const retriesOfLost = 4;

const pingMs = 500;
/**
 * How long messages are left unread that nobody waits for, milliseconds. To be woken for each message costs a process many times what the
 * message itself does.
 */
const unreadMs = 20;

export interface SubscriptionListener {
  readonly onMessage: (text: string) => void;
  /** Messages come from here on; earlier ones may be missing. */
  readonly onReady: () => void;
  /** True while nobody here waits for a message, so that it may be read some milliseconds later. Left out: never. */
  readonly mayWait?: () => boolean;
}

export interface SubscriberParts {
  readonly clock: Clock;
  readonly random: Random;
  /** The connection of the commands. */
  readonly client: Redis | Cluster;
  /** The connection failed; it is made again. */
  readonly onError: (failure: unknown) => void;
  /** Where to connect; asked for each connection. */
  readonly options: () => RedisOptions & { replyMapping?: 'legacy' };
}

export class Subscriber {
  readonly #parts: SubscriberParts;
  /** By channel. Each new connection subscribes to those known by then. */
  readonly #listeners = new Map<string, SubscriptionListener>();
  #state: 'unused' | 'open' | 'closed' = 'unused';
  #socket: Redis | null = null;
  #cancelRetry = (): void => {};
  #cancelPing = (): void => {};
  /** What has come is read first, then the stream is paused for {@link unreadMs}. */
  #isPausing = false;
  #cancelUnread = (): void => {};

  constructor(parts: SubscriberParts) {
    this.#parts = parts;
  }

  /** Subscribes to a channel. Returns the function that ends it. */
  join(channel: string, listener: SubscriptionListener): () => void {
    this.#listeners.set(channel, listener);
    if (this.#socket?.status === 'ready') this.#subscribe(this.#socket, channel);
    else if (this.#state === 'unused') this.#begin();
    return () => {
      if (this.#listeners.get(channel) !== listener) return;
      this.#listeners.delete(channel);
      // A connection that fails at this is closed by what fails on it next.
      if (this.#socket?.status === 'ready') this.#socket.unsubscribe(channel).catch(() => {});
    };
  }

  close(): void {
    this.#state = 'closed';
    for (const cancel of [this.#cancelRetry, this.#cancelPing]) cancel();
    this.#readOn();
    this.#socket?.disconnect();
  }

  #begin(): void {
    const { client, options } = this.#parts;
    if (this.#state === 'closed') return;
    this.#state = 'open';
    // Where the commands do not get through, messages do not come either.
    if (client.status !== 'ready') {
      client.once('ready', () => this.#begin());
      return;
    }
    const socket = new Redis<'legacy'>({
      ...options(),
      connectionName: 'sluice-subscriptions',
      retryStrategy: () => null,
      lazyConnect: true,
    });
    this.#socket = socket;
    // What fails on a connection that was given up is no news.
    socket.on('error', (failure) => {
      if (this.#socket === socket) this.#parts.onError(failure);
    });
    socket.on('end', () => this.#lost(socket));
    socket.on('message', (channel: string, text: string) => {
      this.#listeners.get(channel)?.onMessage(text);
      this.#readOnLater(socket);
    });
    socket.connect().then(
      () => {
        for (const channel of this.#listeners.keys()) this.#subscribe(socket, channel);
        this.#pingLater(socket);
      },
      (failure: unknown) => this.#lost(socket, failure),
    );
  }

  #subscribe(socket: Redis, channel: string): void {
    socket.subscribe(channel).then(
      () => this.#listeners.get(channel)?.onReady(),
      (failure: unknown) => this.#lost(socket, failure),
    );
  }

  #pingLater(socket: Redis): void {
    this.#cancelPing = this.#parts.clock.after(pingMs, () => {
      socket.ping().then(
        () => this.#pingLater(socket),
        (failure: unknown) => this.#lost(socket, failure),
      );
    });
  }

  /** Not before all that has come is read: of a stream that is paused at each message one piece would be read each time. */
  #readOnLater(socket: Redis): void {
    if (this.#isPausing) return;
    for (const { mayWait } of this.#listeners.values()) if (mayWait?.() !== true) return;
    this.#isPausing = true;
    setImmediate(() => {
      if (!this.#isPausing || this.#socket !== socket) return;
      socket.stream.pause();
      this.#cancelUnread = this.#parts.clock.after(unreadMs, () => this.#readOn());
    });
  }

  /** A connection that is ended needs it as well: unread, it would not see its end. */
  #readOn(): void {
    this.#cancelUnread();
    if (!this.#isPausing) return;
    this.#isPausing = false;
    this.#socket?.stream.resume();
  }

  /** The connection has ended, or something on it failed, after which it is of no use: now, since each of its channels may fail. */
  #lost(socket: Redis, failure?: unknown): void {
    if (this.#socket !== socket || this.#state === 'closed') return;
    const { clock, random, onError } = this.#parts;
    if (failure !== undefined) onError(failure);
    for (const cancel of [this.#cancelRetry, this.#cancelPing]) cancel();
    this.#readOn();
    this.#socket = null;
    socket.disconnect();
    this.#cancelRetry = clock.after(retryMs(retriesOfLost, random), () => this.#begin());
  }
}
