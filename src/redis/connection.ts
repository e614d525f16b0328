/**
 * Connections to Redis: alone, behind Sentinels, or a Cluster. Every wait has a limit, nothing is queued while there is
 * no connection, and nothing is sent a second time by the driver: who asked decides that (`health.ts`).
 *
 * Owns: the options of ioredis, the error listeners without which a broken socket ends the process, the connection of subscriptions.
 * Does not own: what is asked, whether Redis is available.
 */
import { readFileSync } from 'node:fs';
import { Cluster, type ClusterOptions, Redis, type RedisOptions } from 'ioredis';
import type { Clock, Random } from '../clock.ts';
import type { RedisNode, RedisSettings } from '../config/settings.ts';
import { guardReplies } from './reply-guard.ts';

export type RedisClient = Redis | Cluster;
/** Replies keep the shapes of RESP2, whatever the protocol. */
type Options = RedisOptions & { replyMapping?: 'legacy'; retryStrategy: (times: number) => number };

const connectMs = 2_000;
/** A socket on which a reply is due, and no byte comes for this long, is closed: nothing else notices a primary that hangs. */
const silentMs = 2_000;
const slotsRefreshMs = 1_000;

guardReplies();

export interface RedisConnection {
  readonly client: RedisClient;
  isReady(): boolean;
  /** Receives messages of `channel`, over every reconnection. Returns the function that ends that. */
  subscribe(channel: string, listener: SubscriptionListener): () => void;
  /** The server's `INFO` as text; of one of the primaries in a Cluster. */
  info(): Promise<string>;
  /** Resolves when every primary of a Cluster answers; rejects with the failure of one that does not. At once otherwise. */
  reachAll(): Promise<void>;
  /** Names the primaries of a Cluster as known now; empty otherwise. */
  primaries(): string;
  close(): void;
}

export interface ConnectionParts {
  readonly clock: Clock;
  readonly random: Random;
}

const readyPollMs = 10;

/** True when the connection is ready within so many milliseconds, or was before. */
export async function isReadyWithin(
  connection: Pick<RedisConnection, 'isReady'>,
  ms: number,
  clock: Pick<Clock, 'after' | 'monotonic'>,
): Promise<boolean> {
  for (const until = clock.monotonic() + ms; !connection.isReady();) {
    if (clock.monotonic() > until) return false;
    await new Promise<void>((resolve) => void clock.after(readyPollMs, resolve));
  }
  return true;
}

/** `onError`: hears of every failure of a connection. */
export function connectRedis(
  settings: RedisSettings,
  { clock, random }: ConnectionParts,
  onError: (failure: unknown) => void,
): RedisConnection {
  const options = optionsOf(settings, random);
  const client: RedisClient =
    settings.mode === 'cluster'
      ? new Cluster([...settings.nodes], clusterOptions(options))
      : new GatheringRedis(standalone(settings, options));
  let cancelConnect = (): void => {};
  /** The driver gives up for good when, for one, a Sentinel reports a failover while it is connecting. */
  const connectAgain = (): void => {
    cancelConnect = clock.after(retryMs(retriesOfLost, random), () => void client.connect().catch(onError));
  };
  client.on('error', onError);
  if (client instanceof Cluster) client.on('node error', onError);
  client.on('end', connectAgain);

  /** Where a subscriber connects. In a Cluster any node hears what is published on any other; subscriptions are counted at primaries. */
  const subscriberOptions = (): Options => {
    if (!(client instanceof Cluster)) return standalone(settings, options);
    const nodes = client.nodes('master');
    const node = nodes[Math.floor(random.next() * nodes.length)];
    const { host, port } = node?.options ?? settings.nodes[0] ?? {};
    return { ...options, ...(host === undefined ? {} : { host }), ...(port === undefined ? {} : { port }) };
  };
  const subscriber = new Subscriber({ clock, random, client, onError, options: subscriberOptions });
  return {
    client,
    isReady: () => client.status === 'ready',
    subscribe: (channel, listener) => subscriber.join(channel, listener),
    async info() {
      if (!(client instanceof Cluster)) return client.info();
      const [node] = client.nodes('master');
      if (node === undefined) throw new Error('no primary of the Cluster is known');
      return node.info();
    },
    async reachAll() {
      if (client instanceof Cluster) await reachPrimaries(client);
    },
    primaries: () => (client instanceof Cluster ? primariesOf(client).join(' ') : ''),
    close() {
      client.off('end', connectAgain);
      cancelConnect();
      subscriber.close();
      client.disconnect();
    },
  };
}

/** `host:port` of the primary of each slot as last reported, also of one that is gone. Sorted. */
const primariesOf = ({ slots }: Cluster): string[] =>
  [...new Set(slots.flatMap(([primary]) => primary ?? []))].sort();

/** The driver forgets a node when its connection ends, not which slots it had. */
async function reachPrimaries(client: Cluster): Promise<void> {
  const nodes = new Map(
    client.nodes('master').map((node) => [`${node.options.host ?? ''}:${node.options.port ?? 0}`, node]),
  );
  await Promise.all(
    primariesOf(client).map(async (primary) => {
      const node = nodes.get(primary);
      if (node === undefined) throw new Error(`Connection is closed: ${primary} has slots of the Cluster`);
      await node.ping();
    }),
  );
}

function optionsOf(settings: RedisSettings, random: Random): Options {
  const { username, password, tls } = settings;
  const ca = tls === null || tls.caFile === null ? null : readFileSync(tls.caFile, 'utf8');
  return {
    ...(username === null ? {} : { username }),
    ...(password === null ? {} : { password }),
    ...(tls === null ? {} : { tls: ca === null ? {} : { ca } }),
    keyPrefix: settings.keyPrefix,
    connectionName: 'sluice',
    connectTimeout: connectMs,
    socketTimeout: silentMs,
    commandTimeout: settings.commandTimeoutMs,
    enableOfflineQueue: false,
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    maxLoadingRetryTime: maxRetryMs,
    retryStrategy: (times) => retryMs(times, random),
    // A primary that became a replica: connect anew (and so to the new primary), do not send the command again.
    reconnectOnError: (failure) => failure.message.startsWith('READONLY'),
  };
}

function standalone(settings: RedisSettings, options: Options): Options {
  if (settings.mode !== 'sentinel') {
    const [{ host, port } = { host: '127.0.0.1', port: 6379 }] = settings.nodes;
    return { ...options, host, port, db: settings.database };
  }
  const sentinels: RedisNode[] = [...settings.nodes];
  return {
    ...options,
    sentinels,
    name: settings.sentinelName ?? '',
    db: settings.database,
    failoverDetector: true,
    sentinelRetryStrategy: options.retryStrategy,
    sentinelCommandTimeout: connectMs,
    ...(settings.sentinelPassword === null ? {} : { sentinelPassword: settings.sentinelPassword }),
    ...(options.tls === undefined ? {} : { enableTLSForSentinelMode: true, sentinelTLS: options.tls }),
  };
}

function clusterOptions({ keyPrefix, retryStrategy, ...options }: Options): ClusterOptions & {
  redisOptions: NonNullable<ClusterOptions['redisOptions']> & { replyMapping?: 'legacy' };
} {
  const { enableOfflineQueue, ...redisOptions } = options;
  return {
    redisOptions,
    ...(keyPrefix === undefined ? {} : { keyPrefix }),
    clusterRetryStrategy: retryStrategy,
    enableOfflineQueue: enableOfflineQueue ?? false,
    slotsRefreshInterval: slotsRefreshMs,
    slotsRefreshTimeout: connectMs,
    maxRedirections: 4,
    retryDelayOnFailover: 0,
    retryDelayOnClusterDown: 0,
  };
}

/**
 * A connection that writes the commands of one turn of the event loop together: one system call here and one wake-up of the server for
 * calls of many buckets.
 */
class GatheringRedis extends Redis {
  #corked: Redis['stream'] | null = null;

  override sendCommand(...[command, stream]: Parameters<Redis['sendCommand']>): unknown {
    const socket = this.stream;
    // While it is connecting there is no socket.
    if (this.status === 'ready' && this.#corked !== socket) {
      this.#corked = socket;
      socket.cork();
      setImmediate(() => {
        socket.uncork();
        if (this.#corked === socket) this.#corked = null;
      });
    }
    return super.sendCommand(command, stream);
  }
}

// The connection of a replica's subscriptions, made again whenever it ends.
//
// A ping twice a second makes a reply due, so that a dead socket is noticed. That each message arrives is not proved: who follows a log
// gets what it lacks with the reply to its next append.

const maxRetryMs = 500;

/** Pause before the next attempt to connect, after this many attempts, milliseconds. Its second half is random. */
const retryMs = (attempts: number, random: Random): number =>
  Math.min(maxRetryMs, 20 * 2 ** Math.min(attempts, 10)) * (0.5 + random.next() / 2);

/** An established connection that is lost counts as this many attempts, so that its pause is not the shortest. */
const retriesOfLost = 4;

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

interface SubscriberParts extends ConnectionParts {
  /** The connection of the commands. */
  readonly client: Redis | Cluster;
  /** The connection failed; it is made again. */
  readonly onError: (failure: unknown) => void;
  /** Where to connect; asked for each connection. */
  readonly options: () => Options;
}

class Subscriber {
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
