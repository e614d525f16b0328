/** `upstreams.<name>`: where calls go, with which credential, and the quota as the operator knows it. */
import { resolve } from 'node:path';
import { z } from 'zod';
import { carrierWordFault, readCarriers } from '../credential-carriers.policy.ts';
import { isRange } from '../target/address.policy.ts';
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
import * as is from './values.ts';

/** A limit. Absence means the default of the kind, never "no limit". */
const limit = z.exactOptional(is.countOrNone);

/** Keys that may stand in `limits` or directly on the upstream, not in both. */
const paceShape = {
  ...is.described(
    { maxInFlight: limit, maxInFlightTotal: limit },
    {
      maxInFlight:
        'Calls in flight per workspace and bucket. Default: commerce 1, others none. "none" = no limit.',
      maxInFlightTotal:
        'Calls in flight per bucket, of all workspaces. Default: learned from refusals that say so, unless learn is false. "none" = no limit.',
    },
  ),
  ...waitShape,
  ...is.described(
    { learn: z.exactOptional(z.boolean()), probe: z.exactOptional(is.count) },
    {
      learn:
        'false pins the stated limits: what the upstream reports never raises them, and its refusals teach no maxInFlightTotal. Default true.',
      probe: 'Calls sent to a bucket of unknown level before its first response. Default 1.',
    },
  ),
};

const paceKeys = Object.keys(paceShape) as readonly (keyof typeof paceShape)[];

/** Refuses keys that two sections state. */
function refuseGivenTwice<Key extends string>(
  keys: readonly Key[],
  [outer, within]: readonly { readonly [Name in Key]?: unknown }[],
  { context, inner }: { readonly context: is.RuleContext; readonly inner: string },
): void {
  for (const key of keys)
    if (outer?.[key] !== undefined && within?.[key] !== undefined)
      is.refuse(context, { reason: `is also given in ${inner}`, fix: 'keep one of the two' }, [key]);
}

const bucket = is.section(
  is.described(
    { capacity: is.count.optional(), leakPerSecond: is.rate.optional() },
    {
      capacity: 'Calls the leaky bucket holds. Default 40.',
      leakPerSecond: 'Calls that leak per second. Default capacity / 20.',
    },
  ),
);
const cost = is.section(
  is.described(
    { capacity: is.count, restorePerSecond: is.rate },
    { capacity: 'Cost points the bucket holds.', restorePerSecond: 'Cost points restored per second.' },
  ),
);

const limits = is
  .section({
    ...is.described(
      {
        requestsPerMinute: limit,
        requestsPerDay: limit,
        tokensPerMinute: limit,
        tokensPerDay: limit,
        bucket: bucket.optional(),
        ...bucket.shape,
        cost: z.exactOptional(cost),
      },
      {
        requestsPerMinute:
          'Calls per 60 s: fills the bucket’s request meter and is the default ceiling of each workspace. Default, until a response states a limit: language-model 500, commerce 40, generic none. "none" = no limit.',
        requestsPerDay:
          'Calls per 24 h, same roles. Default: language-model 10000, others none. Without `redis` the count begins at 0 with each start. "none" = no limit.',
        tokensPerMinute:
          'Tokens per 60 s (language-model). Default: learned from the responses. "none" = no limit.',
        tokensPerDay:
          'Tokens per 24 h (language-model). Default: learned from the responses. "none" = no limit.',
        bucket: 'Commerce REST bucket, until the call-limit field of a response teaches better.',
        capacity: 'Same as bucket.capacity.',
        leakPerSecond: 'Same as bucket.leakPerSecond.',
        cost: 'Commerce GraphQL cost points. Default: learned from throttleStatus.',
      },
    ),
    ...paceShape,
  })
  .superRefine(({ bucket = {}, ...limits }, context) =>
    refuseGivenTwice(['capacity', 'leakPerSecond'], [limits, bucket], { context, inner: 'bucket' }),
  );

const timeouts = is.section(
  is.described(
    {
      connectSeconds: is.seconds.default(10),
      headSeconds: is.seconds.optional(),
      idleSeconds: is.seconds.default(300),
      totalSeconds: is.seconds.optional(),
    },
    {
      connectSeconds: 'Name resolution, TCP and TLS together.',
      headSeconds: 'From sending to the response’s head. Default 300, commerce 60.',
      idleSeconds: 'Longest silence inside a response.',
      totalSeconds: 'One whole exchange, however fast it moves. Default: no such limit.',
    },
  ),
);

/** A request field or query member that carries a credential, or does not. */
const carrierWord = is.text(
  'write x-acme-key, query:acme_key, or -query:key for what is none here',
  carrierWordFault,
);
const addressRange = is.text('write one such as 10.0.0.0/8, fd00::/8 or 10.1.2.3', (text) =>
  isRange(text) ? null : 'is not a range of addresses',
);
/** A request field that says something about a call. */
const requestField = is.formed(
  /^[\w!#$%&'*+.^`|~-]{1,128}$/,
  'is not a field name',
  'name a field such as x-shopify-webhook-id',
);

const upstreamShape = is.described(
  {
    kind: z.enum(['language-model', 'commerce', 'generic']).default('generic'),
    mode: z.enum(['enforce', 'observe']).default('enforce'),
    speaks: speaks.optional(),
    origins: z.array(origin).min(1),
    credential: credential.optional(),
    account: account.optional(),
    credentialFields: z.array(carrierWord).max(64).default([]),
    limits: limits.optional(),
    bucketBy: z
      .array(z.enum(['credential', 'host', 'model']))
      .min(1)
      .optional(),
    maxBuckets: is.count.max(1_000_000).default(1_000),
    allowPrivateAddresses: z.union([z.boolean(), z.array(addressRange).min(1)]).default(false),
    cookies: z.enum(['scoped', 'pass']).default('scoped'),
    propagateTrace: z.boolean().default(false),
    timeouts: timeouts.prefault({}),
    keepAliveComments: is.seconds.optional(),
    maxSockets: is.count.default(512),
    idempotencyFields: z.array(requestField.toLowerCase()).max(8).default([]),
    caFile: is.orNull(is.filePath),
  },
  {
    kind: 'Which dialect of limits and throttles the upstream speaks.',
    mode: 'observe: every call is sent at once, no limit holds or refuses it and no throttle is absorbed; Sluice says what it would have done.',
    origins: 'The only places calls of this upstream may go to.',
    credential: `Credential injected into every call. Without one the client brings its own. ${shortForm}`,
    credentialFields:
      'Further request fields, and as query:NAME query members, that carry a credential of this upstream; with - before it what carries none here.',
    limits: 'The upstream’s quota as the operator knows it.',
    bucketBy: 'What tells buckets apart. Default: [credential], for language-model [credential, model].',
    maxBuckets:
      'Buckets that one workspace may have at a time by what its calls choose (models, fields, paths and body members in bucketBy, credentials of its own); further values share one.',
    allowPrivateAddresses:
      'Allows http:// origins and private addresses: all of them, or those of these ranges. For tests and in-cluster upstreams only.',
    cookies:
      'scoped: on /via cookies pass, under the upstream’s own path; on /proxy, where a client has one jar for all upstreams, they do not. pass: there too, unchanged.',
    propagateTrace: 'Send the W3C traceparent upstream.',
    keepAliveComments:
      'A silent event stream gets a comment so often, for clients and proxies that give up a silent response.',
    maxSockets: 'Sockets open to one origin at most.',
    idempotencyFields:
      'Request fields that serve as the idempotency key of a call without Idempotency-Key (webhook ids), the first one that it has.',
    caFile: 'PEM file with further certificate authorities; relative to this file.',
  },
);

/** One upstream. */
export const upstream = is.section({ ...upstreamShape, ...paceShape }).superRefine((upstream, context) => {
  const { kind, speaks, bucketBy, account, credential } = upstream;
  refuseGivenTwice(paceKeys, [upstream, upstream.limits ?? {}], { context, inner: 'limits' });
  if (bucketBy !== undefined) checkBucketBy(bucketBy, context);
  if (speaks !== undefined && kind !== 'generic') refuseUnspoken(speaks, context);
  if (bucketBy !== undefined && typeof speaks === 'object' && speaks.bucketBy !== undefined)
    is.refuse(context, { reason: 'is also given in speaks', fix: 'keep one of the two' }, ['bucketBy']);
  if (account !== undefined && credential === undefined) {
    const fix = 'add the credential, or leave account out: what a client brings is a quota of its own';
    is.refuse(context, { reason: 'names the quota of no credential', fix }, ['account']);
  }
});

type UpstreamInput = z.output<typeof upstream>;

/** Other kinds have dialects of their own: what an operator adds are words of refusals. */
function refuseUnspoken(speaks: NonNullable<UpstreamInput['speaks']>, context: is.RuleContext): void {
  const fix = 'leave kind out, or describe refusals alone: throttledBy, permanentBy, waitIn, hintlessSeconds';
  const others = Object.entries(speaks)
    .filter(([part, value]) => value !== undefined && !refusalParts.includes(part))
    .map(([part]) => ['speaks', part]);
  for (const path of typeof speaks === 'string' ? [['speaks']] : others)
    is.refuse(context, { reason: 'belongs to the kind generic', fix }, path);
}

/** Refuses origins that lead back to this server or inside, and waits that the ceiling of the server forbids. */
export function checkBesideServer(
  { origins, allowPrivateAddresses, limits = {}, ...upstream }: UpstreamInput,
  server: ServerInput,
  { context, path }: { readonly context: is.RuleContext; readonly path: Path },
): void {
  origins.forEach((origin, index) => {
    const fault = originFault(origin, allowPrivateAddresses, server);
    if (fault !== null) is.refuse(context, fault, [...path, 'origins', index]);
  });
  const { maxWaitCeilingSeconds } = waitsOf(server, upstream, limits);
  for (const [section, at] of [
    [upstream, path],
    [limits, [...path, 'limits']],
  ] as const) {
    const fault = waitFault(section, maxWaitCeilingSeconds);
    if (fault !== null) is.refuse(context, fault, [...at, 'maxWaitSeconds']);
  }
}

/** The waits of sections, those of later ones before those of earlier ones. */
const waitsOf = (...sections: readonly Waits[]) => ({
  ...defaultWaits,
  ...(Object.assign({}, ...sections.map((section) => is.pick(section, waitKeys))) as Waits),
});

/** The upstream as calls are sent to it: what absent keys mean is filled in. */
export interface UpstreamSettings extends is.Frozen<ReturnType<typeof settleUpstream>> {}
/** Limits of an upstream. `null`: none stated (learned, or unlimited). Rates are the upstream's own units. */
export interface UpstreamLimits extends is.Frozen<ReturnType<typeof settleLimits>> {}
/** Times a single upstream exchange may take, milliseconds. */
export interface UpstreamTimeouts extends is.Frozen<ReturnType<typeof settleTimeouts>> {}

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
    kind,
    mode: written.mode,
    origins: written.origins,
    maxBuckets: written.maxBuckets,
    allowPrivateAddresses: written.allowPrivateAddresses,
    cookies: written.cookies,
    propagateTrace: written.propagateTrace,
    maxSockets: written.maxSockets,
    idempotencyFields: written.idempotencyFields,
    caFile: written.caFile === null ? null : resolve(folder, written.caFile),
    /** `null`: the client brings its own. */
    credential:
      credential === undefined
        ? null
        : settleCredential(credential, { field: defaults.field, account, folder }),
    /** Where requests carry a credential of the upstream. */
    carriers: readCarriers(written.credentialFields, kind),
    limits: settleLimits(written, server, spoken),
    /** What separates the buckets of this upstream: `credential` always, `host` where the platform counts per store. */
    bucketBy: [...new Set(bucketBy ?? spoken?.bucketBy ?? defaults.bucketBy)],
    /** How it counts, reports and refuses, where that is described; `null`: as its kind says. */
    dialect: spoken === null ? null : dialectBeside(bucketBy, spoken),
    timeouts: settleTimeouts(written.timeouts, defaults.headSeconds),
    /** A silent event stream gets a comment so often, milliseconds; `null` = none. */
    commentMs: written.keepAliveComments === undefined ? null : written.keepAliveComments * 1000,
  };
}

/** `bucketBy` of the upstream replaces that of a preset, with everything that distinguishes its quotas. */
const dialectBeside = (bucketBy: UpstreamInput['bucketBy'], { dialect }: BuiltDialect): Dialect =>
  bucketBy === undefined ? dialect : { ...dialect, separators: [], namedIn: null };

function settleLimits(written: UpstreamInput, server: ServerInput, spoken: BuiltDialect | null) {
  const kind = defaultsOfKinds[written.kind];
  const own: NonNullable<UpstreamInput['limits']> = written.limits ?? {};
  const { bucket, capacity = bucket?.capacity ?? 40, leakPerSecond, ...limits } = own;
  const stated = {
    requestsPerMinute: kind.requestsPerMinute,
    requestsPerDay: kind.requestsPerDay,
    tokensPerMinute: null,
    tokensPerDay: null,
    cost: null,
    maxInFlight: spoken?.maxInFlight ?? kind.maxInFlight,
    maxInFlightTotal: null,
    ...waitsOf(server),
    learn: true,
    probe: 1,
    ...is.pick(written, paceKeys),
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
    /** Commerce REST leaky bucket. The platform empties a full one in 20 s: 40 at 2/s, 80 at 4/s, 400 at 20/s. */
    bucket: { capacity, leakPerSecond: bucket?.leakPerSecond ?? leakPerSecond ?? capacity / 20 },
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
