/**
 * The configured origins, arranged so that one look-up answers for any number of upstreams.
 *
 * Owns: exact and wildcard matching of `scheme://host:port`. Does not own: reading URLs out of requests
 * (`target.policy.ts`). Keeps: an exact entry goes before a wildcard; a wildcard stands for exactly one label of a
 * name, never for an address, a suffix or a substring.
 */
import { allowsInside } from './address.policy.ts';
import type { Route } from '../call.ts';

/** As in the configuration; taken from the shared vocabulary because a policy imports nothing else. */
export type UpstreamSettings = Route['upstream'];
export type OriginPattern = UpstreamSettings['origins'][number];

interface Entry {
  readonly upstream: UpstreamSettings;
  readonly pattern: OriginPattern;
}

/** Built once per configuration. */
export interface OriginIndex {
  readonly byName: ReadonlyMap<string, UpstreamSettings>;
  /** Keyed by `scheme://host:port`, the port always written. */
  readonly exact: ReadonlyMap<string, readonly Entry[]>;
  /** Keyed by `scheme://host:port` as `exact` is, without the wildcard's first label in the host. */
  readonly wildcard: ReadonlyMap<string, readonly Entry[]>;
}

/** The entry a URL belongs to, or `null` when there is none that the workspace may use. */
export type OriginMatch = Entry | null;

const keyOf = (scheme: string, host: string, port: number | string): string => `${scheme}://${host}:${port}`;

/** One label of a host name: letters, digits and inner hyphens, at most 63. */
const label = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;

const defaultPorts = { 'https:': '443', 'http:': '80' } as const;

/** Arranges the configuration. Plain `http` without `allowPrivateAddresses` is left out: it can never be called. */
export function indexOrigins(upstreams: ReadonlyMap<string, UpstreamSettings>): OriginIndex {
  const exact = new Map<string, Entry[]>();
  const wildcard = new Map<string, Entry[]>();
  for (const upstream of upstreams.values()) {
    for (const pattern of upstream.origins) {
      if (pattern.scheme === 'http' && !allowsInside(upstream.allowPrivateAddresses)) continue;
      const table = pattern.wildcard ? wildcard : exact;
      const key = keyOf(pattern.scheme, pattern.host.toLowerCase(), pattern.port);
      const entries = table.get(key);
      if (entries === undefined) table.set(key, [{ upstream, pattern }]);
      else entries.push({ upstream, pattern });
    }
  }
  return { byName: upstreams, exact, wildcard };
}

/**
 * Finds the entry for a parsed URL. A host that has an exact entry is never served by a wildcard: the operator who
 * named it meant that entry, also for workspaces it is closed to.
 */
export function matchOrigin(
  index: OriginIndex,
  url: URL,
  allowed: (upstream: UpstreamSettings) => boolean,
): OriginMatch {
  if (url.protocol !== 'https:' && url.protocol !== 'http:') return null;
  const scheme = url.protocol.slice(0, -1);
  const port = url.port === '' ? defaultPorts[url.protocol] : url.port;
  const exact = index.exact.get(keyOf(scheme, url.hostname, port));
  const candidates = exact ?? index.wildcard.get(keyOf(scheme, parentOf(url.hostname), port));
  return candidates?.find((entry) => allowed(entry.upstream)) ?? null;
}

/** The name without its first label; empty, and so without any entry, when that label is none or this is an address. */
function parentOf(hostname: string): string {
  const dot = hostname.indexOf('.');
  if (dot < 1 || /^[\d.]+$/.test(hostname) || !label.test(hostname.slice(0, dot))) return '';
  return hostname.slice(dot + 1);
}

/**
 * The `/via/` prefix under which an origin of this upstream is reached, or `null` when the URL is not one of its
 * origins. Where TLS ends before the upstream, it writes `http:` for itself, and no port: then the scheme does not matter, and no port
 * stands for that of its one origin with this host. Without a trailing slash; append the raw path.
 */
export function viaPrefix(index: OriginIndex, upstream: UpstreamSettings, url: URL): string | null {
  for (const written of [url, withOtherScheme(url), ...withoutPort(upstream, url)]) {
    const match = matchOrigin(index, written, ({ name }) => name === upstream.name);
    if (match === null) continue;
    const single = upstream.origins.length === 1 && !match.pattern.wildcard;
    return single ? `/via/${upstream.name}` : `/via/${upstream.name}/${written.host}`;
  }
  return null;
}

function withoutPort({ origins }: UpstreamSettings, { port, hostname }: URL): readonly URL[] {
  const same = origins.filter(({ wildcard, host }) => !wildcard && host.toLowerCase() === hostname);
  return port === '' && same.length === 1
    ? same.map(({ scheme, host, port: own }) => new URL(`${scheme}://${host}:${own}`))
    : [];
}

function withOtherScheme(url: URL): URL {
  const other = new URL(url);
  other.protocol = url.protocol === 'https:' ? 'http:' : 'https:';
  return other;
}
