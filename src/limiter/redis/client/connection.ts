/**
 * Connections to Redis: alone, behind Sentinels, or a Cluster. Every wait has a limit, nothing is queued while there is
 * no connection, and nothing is sent a second time by the driver: who asked decides that (`health.ts`).
 *
 * Owns: the options of ioredis, the error listeners without which a broken socket ends the process, a subscriber's next
 * connection. Refuses to own: what is asked, whether Redis is available, whether a subscriber hears (`subscription.ts`).
 */
import { readFileSync } from 'node:fs';
import { Cluster, Redis, type ClusterOptions, type RedisOptions } from 'ioredis';
import type { Clock, Random } from '../../../clock.ts';
import type { RedisNode, RedisSettings } from '../../../config/settings.ts';
import { guardReplies } from './reply-guard.ts';
import { listen, type Hearing } from './subscription.ts';

export type RedisClient = Redis | Cluster;
/** Replies keep the shapes of RESP2, whatever the protocol. */
type Options = RedisOptions & { replyMapping?: 'legacy' };

const connectMs = 2_000;
/** A socket that owes an answer and gives no byte for this long is left: a hung primary is noticed by nothing else. */
const silentMs = 2_000;
const maxRetryMs = 500;
const slotsRefreshMs = 1_000;

guardReplies();

export interface RedisConnection {
  readonly client: RedisClient;
  isReady(): boolean;
  /** Hears `channel` until closed, over every reconnection; a subscription without messages is made anew. */
  subscribe(channel: string, hear: Hearing & { readonly onError: (failure: unknown) => void }): void;
  /** The server's `INFO` as text; of one of the primaries in a Cluster. */
  info(): Promise<string>;
  /** Resolves when every primary of a Cluster answers; rejects with the failure of one that does not. At once otherwise. */
  reachAll(): Promise<void>;
  /** Names the primaries of a Cluster as known now; empty otherwise. */
  primaries(): string;
  close(): void;
}

export function connectRedis(
  settings: RedisSettings,
  { clock, random }: { readonly clock: Clock; readonly random: Random },
  onError: (failure: unknown) => void,
): RedisConnection {
  const retryStrategy = (times: number): number =>
    Math.min(maxRetryMs, 20 * 2 ** Math.min(times, 10)) * (0.5 + random.next() / 2);
  const options = optionsOf(settings, retryStrategy);
  const client =
    settings.mode === 'cluster'
      ? new Cluster([...settings.nodes], clusterOptions(settings, options, retryStrategy))
      : new Redis<'legacy'>(standalone(settings, options));
  client.on('error', onError);
  if (client instanceof Cluster) client.on('node error', onError);
  const closers: (() => void)[] = [];
  // The driver gives up for good when, for one, a Sentinel reports a failover while it is connecting.
  let cancelConnect = (): void => {};
  const connectAgain = (): void => {
    cancelConnect = clock.after(retryStrategy(4), () => {
      client.connect().catch(onError);
    });
  };
  client.on('end', connectAgain);
  closers.push(() => {
    client.off('end', connectAgain);
    cancelConnect();
  });

  /** Where a subscriber connects: in a Cluster any node hears what is published on any other. */
  const subscriberOptions = (): Options => {
    if (!(client instanceof Cluster)) return standalone(settings, options);
    const nodes = client.nodes('all');
    const node = nodes[Math.floor(random.next() * nodes.length)];
    const { host, port } = node?.options ?? settings.nodes[0] ?? {};
    return { ...options, ...(host === undefined ? {} : { host }), ...(port === undefined ? {} : { port }) };
  };

  return {
    client,
    isReady: () => client.status === 'ready',
    subscribe(channel, { onMessage, onReady, onError: onFailure }) {
      let open: Redis | null = null;
      let cancel = (): void => {};
      let closed = false;
      const begin = (): void => {
        if (closed) return;
        // Where the commands do not get through, grants do not come either.
        if (client.status !== 'ready') {
          client.once('ready', begin);
          return;
        }
        const socket = new Redis<'legacy'>({
          ...subscriberOptions(),
          connectionName: 'sluice-grants',
          retryStrategy: () => null,
          lazyConnect: true,
        });
        open = socket;
        socket.on('error', onFailure);
        socket.on('end', () => {
          cancel();
          if (open === socket && !closed) cancel = clock.after(retryStrategy(4), begin);
        });
        socket
          .connect()
          .then(() => listen(socket, channel, { publisher: client, hearing: { onMessage, onReady }, clock }))
          .catch((failure: unknown) => {
            onFailure(failure);
            socket.disconnect();
          });
      };
      begin();
      closers.push(() => {
        closed = true;
        cancel();
        open?.disconnect();
      });
    },
    info: async () => {
      if (!(client instanceof Cluster)) return client.info();
      const [node] = client.nodes('master');
      if (node === undefined) throw new Error('no primary of the Cluster is known');
      return node.info();
    },
    reachAll: async () => {
      if (client instanceof Cluster) await reachPrimaries(client);
    },
    primaries: () => (client instanceof Cluster ? primariesOf(client).join(' ') : ''),
    close() {
      for (const end of closers) end();
      client.disconnect();
    },
  };
}

/** Who takes writes: every primary of a Cluster as known now, else the client itself. */
export const primaryClients = (client: RedisClient): readonly Pick<RedisClient, 'call'>[] =>
  client instanceof Cluster ? client.nodes('master') : [client];

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
    sentinelRetryStrategy: retryOf(options),
    sentinelCommandTimeout: connectMs,
    ...(options.tls === undefined ? {} : { enableTLSForSentinelMode: true, sentinelTLS: options.tls }),
  };
}

const retryOf =
  ({ retryStrategy }: Options) =>
  (times: number): number =>
    retryStrategy?.(times) ?? maxRetryMs;

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
