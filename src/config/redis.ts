/**
 * `redis`: where the state of several replicas is, as one URL says: `redis://`, `rediss://` for TLS, `redis+sentinel://…/name`,
 * `redis+cluster://` with several hosts. No message shows the URL: it holds a password.
 */
import { resolve } from 'node:path';
import { z } from 'zod';
import type { Fault } from './problem.ts';
import {
  atRestart,
  count,
  filePath,
  orNull,
  readText,
  refuse,
  secret,
  seconds,
  secretFault,
  section,
  type Frozen,
} from './values.ts';

/** Where a server of Redis listens. */
export interface RedisNode {
  readonly host: string;
  readonly port: number;
}

interface RedisUrl {
  readonly mode: 'single' | 'sentinel' | 'cluster';
  readonly tls: boolean;
  readonly username: string | null;
  readonly password: string | null;
  /** The server, the Sentinels, or some nodes of the Cluster. At least one. */
  readonly nodes: readonly RedisNode[];
  readonly database: number;
  /** Name of the primary that the Sentinels watch; `null` without Sentinels. */
  readonly sentinelName: string | null;
}

const form = /^(redis|rediss)(?:\+(sentinel|cluster))?:\/\/(?:([^@/?#\s]*)@)?([^@/?#\s]+)(?:\/([^/?#\s]*))?$/;
/** The port of a node where none is named. */
const ports = { single: 6379, sentinel: 26_379, cluster: 6379 } as const;

const notUrl: Fault = {
  reason: 'is not a Redis URL',
  fix: 'write redis://host:6379 or rediss://user:password@host:6380',
};

/** The parts of a Redis URL. */
export function readRedisUrl(text: string): { readonly value: RedisUrl } | Fault {
  const [, scheme, kind, access, hosts = '', path = ''] = form.exec(text) ?? [];
  if (scheme === undefined) return notUrl;
  const mode = kind === 'sentinel' || kind === 'cluster' ? kind : 'single';
  const nodes = hosts.split(',').flatMap((node) => readRedisNode(node, ports[mode]) ?? []);
  const login = readAccess(access);
  const isWhole = nodes.length === hosts.split(',').length && (mode !== 'single' || nodes.length === 1);
  if (!isWhole || login === null) return notUrl;
  const [name, database] = mode === 'sentinel' ? [path, ''] : [null, path];
  if (!/^\d{0,5}$/.test(database)) return notUrl;
  if (name !== null && !/^[\w.-]{1,128}$/.test(name))
    return { reason: 'does not name the watched primary', fix: 'write redis+sentinel://host,host/mymaster' };
  if (mode === 'cluster' && Number(database) !== 0)
    return { reason: 'names a database', fix: 'a Cluster has only database 0: leave it out' };
  return {
    value: {
      mode,
      tls: scheme === 'rediss',
      ...login,
      nodes,
      database: Number(database),
      sentinelName: name,
    },
  };
}

/** Reads `host:port`, `host` or `[v6]:port`; `null` when the text has another form. */
function readRedisNode(text: string, defaultPort: number): RedisNode | null {
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

/** The section as it is written. */
export const redis = section(
  atRestart({
    url: readText((written) => secretFault(written) ?? readRedisUrl(written)).describe(
      'redis:// or rediss:// (TLS), with user and password; also redis+sentinel://host,host/name and redis+cluster://host,host, with TLS rediss+….',
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
    sentinelPassword: orNull(secret).describe('Password of the Sentinels, if it is not that of the URL.'),
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
).superRefine(({ url, sentinelPassword, tls, keyPrefix }, context) => {
  const at = (key: string, reason: string, fix: string): void => refuse(context, { reason, fix }, [key]);
  if (tls !== undefined && !url.tls)
    at('tls', 'stands beside a URL without TLS', 'write rediss:// instead of redis://');
  if (sentinelPassword !== null && url.mode !== 'sentinel')
    at(
      'sentinelPassword',
      'stands beside a URL without Sentinels',
      'write redis+sentinel://host,host/mymaster',
    );
  if (!/^[\w.:-]{0,64}$/.test(keyPrefix))
    at('keyPrefix', 'is not usable', 'use up to 64 letters, digits and . _ : -');
});

type RedisInput = z.output<typeof redis>;

/** Redis as it is connected to: with the parts of its URL. */
export interface RedisSettings extends Frozen<ReturnType<typeof settleRedis>> {}

export const settleRedis = ({ url, sentinelPassword, tls, ...redis }: RedisInput, folder: string) => ({
  ...redis,
  ...url,
  /** A Sentinel without a password takes any. */
  sentinelPassword: sentinelPassword ?? url.password,
  tls: url.tls ? { caFile: tls?.caFile === undefined ? null : resolve(folder, tls.caFile) } : null,
});
