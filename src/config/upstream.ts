/** `upstreams.<name>`: where calls go, with which credential, and the quota as the operator knows it. */
import { resolve } from 'node:path';
import { z } from 'zod';
import { readCarriers } from '../credential-carriers.policy.ts';
import { account, credential, settleCredential, shortForm } from './credential.ts';
import { defaultsOfKinds, defaultWaits } from './defaults.ts';
import { origin, originFault } from './origins.ts';
import type { Path } from './problem.ts';
import { waitFault, waitKeys, waitShape, type ServerInput, type Waits } from './server.ts';
import {
  buildDialect,
  checkBucketBy,
  refusalParts,
  speaks,
  type BuiltDialect,
  type Dialect,
} from './speaks.ts';
import {
  addressRange,
  carrierWord,
  count,
  filePath,
  limit,
  orNull,
  pick,
  rate,
  refuse,
  requestField,
  seconds,
  section,
  type Frozen,
  type RuleContext,
} from './values.ts';

/** Keys that may stand in `limits` or directly on the upstream, not in both. */
const paceShape = {
  maxInFlight: limit('Calls in flight per workspace and bucket. Default: commerce 1, others none.'),
  maxInFlightTotal: limit(
    'Calls in flight per bucket, of all workspaces. Default: learned from refusals that say so, unless learn is false.',
  ),
  ...waitShape,
  learn: z
    .exactOptional(z.boolean())
    .describe(
      'false pins the stated limits: what the upstream reports never raises them, and its refusals teach no maxInFlightTotal. Default true.',
    ),
  probe: z
    .exactOptional(count)
    .describe('Calls sent to a bucket of unknown level before its first response. Default 1.'),
};

const paceKeys = Object.keys(paceShape) as readonly (keyof typeof paceShape)[];

/** Refuses keys that two sections state. */
function refuseGivenTwice<Key extends string>(
  keys: readonly Key[],
  outer: { readonly [Name in Key]?: unknown },
  within: { readonly [Name in Key]?: unknown },
  { context, inner }: { readonly context: RuleContext; readonly inner: string },
): void {
  for (const key of keys)
    if (outer[key] !== undefined && within[key] !== undefined)
      refuse(context, { reason: `is also given in ${inner}`, fix: 'keep one of the two' }, [key]);
}

const limits = section({
  requestsPerMinute: limit(
    'Calls per 60 s: fills the bucket’s request meter and is the default ceiling of each workspace. Default, until a response states a limit: language-model 500, commerce 40, generic none.',
  ),
  requestsPerDay: limit(
    'Calls per 24 h, same roles. Default: language-model 10000, others none. Without `redis` the count begins at 0 with each start.',
  ),
  tokensPerMinute: limit('Tokens per 60 s (language-model). Default: learned from the responses.'),
  tokensPerDay: limit('Tokens per 24 h (language-model). Default: learned from the responses.'),
  bucket: section({
    capacity: count.optional().describe('Calls the leaky bucket holds. Default 40.'),
    leakPerSecond: rate.optional().describe('Calls that leak per second. Default capacity / 20.'),
  })
    .optional()
    .describe('Commerce REST bucket, until the call-limit field of a response teaches better.'),
  capacity: count.optional().describe('Same as bucket.capacity.'),
  leakPerSecond: rate.optional().describe('Same as bucket.leakPerSecond.'),
  cost: z
    .exactOptional(
      section({
        capacity: count.describe('Cost points the bucket holds.'),
        restorePerSecond: rate.describe('Cost points restored per second.'),
      }),
    )
    .describe('Commerce GraphQL cost points. Default: learned from throttleStatus.'),
  ...paceShape,
})
  .superRefine(({ bucket = {}, ...limits }, context) =>
    refuseGivenTwice(['capacity', 'leakPerSecond'], limits, bucket, { context, inner: 'bucket' }),
  )
  .describe('The upstream’s quota as the operator knows it.');

/** One upstream. */
export const upstream = section({
  kind: z
    .enum(['language-model', 'commerce', 'generic'])
    .default('generic')
    .describe('Which dialect of limits and throttles the upstream speaks.'),
  mode: z
    .enum(['enforce', 'observe'])
    .default('enforce')
    .describe(
      'observe: every call is sent at once, no limit holds or refuses it and no throttle is absorbed; Sluice says what it would have done.',
    ),
  speaks: speaks.optional(),
  origins: z.array(origin).min(1).describe('The only places calls of this upstream may go to.'),
  credential: credential(
    `Credential injected into every call. Without one the client brings its own. ${shortForm}`,
  ).optional(),
  account: account.optional(),
  credentialFields: z
    .array(carrierWord)
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
  maxBuckets: count
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
    connectSeconds: seconds.default(10).describe('Name resolution, TCP and TLS together.'),
    headSeconds: seconds
      .optional()
      .describe('From sending to the response’s head. Default 300, commerce 60.'),
    idleSeconds: seconds.default(300).describe('Longest silence inside a response.'),
    totalSeconds: seconds
      .optional()
      .describe('One whole exchange, however fast it moves. Default: no such limit.'),
  }).prefault({}),
  keepAliveComments: seconds
    .optional()
    .describe(
      'A silent event stream gets a comment so often, for clients and proxies that give up a silent response.',
    ),
  maxSockets: count.default(512).describe('Sockets open to one origin at most.'),
  idempotencyFields: z
    .array(requestField)
    .max(8)
    .default([])
    .describe(
      'Request fields that serve as the idempotency key of a call without Idempotency-Key (webhook ids), the first one that it has.',
    ),
  caFile: orNull(filePath).describe('PEM file with further certificate authorities; relative to this file.'),
  ...paceShape,
}).superRefine((upstream, context) => {
  const { kind, speaks, bucketBy, account, credential } = upstream;
  refuseGivenTwice(paceKeys, upstream, upstream.limits ?? {}, { context, inner: 'limits' });
  if (bucketBy !== undefined) checkBucketBy(bucketBy, { context, path: ['bucketBy'] });
  if (speaks !== undefined && kind !== 'generic') refuseUnspoken(speaks, context);
  if (bucketBy !== undefined && typeof speaks === 'object' && speaks.bucketBy !== undefined)
    refuse(context, { reason: 'is also given in speaks', fix: 'keep one of the two' }, ['bucketBy']);
  if (account !== undefined && credential === undefined) {
    const fix = 'add the credential, or leave account out: what a client brings is a quota of its own';
    refuse(context, { reason: 'names the quota of no credential', fix }, ['account']);
  }
});

export type UpstreamInput = z.output<typeof upstream>;

/** Other kinds have dialects of their own: what an operator adds are words of refusals. */
function refuseUnspoken(speaks: NonNullable<UpstreamInput['speaks']>, context: RuleContext): void {
  const fix = 'leave kind out, or describe refusals alone: throttledBy, permanentBy, waitIn, hintlessSeconds';
  const stated = typeof speaks === 'string' ? [] : Object.entries(speaks);
  const others = stated.filter(([part, value]) => value !== undefined && !refusalParts.includes(part));
  const paths = typeof speaks === 'string' ? [['speaks']] : others.map(([part]) => ['speaks', part]);
  for (const path of paths) refuse(context, { reason: 'belongs to the kind generic', fix }, path);
}

/** Refuses origins that lead back to this server or inside, and waits that the ceiling of the server forbids. */
export function checkBesideServer(
  { origins, allowPrivateAddresses, limits = {}, ...upstream }: UpstreamInput,
  server: ServerInput,
  { context, path }: { readonly context: RuleContext; readonly path: Path },
): void {
  origins.forEach((origin, index) => {
    const fault = originFault(origin, allowPrivateAddresses, server);
    if (fault !== null) refuse(context, fault, [...path, 'origins', index]);
  });
  const { maxWaitCeilingSeconds } = {
    ...defaultWaits,
    ...waitsOf(server),
    ...waitsOf(upstream),
    ...waitsOf(limits),
  };
  for (const [section, at] of [
    [upstream, path],
    [limits, [...path, 'limits']],
  ] as const) {
    const fault = waitFault(section, maxWaitCeilingSeconds);
    if (fault !== null) refuse(context, fault, [...at, 'maxWaitSeconds']);
  }
}

const waitsOf = (section: Waits): Waits => pick(section, waitKeys);

/** The upstream as calls are sent to it: what absent keys mean is filled in. */
export interface UpstreamSettings extends Frozen<ReturnType<typeof settleUpstream>> {}
/** Limits of an upstream. `null`: none stated (learned, or unlimited). Rates are the upstream's own units. */
export interface UpstreamLimits extends Frozen<ReturnType<typeof settleLimits>> {}
/** Times a single upstream exchange may take, milliseconds. */
export interface UpstreamTimeouts extends Frozen<ReturnType<typeof settleTimeouts>> {}

/** `folder`: where relative paths start. */
export function settleUpstream(
  name: string,
  written: UpstreamInput,
  { server, folder }: { readonly server: ServerInput; readonly folder: string },
) {
  const { kind, credential, account, bucketBy } = written;
  const defaults = defaultsOfKinds[kind];
  const spoken = written.speaks === undefined ? null : buildDialect(written.speaks);
  return {
    name,
    ...pick(written, [
      'kind',
      'mode',
      'origins',
      'maxBuckets',
      'allowPrivateAddresses',
      'cookies',
      'propagateTrace',
      'maxSockets',
      'idempotencyFields',
    ]),
    caFile: written.caFile === null ? null : resolve(folder, written.caFile),
    /** `null`: the client brings its own. */
    credential:
      credential === undefined
        ? null
        : settleCredential(credential, { defaultField: defaults.field, account, folder }),
    /** Where requests carry a credential of the upstream. */
    carriers: readCarriers(written.credentialFields, kind),
    limits: settleLimits(written, server, spoken),
    /** What separates the buckets of this upstream: `credential` always, `host` where the platform counts per store. */
    bucketBy: [...new Set(bucketBy ?? spoken?.bucketBy ?? defaults.bucketBy)],
    /** How it counts, reports and refuses, where that is described; `null`: as its kind says. */
    dialect: dialectBeside(bucketBy, spoken),
    timeouts: settleTimeouts(written.timeouts, defaults.headSeconds),
    /** A silent event stream gets a comment so often, milliseconds; `null` = none. */
    commentMs: written.keepAliveComments === undefined ? null : written.keepAliveComments * 1000,
  };
}

/** `bucketBy` of the upstream replaces that of a preset, with everything that distinguishes its quotas. */
function dialectBeside(bucketBy: UpstreamInput['bucketBy'], spoken: BuiltDialect | null): Dialect | null {
  if (spoken === null || bucketBy === undefined) return spoken?.dialect ?? null;
  return { ...spoken.dialect, separators: [], namedIn: null };
}

function settleLimits(written: UpstreamInput, server: ServerInput, spoken: BuiltDialect | null) {
  const kind = defaultsOfKinds[written.kind];
  const own: NonNullable<UpstreamInput['limits']> = written.limits ?? {};
  const { bucket, capacity = bucket?.capacity ?? 40, leakPerSecond, ...limits } = own;
  const stated = {
    ...pick(kind, ['requestsPerMinute', 'requestsPerDay']),
    tokensPerMinute: null,
    tokensPerDay: null,
    cost: null,
    maxInFlight: spoken?.maxInFlight ?? kind.maxInFlight,
    maxInFlightTotal: null,
    ...defaultWaits,
    learn: true,
    probe: 1,
    ...pick(server, waitKeys),
    ...pick(written, paceKeys),
    ...limits,
  };
  return {
    ...stated,
    /** Whether a limit is the kind's and nobody wrote it: as a ceiling, it yields to what the upstream states. */
    isDefault: {
      perMinute: own.requestsPerMinute === undefined,
      perDay: own.requestsPerDay === undefined,
      bucket: [bucket, own.capacity, leakPerSecond].every((written) => written === undefined),
    },
    /** Commerce REST leaky bucket. */
    bucket: {
      capacity,
      // The platform empties a full bucket in 20 s: 40 at 2/s, 80 at 4/s, 400 at 20/s.
      leakPerSecond: bucket?.leakPerSecond ?? leakPerSecond ?? capacity / 20,
    },
    // One section may state a wait and another a shorter maximum wait: the maximum wins.
    maxWaitSeconds: Math.min(stated.maxWaitSeconds, stated.maxWaitCeilingSeconds),
  };
}

const settleTimeouts = (written: UpstreamInput['timeouts'], headSeconds: number) => ({
  connectMs: written.connectSeconds * 1000,
  /** Time from the sent request to the response's head. */
  headMs: (written.headSeconds ?? headSeconds) * 1000,
  /** Longest silence inside the response's body. */
  idleMs: written.idleSeconds * 1000,
  /** Whole exchange; `null` = as long as it moves. */
  totalMs: written.totalSeconds === undefined ? null : written.totalSeconds * 1000,
});
