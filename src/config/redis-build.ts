/** From `redis` of the validated file to settings: the URL and the keys beside it say the same servers in two ways. */
import { readRedisNode, readRedisUrl, redisPort } from './redis-url.ts';
import type { RedisInput } from './schema.ts';
import type { RedisSettings } from './settings.ts';

export function buildRedis(input: RedisInput): RedisSettings {
  const url = readRedisUrl(input.url);
  const mode =
    input.mode ??
    (input.sentinel !== undefined
      ? 'sentinel'
      : input.cluster !== undefined
        ? 'cluster'
        : (url?.mode ?? 'single'));
  const further = [...(input.sentinel?.nodes ?? []), ...(input.cluster?.nodes ?? [])];
  return {
    whenDown: input.whenDown,
    mode,
    nodes: [
      ...(url?.nodes ?? []),
      ...further.flatMap((text) => {
        const node = readRedisNode(text, redisPort(mode));
        return node === null ? [] : [node];
      }),
    ],
    sentinelName: input.sentinel?.name ?? url?.sentinelName ?? null,
    username: url?.username ?? null,
    password: url?.password ?? null,
    database: url?.database ?? 0,
    tls: url?.tls === true ? { caFile: input.tls?.caFile ?? null } : null,
    commandTimeoutMs: input.commandTimeoutMs,
    keyPrefix: input.keyPrefix,
  };
}
