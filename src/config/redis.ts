/**
 * `redis`: where the state of several replicas is, as one URL says: `redis://`, `rediss://` for TLS, `redis+sentinel://…/name`,
 * `redis+cluster://` with several hosts. No message shows the URL: it holds a password.
 */
import { resolve } from 'node:path';
import { z } from 'zod';
import * as is from './values.ts';

const form = /^(redis|rediss)(?:\+(sentinel|cluster))?:\/\/(?:([^@/?#\s]*)@)?([^@/?#\s]+)(?:\/([^/?#\s]*))?$/;

const notUrl: is.Fault = {
  reason: 'is not a Redis URL',
  fix: 'write redis://host:6379 or rediss://user:password@host:6380, on one line, with user and password percent-encoded',
};

/** The parts of a Redis URL; `null` = it is none. */
function readRedisUrl(text: string) {
  const [, scheme, kind = 'single', access = '', hosts = '', path = ''] = form.exec(text) ?? [];
  const mode = kind as 'single' | 'sentinel' | 'cluster';
  const nodes = hosts.split(',').map((node) => readNode(node, mode === 'sentinel' ? 26_379 : 6379));
  const login = readLogin(access);
  const isWhole = nodes.every((node) => node !== null) && (mode !== 'single' || nodes.length === 1);
  if (scheme === undefined || !isWhole || login === null) return null;
  const [sentinelName, database] = mode === 'sentinel' ? [path, ''] : [null, path];
  if (!/^\d{0,5}$/.test(database)) return null;
  if (sentinelName !== null && !/^[\w.-]{1,128}$/.test(sentinelName))
    return { reason: 'does not name the watched primary', fix: 'write redis+sentinel://host,host/mymaster' };
  if (mode === 'cluster' && Number(database) !== 0)
    return { reason: 'names a database', fix: 'a Cluster has only database 0: leave it out' };
  return {
    mode,
    tls: scheme === 'rediss',
    ...login,
    /** The server, the Sentinels, or some nodes of the Cluster. At least one. */
    nodes,
    database: Number(database),
    /** Name of the primary that the Sentinels watch; `null` without Sentinels. */
    sentinelName,
  };
}

/** Reads `host:port`, `host` or `[v6]:port`; `null` when the text has another form. */
function readNode(text: string, defaultPort: number) {
  const [, v6, host = v6, port = defaultPort] =
    /^(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::(\d{1,5}))?$/.exec(text) ?? [];
  const number = Number(port);
  return host === undefined || number < 1 || number > 65_535 ? null : { host, port: number };
}

/** Where a server of Redis listens. */
export type RedisNode = Readonly<NonNullable<ReturnType<typeof readNode>>>;

/** Reads `user:password`; `null` when it is not percent-encoded well. */
function readLogin(access: string) {
  const [, user = '', password = ''] = /^([^:]*):?(.*)$/.exec(access) ?? [];
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
export const redis = is
  .section(
    {
      url: is.readText(notUrl, (written) => is.secretFault(written) ?? readRedisUrl(written)),
      whenDown: z.enum(['local', 'deny']).default('local'),
      replicas: is.orNull(is.count),
      startSeconds: is.seconds.default(30),
      sentinelPassword: is.orNull(is.secret),
      tls: is
        .section({
          caFile: is.filePath.optional().describe('PEM file with further certificate authorities.'),
        })
        .optional(),
      commandTimeoutMs: z.int().min(20).max(10_000).default(250),
      keyPrefix: z.string().default(''),
    },
    {
      url: 'redis:// or rediss:// (TLS), with user and password; also redis+sentinel://host,host/name and redis+cluster://host,host, with TLS rediss+….',
      whenDown:
        'Without Redis: each replica enforces its share (local), or calls are refused with 503 (deny).',
      replicas:
        'The most replicas there can be. One that has never reached Redis takes this part of every limit; without the number it refuses calls with 503 until it has.',
      startSeconds: 'A replica that has never reached Redis is not ready for so long after its start.',
      sentinelPassword: 'Password of the Sentinels, if it is not that of the URL.',
      tls: 'TLS of a rediss:// URL.',
      commandTimeoutMs:
        'How long one command may take before it is repeated, and Redis counted as away soon after.',
      keyPrefix: 'Put before every key (which starts with "sluice:").',
    },
  )
  .superRefine(
    is.rule(({ url, sentinelPassword, tls, keyPrefix }, refuse) => {
      if (tls !== undefined && !url.tls)
        refuse('stands beside a URL without TLS', 'write rediss:// instead of redis://', 'tls');
      const fix = 'write redis+sentinel://host,host/mymaster';
      if (sentinelPassword !== null && url.mode !== 'sentinel')
        refuse('stands beside a URL without Sentinels', fix, 'sentinelPassword');
      if (!/^[\w.:-]{0,64}$/.test(keyPrefix))
        refuse('is not usable', 'use up to 64 letters, digits and . _ : -', 'keyPrefix');
    }),
  );

/** Redis as it is connected to: with the parts of its URL. */
export interface RedisSettings extends is.Frozen<ReturnType<typeof settleRedis>> {}

/** `folder`: where relative paths start. */
export const settleRedis = (
  { url, sentinelPassword, tls, ...others }: z.output<typeof redis>,
  folder: string,
) => ({
  ...others,
  ...url,
  /** A Sentinel without a password takes any. */
  sentinelPassword: sentinelPassword ?? url.password,
  tls: url.tls ? { caFile: tls?.caFile === undefined ? null : resolve(folder, tls.caFile) } : null,
});
