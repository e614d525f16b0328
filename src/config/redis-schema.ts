/** `redis`: where the state of several replicas is. What its keys must be together is judged in `redis-checks.ts`. */
import { z } from 'zod';
import { isSentinelName, readRedisNode, readRedisUrl } from './redis-url.ts';
import { secret, section } from './values.ts';

const redisNodes = (text: string) =>
  z
    .array(
      z.string().refine((node) => readRedisNode(node, 1) !== null, {
        message: 'is not host:port',
        params: { fix: 'write host:port' },
      }),
    )
    .default([])
    .describe(text);

/** The section. */
export const redis = section({
  url: secret()
    .refine((text) => text.trim() === '' || readRedisUrl(text) !== null, {
      message: 'is not a Redis URL',
      params: { fix: 'write redis://host:6379 or rediss://user:password@host:6380' },
    })
    .describe(
      'redis:// or rediss:// (TLS), with user and password; also redis+sentinel://host,host/name and redis+cluster://host,host.',
    ),
  whenDown: z
    .enum(['local', 'deny'])
    .default('local')
    .describe(
      'Without Redis: each replica enforces its share (local), or calls are refused with 503 (deny).',
    ),
  mode: z
    .enum(['single', 'sentinel', 'cluster'])
    .optional()
    .describe('How Redis is deployed. Default: what the URL or the sections sentinel and cluster say.'),
  sentinel: section({
    name: z
      .string()
      .refine(isSentinelName, { message: 'is not a name', params: { fix: 'give the name of the primary' } })
      .describe('Name of the primary that the Sentinels watch.'),
    nodes: redisNodes('Further Sentinels beside the one of the URL, as host:port.'),
  })
    .optional()
    .describe('Redis behind Sentinels; the URL names the first of them.'),
  cluster: section({ nodes: redisNodes('Further nodes beside the one of the URL, as host:port.') })
    .optional()
    .describe('Redis Cluster; the URL names the first node.'),
  tls: section({
    caFile: z.string().min(1).optional().describe('PEM file with further certificate authorities.'),
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
});
