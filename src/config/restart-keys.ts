/**
 * Which changes of a file take effect at the next start only, because ports, connections and names in Redis are made from
 * them once. Owns: naming their keys, and keeping what was started. Shows no value.
 */
import type { RedisSettings, ServerSettings, Settings } from './settings.ts';

/** Keys of the file whose new value waits for a restart; empty = everything takes effect now. */
export function restartKeys(started: Settings, next: Settings): readonly string[] {
  const keys = [
    ...changedKeys(started.server, next.server).map((key) => serverKeys[key]),
    ...redisChanges(started.redis, next.redis),
    ...(started.privacy.labelKey === next.privacy.labelKey ? [] : ['privacy.labelKey']),
  ];
  return [...new Set(keys)].filter((key) => key !== null);
}

/** The new settings, except that those which only a restart can change keep the values that the process was started with. */
export const withStartedValues = (started: Settings, next: Settings): Settings =>
  Object.freeze({ ...next, server: started.server, redis: started.redis, privacy: started.privacy });

/** The key in the file of each setting; `null`: the setting is used only to check the file, so that a new value is in force at once. */
const serverKeys: { readonly [Key in keyof ServerSettings]-?: string | null } = {
  host: 'server.host',
  port: 'server.port',
  adminHost: 'server.adminHost',
  adminPort: 'server.adminPort',
  adminNames: 'server.adminNames',
  adminToken: 'server.adminToken',
  maxBodyBytes: 'server.maxBodyBytes',
  maxReplayBytes: 'server.maxReplayBytes',
  maxHeldBytes: 'server.maxHeldBytes',
  maxConnections: 'server.maxConnections',
  maxCallsPerConnection: 'server.maxCallsPerConnection',
  maxOpenCalls: 'server.maxOpenCalls',
  maxEventLoopDelayMs: 'server.maxEventLoopDelayMs',
  maxMemoryRatio: 'server.maxMemoryRatio',
  drainSeconds: 'server.drainSeconds',
  drainDelaySeconds: 'server.drainDelaySeconds',
  keepAliveSeconds: 'server.keepAliveSeconds',
  publicHosts: null,
};

/** The key in the file of each setting of Redis. */
const redisKeys: { readonly [Key in keyof RedisSettings]: string } = {
  whenDown: 'redis.whenDown',
  mode: 'redis.mode',
  nodes: 'redis.url',
  sentinelName: 'redis.sentinel.name',
  username: 'redis.url',
  password: 'redis.url',
  database: 'redis.url',
  tls: 'redis.tls',
  commandTimeoutMs: 'redis.commandTimeoutMs',
  keyPrefix: 'redis.keyPrefix',
};

function redisChanges(started: RedisSettings | null, next: RedisSettings | null): string[] {
  if (started === null || next === null) return started === next ? [] : ['redis'];
  return changedKeys(started, next).map((key) => redisKeys[key]);
}

/** Keys whose values differ. Settings hold plain values only, so their JSON can be compared. */
function changedKeys<T extends object>(a: T, b: T): (keyof T)[] {
  const keys = Object.keys({ ...a, ...b }) as (keyof T)[];
  return keys.filter((key) => JSON.stringify(a[key]) !== JSON.stringify(b[key]));
}
