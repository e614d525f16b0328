/**
 * The shape of the configuration file: every key, its default, its description. What a value may be is in `values.ts`,
 * rules between values in `cross-checks.ts`, the meaning of absent keys in `build.ts`. The published JSON Schema is
 * generated from here, so a description here is documentation. Invariant: unknown keys are refused everywhere.
 */
import { z } from 'zod';
import { upstreamNamePattern } from './names.ts';
import { isSentinelName, readRedisNode, readRedisUrl } from './redis-url.ts';
import {
  count,
  expires,
  fieldName,
  fieldValue,
  hash,
  limit,
  origin,
  port,
  rate,
  seconds,
  secret,
  section,
} from './values.ts';

const credential = (text: string) =>
  z
    .union([
      fieldValue(),
      section({
        header: fieldName()
          .optional()
          .describe('Field that carries the credential; default as for the short form.'),
        value: fieldValue().describe('The whole field value, sent as it is ("Bearer …" included).'),
      }),
    ])
    .describe(text);

const shortForm =
  'Short form: the value alone, in the upstream’s credential field (authorization, or x-shopify-access-token for commerce).';

const waitShape = {
  maxQueued: count().optional().describe('Calls waiting per workspace and upstream. Default 1000.'),
  maxWaitSeconds: seconds()
    .optional()
    .describe('How long a call waits unless it asks otherwise. Default 45.'),
  maxWaitCeilingSeconds: seconds()
    .optional()
    .describe('Longest wait that a call may ask for with "Prefer: wait=<seconds>". Default 600.'),
};

/** Keys that may stand in `limits` or directly on the upstream, not in both. */
const paceShape = {
  maxInFlight: limit('Calls in flight per workspace and bucket. Default: commerce 1, others none.'),
  ...waitShape,
  learn: z
    .boolean()
    .optional()
    .describe('false pins the stated limits: what the upstream reports never raises them. Default true.'),
  probe: count()
    .optional()
    .describe('Calls sent to a bucket of unknown level before its first answer. Default 1.'),
};

/** Names of the keys that have two places. */
export const paceKeys: readonly string[] = Object.keys(paceShape);

const limits = section({
  requestsPerMinute: limit(
    'Calls per 60 s: fills the bucket’s request meter and is the default ceiling of each workspace. Default: language-model 500, commerce 40, generic none.',
  ),
  requestsPerDay: limit('Calls per 24 h, same roles. Default: language-model 10000, others none.'),
  tokensPerMinute: limit('Tokens per 60 s (language-model). Default: learned from the answers.'),
  tokensPerDay: limit('Tokens per 24 h (language-model). Default: learned from the answers.'),
  bucket: section({
    capacity: count().optional().describe('Calls the leaky bucket holds. Default 40.'),
    leakPerSecond: rate().optional().describe('Calls that leak per second. Default capacity / 20.'),
  })
    .optional()
    .describe('Commerce REST bucket, until the call-limit field of an answer teaches better.'),
  capacity: count().optional().describe('Same as bucket.capacity.'),
  leakPerSecond: rate().optional().describe('Same as bucket.leakPerSecond.'),
  cost: section({
    capacity: count().describe('Cost points the bucket holds.'),
    restorePerSecond: rate().describe('Cost points restored per second.'),
  })
    .optional()
    .describe('Commerce GraphQL cost points. Default: learned from throttleStatus.'),
  ...paceShape,
}).describe('The upstream’s quota as the operator knows it.');

const upstream = section({
  kind: z
    .enum(['language-model', 'commerce', 'generic'])
    .default('generic')
    .describe('Which dialect of limits and throttles the upstream speaks.'),
  origins: z.array(origin).min(1).describe('The only places calls of this upstream may go to.'),
  credential: credential(
    `Credential injected into every call. Without one the client brings its own. ${shortForm}`,
  ).optional(),
  limits: limits.optional(),
  bucketBy: z
    .array(z.enum(['credential', 'host', 'model']))
    .min(1)
    .optional()
    .describe('What tells buckets apart. Default: [credential], for language-model [credential, model].'),
  allowPrivateAddresses: z
    .boolean()
    .default(false)
    .describe('Allows http:// origins and private addresses: for tests and in-cluster upstreams only.'),
  propagateTrace: z.boolean().default(false).describe('Send the W3C traceparent upstream.'),
  timeouts: section({
    connectSeconds: seconds().default(10).describe('Name resolution, TCP and TLS together.'),
    headSeconds: seconds()
      .optional()
      .describe('From sending to the answer’s head. Default 300, commerce 60.'),
    idleSeconds: seconds().default(300).describe('Longest silence inside an answer.'),
    totalSeconds: seconds().default(900).describe('One whole exchange.'),
  }).prefault({}),
  maxSockets: count().default(512).describe('Sockets open to one origin at most.'),
  caFile: z
    .string()
    .min(1)
    .optional()
    .describe('PEM file with further certificate authorities; relative to this file.'),
  ...paceShape,
});

const perUpstream = (text: string) =>
  z
    .union([count(), z.record(z.string(), count())])
    .optional()
    .describe(`${text} One number counts for each upstream alone.`);

const workspace = section({
  keys: z
    .array(z.union([hash, section({ hash, expires: expires.optional() })]))
    .describe(
      'Valid API keys, as hashes. Several may be valid at once, for rotation; [] takes the last one away.',
    ),
  upstreams: z
    .array(z.string())
    .min(1)
    .optional()
    .describe('Upstreams this workspace may call. Default: all.'),
  requestsPerMinute: perUpstream('Own ceiling in every 60 s window, by upstream.'),
  requestsPerDay: perUpstream('Own ceiling per 24 h, by upstream.'),
  weight: rate().default(1).describe('Share of a bucket relative to other workspaces that wait for it.'),
  credentials: z
    .record(z.string(), credential(shortForm))
    .optional()
    .describe('Own upstream credentials, by upstream.'),
});

const server = section({
  host: z.string().min(1).default('0.0.0.0').describe('Address the data port listens on.'),
  port: port().default(8080).describe('Data port. 0 = any free port.'),
  adminHost: z.string().min(1).default('0.0.0.0').describe('Address the admin port listens on.'),
  adminPort: port()
    .default(9090)
    .describe('Admin port: probes, metrics, activity, live page. Never make it public.'),
  publicHosts: z
    .array(z.string().regex(/^[a-z0-9.[\]:-]+$/i))
    .default([])
    .describe(
      'Names (host or host:port) under which Sluice itself is reached; no origin may be one of them.',
    ),
  maxBodyBytes: count().default(10_485_760).describe('Largest request body.'),
  maxReplayBytes: count()
    .optional()
    .describe('Larger bodies are sent once and never again. Default maxBodyBytes.'),
  maxHeldBytes: count()
    .optional()
    .describe('Request bodies held by the process at most, then 503. Default 256 MiB, at least four bodies.'),
  drainSeconds: z
    .number()
    .min(0)
    .max(86_400)
    .default(25)
    .describe('Time for waiting and running calls after SIGTERM.'),
  drainDelaySeconds: z
    .number()
    .min(0)
    .max(3600)
    .default(5)
    .describe('Part of it in which new calls are still accepted, while load balancers notice.'),
  keepAliveSeconds: seconds()
    .default(75)
    .describe('Idle time of client connections; keep it above the load balancer’s.'),
  ...waitShape,
});

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

const redis = section({
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

const labelKey = secret()
  .refine((text) => text.trim() === '' || text.length >= 16, {
    message: 'is shorter than 16 characters',
    params: { fix: 'use a random secret, for instance of: openssl rand -hex 32' },
  })
  .optional()
  .describe(
    'Secret for workspace labels and keyed digests. Required with redis; else a random one per process.',
  );

/** The whole file. */
export const fileSchema = section({
  server: server.prefault({}),
  redis: redis.optional().describe('Leave out for the embedded limiter of one process.'),
  privacy: section({ labelKey }).prefault({}),
  log: section({
    level: z
      .enum(['debug', 'info', 'warn', 'error', 'silent'])
      .default('info')
      .describe('Least level that is written.'),
    sampleSuccesses: z
      .number()
      .min(0)
      .max(1)
      .default(1)
      .describe('Share of successful calls that get a log line.'),
  }).prefault({}),
  upstreams: z
    .record(z.string(), upstream)
    .meta({ minProperties: 1, propertyNames: { pattern: upstreamNamePattern.source } })
    .describe('APIs behind Sluice, by name.'),
  workspaces: z
    .record(z.string(), workspace)
    .meta({ propertyNames: { minLength: 1, maxLength: 128 } })
    .describe('Callers, by id. {} lets nobody call.'),
});

/** The file after defaults of single keys; absent keys that depend on others are still absent. */
export type FileInput = z.output<typeof fileSchema>;
export type RedisInput = NonNullable<FileInput['redis']>;
export type UpstreamInput = FileInput['upstreams'][string];
export type WorkspaceInput = FileInput['workspaces'][string];
export type CredentialInput = NonNullable<UpstreamInput['credential']>;
