/**
 * `redis`: where the state of several replicas is. One URL can say everything (`redis://`, `rediss://` for TLS,
 * `redis+sentinel://…/name`, `redis+cluster://` with several hosts); the sections `sentinel` and `cluster` add nodes to a plain one.
 * No message shows the URL: it holds a password.
 */
import { z } from 'zod';
import {
  atRestart,
  count,
  filePath,
  formed,
  orNull,
  readText,
  refuse,
  seconds,
  secretFault,
  section,
  text,
  type Frozen,
} from './values.ts';

type Mode = 'single' | 'sentinel' | 'cluster';

/** Where a server of Redis listens. */
export interface RedisNode {
  readonly host: string;
  readonly port: number;
}

export interface RedisUrl {
  readonly mode: Mode;
  readonly tls: boolean;
  readonly username: string | null;
  readonly password: string | null;
  readonly nodes: readonly RedisNode[];
  readonly database: number;
  /** Name of the primary that the Sentinels watch, where the URL names it. */
  readonly sentinelName: string | null;
}

const form = /^(redis|rediss)(?:\+(sentinel|cluster))?:\/\/(?:([^@/?#\s]*)@)?([^@/?#\s]+)(?:\/([^/?#\s]*))?$/;
/** The port of a node where none is named. */
const ports = { single: 6379, sentinel: 26_379, cluster: 6379 } as const;
const sentinelName = /^[\w.-]{1,128}$/;

/** Returns the parts of a Redis URL; `null` when the text is not a Redis URL. */
export function readRedisUrl(text: string): RedisUrl | null {
  const [, scheme, kind, access, hosts = '', path = ''] = form.exec(text) ?? [];
  if (scheme === undefined) return null;
  const mode = kind === 'sentinel' || kind === 'cluster' ? kind : 'single';
  const nodes = hosts.split(',').map((node) => readRedisNode(node, ports[mode]));
  const known = nodes.flatMap((node) => (node === null ? [] : [node]));
  if (known.length < nodes.length || (mode === 'single' && known.length > 1)) return null;
  const [name, database] = mode === 'sentinel' ? [path, ''] : ['', path];
  if (!/^(\d{1,5})?$/.test(database) || (name !== '' && !sentinelName.test(name))) return null;
  const login = readAccess(access);
  if (login === null) return null;
  return {
    mode,
    tls: scheme === 'rediss',
    ...login,
    nodes: known,
    database: Number(database),
    sentinelName: name === '' ? null : name,
  };
}

/** Reads `host:port`, `host` or `[v6]:port`; `null` when the text has another form. */
export function readRedisNode(text: string, defaultPort: number): RedisNode | null {
  const [, v6, host = v6, port] = /^(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::(\d{1,5}))?$/.exec(text) ?? [];
  const number = port === undefined ? defaultPort : Number(port);
  if (host === undefined || number < 1 || number > 65_535) return null;
  return { host, port: number };
}

function readAccess(
  access: string | undefined,
): { readonly username: string | null; readonly password: string | null } | null {
  if (access === undefined || access === '') return { username: null, password: null };
  const colon = access.indexOf(':');
  const [user, password] = colon < 0 ? [access, ''] : [access.slice(0, colon), access.slice(colon + 1)];
  try {
    return {
      username: user === '' ? null : decodeURIComponent(user),
      password: password === '' ? null : decodeURIComponent(password),
    };
  } catch {
    return null;
  }
}

const furtherNodes = (description: string) =>
  z
    .array(
      text((node) =>
        readRedisNode(node, 1) === null ? { reason: 'is not host:port', fix: 'write host:port' } : null,
      ),
    )
    .default([])
    .describe(description);

/** The section as it is written. */
export const redis = section(
  atRestart({
    url: readText<RedisUrl>((written) => {
      const value = secretFault(written) ?? readRedisUrl(written);
      if (value === null)
        return {
          reason: 'is not a Redis URL',
          fix: 'write redis://host:6379 or rediss://user:password@host:6380',
        };
      return 'reason' in value ? value : { value };
    }).describe(
      'redis:// or rediss:// (TLS), with user and password; also redis+sentinel://host,host/name and redis+cluster://host,host.',
    ),
    whenDown: z
      .enum(['local', 'deny'])
      .default('local')
      .describe(
        'Without Redis: each replica enforces its share (local), or calls are refused with 503 (deny).',
      ),
    replicas: orNull(count).describe(
      'The most replicas there can be. One that has never reached Redis takes this part of every limit; without the number it refuses calls with 503 until it has.',
    ),
    startSeconds: seconds
      .default(30)
      .describe('A replica that has never reached Redis is not ready for so long after its start.'),
    mode: z
      .enum(['single', 'sentinel', 'cluster'])
      .optional()
      .describe('How Redis is deployed. Default: what the URL or the sections sentinel and cluster say.'),
    sentinel: section({
      name: formed(sentinelName, 'is not a name', 'give the name of the primary').describe(
        'Name of the primary that the Sentinels watch.',
      ),
      nodes: furtherNodes('Further Sentinels beside the one of the URL, as host:port.'),
    })
      .optional()
      .describe('Redis behind Sentinels; the URL names the first of them.'),
    cluster: section({ nodes: furtherNodes('Further nodes beside the one of the URL, as host:port.') })
      .optional()
      .describe('Redis Cluster; the URL names the first node.'),
    tls: section({
      caFile: filePath.optional().describe('PEM file with further certificate authorities.'),
    })
      .optional()
      .describe('TLS of a rediss:// URL.'),
    commandTimeoutMs: z
      .int()
      .min(20)
      .max(10_000)
      .default(250)
      .describe('How long one command may take before it is repeated, and Redis counted as away soon after.'),
    keyPrefix: z.string().default('').describe('Put before every key (which starts with "sluice:").'),
  }),
).superRefine((redis, context) => {
  const { url, mode, sentinel, cluster, tls, keyPrefix } = redis;
  const at = (key: string, reason: string, fix: string): void => refuse(context, { reason, fix }, [key]);
  if (sentinel !== undefined && cluster !== undefined)
    return at('cluster', 'stands beside sentinel', 'Redis is deployed one way: keep one of the two');
  const stated = sentinel !== undefined ? 'sentinel' : cluster !== undefined ? 'cluster' : null;
  const byUrl = url.mode === 'single' ? null : url.mode;
  if (stated !== null && byUrl !== null && stated !== byUrl)
    at(stated, 'does not fit the URL', `use a plain redis:// URL, or leave ${stated} out`);
  const deployed = stated ?? byUrl;
  if (mode !== undefined && mode !== (deployed ?? mode))
    at('mode', 'does not fit the rest of the section', `write ${deployed ?? 'single'}, or leave it out`);
  if ((deployed ?? mode) === 'sentinel' && sentinel === undefined && url.sentinelName === null)
    at('sentinel', 'is missing', 'name the watched primary: sentinel: { name: mymaster }');
  if ((deployed ?? mode) === 'cluster' && url.database !== 0)
    at('url', 'names a database', 'a Cluster has only database 0: leave it out');
  if (tls !== undefined && !url.tls)
    at('tls', 'stands beside a URL without TLS', 'write rediss:// instead of redis://');
  if (!/^[\w.:-]{0,64}$/.test(keyPrefix))
    at('keyPrefix', 'is not usable', 'use up to 64 letters, digits and . _ : -');
});

export type RedisInput = z.output<typeof redis>;

/** Redis as it is connected to: the URL and the keys beside it say the same servers in two ways. */
export interface RedisSettings extends Frozen<ReturnType<typeof settleRedis>> {}

export function settleRedis({ url, sentinel, cluster, tls, ...redis }: RedisInput) {
  const mode =
    redis.mode ?? (sentinel !== undefined ? 'sentinel' : cluster !== undefined ? 'cluster' : url.mode);
  const further = [...(sentinel?.nodes ?? []), ...(cluster?.nodes ?? [])];
  const { username, password, database } = url;
  return {
    ...redis,
    mode,
    /** The server, the Sentinels, or some nodes of the Cluster. At least one. */
    nodes: [...url.nodes, ...further.flatMap((node) => readRedisNode(node, ports[mode]) ?? [])],
    /** Name of the watched primary; `null` without Sentinels. */
    sentinelName: sentinel?.name ?? url.sentinelName,
    username,
    password,
    database,
    tls: url.tls ? { caFile: tls?.caFile ?? null } : null,
  };
}
