/**
 * Reading of Redis addresses. One URL can say everything (`redis://`, `rediss://` for TLS, `redis+sentinel://…/name`,
 * `redis+cluster://` with several hosts); the sections `sentinel` and `cluster` add nodes to a plain one.
 *
 * Owns: the parts of the URL. Does not own: what must fit together (`redis-checks.ts`). No message shows the URL: it
 * holds a password.
 */
import type { RedisNode, RedisSettings } from './settings.ts';

export interface RedisUrl {
  readonly mode: RedisSettings['mode'];
  readonly tls: boolean;
  readonly username: string | null;
  readonly password: string | null;
  readonly nodes: readonly RedisNode[];
  readonly database: number;
  /** Name of the primary that the Sentinels watch, where the URL names it. */
  readonly sentinelName: string | null;
}

const form = /^(redis|rediss)(?:\+(sentinel|cluster))?:\/\/(?:([^@/?#\s]*)@)?([^@/?#\s]+)(?:\/([^/?#\s]*))?$/;
const ports = { single: 6379, sentinel: 26_379, cluster: 6379 } as const;

/** Returns the parts of a Redis URL; `null` when the text is not a Redis URL. */
export function readRedisUrl(text: string): RedisUrl | null {
  const [, scheme, kind, access, hosts = '', path = ''] = form.exec(text) ?? [];
  if (scheme === undefined) return null;
  const mode = kind === 'sentinel' || kind === 'cluster' ? kind : 'single';
  const nodes = hosts.split(',').map((node) => readRedisNode(node, ports[mode]));
  const known = nodes.flatMap((node) => (node === null ? [] : [node]));
  if (known.length < nodes.length || (mode === 'single' && known.length > 1)) return null;
  const [name, database] = mode === 'sentinel' ? [path, ''] : ['', path];
  if (!/^(\d{1,5})?$/.test(database) || (name !== '' && !isSentinelName(name))) return null;
  const login = readAccess(access);
  if (login === null) return null;
  const sentinelName = name === '' ? null : name;
  return { mode, tls: scheme === 'rediss', ...login, nodes: known, database: Number(database), sentinelName };
}

/** Reads `host:port`, `host` or `[v6]:port`; `null` when the text has another form. */
export function readRedisNode(text: string, defaultPort: number): RedisNode | null {
  const [, v6, host = v6, port] = /^(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::(\d{1,5}))?$/.exec(text) ?? [];
  const number = port === undefined ? defaultPort : Number(port);
  if (host === undefined || number < 1 || number > 65_535) return null;
  return { host, port: number };
}

export const isSentinelName = (name: string): boolean => /^[\w.-]{1,128}$/.test(name);

/** The port of a node in a Redis of this mode, where the configuration names none. */
export const redisPort = (mode: RedisSettings['mode']): number => ports[mode];

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
