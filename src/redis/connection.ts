/**
 * Connections to Redis: alone, behind Sentinels, or a Cluster. Every wait has a limit, nothing is queued while there is
 * no connection, and nothing is sent a second time by the driver: who asked decides that (`health.ts`).
 *
 * Owns: the options of ioredis, the error listeners without which a broken socket ends the process. Does not own:
 * what is asked, whether Redis is available, the connections of subscribers (`subscriber.ts`).
 */
import { readFileSync } from 'node:fs';
import { Cluster, type ClusterOptions, Redis, type RedisOptions } from 'ioredis';
import type { Clock, Random } from '../clock.ts';
import type { RedisNode, RedisSettings } from '../config/settings.ts';
import { guardReplies } from './reply-guard.ts';
import { maxRetryMs, retriesOfLost, retryMs, Subscriber, type SubscriptionListener } from './subscriber.ts';

export type RedisClient = Redis | Cluster;
/** Replies keep the shapes of RESP2, whatever the protocol. */
type Options = RedisOptions & { replyMapping?: 'legacy' };

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
  const retryStrategy = (times: number): number => retryMs(times, random);
  const options = optionsOf(settings, retryStrategy);
  const client: RedisClient =
    settings.mode === 'cluster'
      ? new Cluster([...settings.nodes], clusterOptions(settings, options, retryStrategy))
      : new GatheringRedis(standalone(settings, options, retryStrategy));
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
    if (!(client instanceof Cluster)) return standalone(settings, options, retryStrategy);
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

function optionsOf(settings: RedisSettings, retryStrategy: (times: number) => number): Options {
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
    retryStrategy,
    // A primary that became a replica: connect anew (and so to the new primary), do not send the command again.
    reconnectOnError: (failure) => failure.message.startsWith('READONLY'),
  };
}

function standalone(
  settings: RedisSettings,
  options: Options,
  sentinelRetryStrategy: (times: number) => number,
): Options {
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
    sentinelRetryStrategy,
    sentinelCommandTimeout: connectMs,
    ...(settings.sentinelPassword === null ? {} : { sentinelPassword: settings.sentinelPassword }),
    ...(options.tls === undefined ? {} : { enableTLSForSentinelMode: true, sentinelTLS: options.tls }),
  };
}

function clusterOptions(
  settings: RedisSettings,
  options: Options,
  clusterRetryStrategy: (times: number) => number,
): ClusterOptions & {
  redisOptions: NonNullable<ClusterOptions['redisOptions']> & { replyMapping?: 'legacy' };
} {
  const { keyPrefix, retryStrategy: _retry, enableOfflineQueue: _queue, ...redisOptions } = options;
  return {
    redisOptions,
    ...(keyPrefix === undefined ? {} : { keyPrefix }),
    clusterRetryStrategy,
    enableOfflineQueue: false,
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
