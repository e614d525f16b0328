/** Settings of a plain Redis on this machine, as a configuration that names nothing but its address has them. */
import type { RedisSettings } from '../../src/config/settings.ts';

export const plainRedis = (changes: Partial<RedisSettings> = {}): RedisSettings => ({
  whenDown: 'local',
  replicas: null,
  startSeconds: 30,
  mode: 'single',
  nodes: [{ host: '127.0.0.1', port: 6379 }],
  sentinelName: null,
  sentinelPassword: null,
  username: null,
  password: null,
  database: 0,
  tls: null,
  commandTimeoutMs: 250,
  keyPrefix: '',
  ...changes,
});
