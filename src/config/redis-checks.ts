/** Rules between the values of `redis`: its address, how it is deployed, and the sections that go with that. */
import type { Finding } from './problem.ts';
import { readRedisUrl } from './redis-url.ts';
import type { Section } from './tree.ts';

/** Broken rules of the section; a URL that cannot be read is reported by the schema. */
export function checkRedis(redis: Section): Finding[] {
  const { url, mode, sentinel, cluster, tls, keyPrefix } = redis;
  const read = typeof url === 'string' ? readRedisUrl(url) : null;
  if (read === null) return [];
  const found: Finding[] = [];
  const at = (key: string, reason: string, fix: string): void =>
    void found.push({ path: ['redis', key], reason, fix });
  if (sentinel !== undefined && cluster !== undefined) {
    at('cluster', 'stands beside sentinel', 'Redis is deployed one way: keep one of the two');
    return found;
  }
  const stated = sentinel !== undefined ? 'sentinel' : cluster !== undefined ? 'cluster' : null;
  const byUrl = read.mode === 'single' ? null : read.mode;
  if (stated !== null && byUrl !== null && stated !== byUrl) {
    at(stated, 'does not fit the URL', `use a plain redis:// URL, or leave ${stated} out`);
  }
  const deployed = stated ?? byUrl;
  if (typeof mode === 'string' && mode !== (deployed ?? mode)) {
    at('mode', 'does not fit the rest of the section', `write ${deployed ?? 'single'}, or leave it out`);
  }
  if ((deployed ?? mode) === 'sentinel' && sentinel === undefined && read.sentinelName === null) {
    at('sentinel', 'is missing', 'name the watched primary: sentinel: { name: mymaster }');
  }
  if ((deployed ?? mode) === 'cluster' && read.database !== 0) {
    at('url', 'names a database', 'a Cluster has only database 0: leave it out');
  }
  if (tls !== undefined && !read.tls) {
    at('tls', 'stands beside a URL without TLS', 'write rediss:// instead of redis://');
  }
  if (typeof keyPrefix === 'string' && !/^[\w.:-]{0,64}$/.test(keyPrefix)) {
    at('keyPrefix', 'is not usable', 'use up to 64 letters, digits and . _ : -');
  }
  return found;
}
