/**
 * `upstreams.<name>`: where calls go, with which credential, and the quota as the operator knows it. Rules between
 * several keys are in `upstream-checks.ts`.
 */
import { z } from 'zod';
import { account, credential, shortForm } from './credential-schema.ts';
import { speaks } from './speaks-schema.ts';
import {
  addressRange,
  carrierWord,
  count,
  limit,
  origin,
  rate,
  requestField,
  seconds,
  section,
} from './values.ts';
import { waitShape } from './wait-schema.ts';

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
    .describe('Calls sent to a bucket of unknown level before its first response. Default 1.'),
};

/** Names of the keys that may stand in either of two sections. */
export const paceKeys: readonly string[] = Object.keys(paceShape);

const limits = section({
  requestsPerMinute: limit(
    'Calls per 60 s: fills the bucket’s request meter and is the default ceiling of each workspace. Default: language-model 500, commerce 40, generic none.',
  ),
  requestsPerDay: limit('Calls per 24 h, same roles. Default: language-model 10000, others none.'),
  tokensPerMinute: limit('Tokens per 60 s (language-model). Default: learned from the responses.'),
  tokensPerDay: limit('Tokens per 24 h (language-model). Default: learned from the responses.'),
  bucket: section({
    capacity: count().optional().describe('Calls the leaky bucket holds. Default 40.'),
    leakPerSecond: rate().optional().describe('Calls that leak per second. Default capacity / 20.'),
  })
    .optional()
    .describe('Commerce REST bucket, until the call-limit field of a response teaches better.'),
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

/** One upstream. */
export const upstream = section({
  kind: z
    .enum(['language-model', 'commerce', 'generic'])
    .default('generic')
    .describe('Which dialect of limits and throttles the upstream speaks.'),
  speaks: speaks.optional(),
  origins: z.array(origin).min(1).describe('The only places calls of this upstream may go to.'),
  credential: credential(
    `Credential injected into every call. Without one the client brings its own. ${shortForm}`,
  ).optional(),
  account: account.optional(),
  credentialFields: z
    .array(carrierWord())
    .max(64)
    .default([])
    .describe(
      'Further request fields, and as query:NAME query members, that carry a credential of this upstream; with - before it what carries none here.',
    ),
  limits: limits.optional(),
  bucketBy: z
    .array(z.enum(['credential', 'host', 'model']))
    .min(1)
    .optional()
    .describe('What tells buckets apart. Default: [credential], for language-model [credential, model].'),
  maxBuckets: count()
    .max(1_000_000)
    .default(1_000)
    .describe(
      'Buckets that one workspace may have at a time by what its calls choose (models, fields, paths and body members in bucketBy, credentials of its own); further values share one.',
    ),
  allowPrivateAddresses: z
    .union([z.boolean(), z.array(addressRange).min(1)])
    .default(false)
    .describe(
      'Allows http:// origins and private addresses: all of them, or those of these ranges. For tests and in-cluster upstreams only.',
    ),
  cookies: z
    .enum(['scoped', 'pass'])
    .default('scoped')
    .describe(
      'scoped: on /via cookies pass, under the upstream’s own path; on /proxy, where a client has one jar for all upstreams, they do not. pass: there too, unchanged.',
    ),
  propagateTrace: z.boolean().default(false).describe('Send the W3C traceparent upstream.'),
  timeouts: section({
    connectSeconds: seconds().default(10).describe('Name resolution, TCP and TLS together.'),
    headSeconds: seconds()
      .optional()
      .describe('From sending to the response’s head. Default 300, commerce 60.'),
    idleSeconds: seconds().default(300).describe('Longest silence inside a response.'),
    totalSeconds: seconds().default(900).describe('One whole exchange.'),
  }).prefault({}),
  maxSockets: count().default(512).describe('Sockets open to one origin at most.'),
  idempotencyFields: z
    .array(requestField())
    .max(8)
    .default([])
    .describe(
      'Request fields that serve as the idempotency key of a call without Idempotency-Key (webhook ids), the first one that it has.',
    ),
  caFile: z
    .string()
    .min(1)
    .optional()
    .describe('PEM file with further certificate authorities; relative to this file.'),
  ...paceShape,
});
