/** `upstreams.<name>`: where calls go, with which credential, and the quota as the operator knows it. */
import { resolve } from 'node:path';
import { z } from 'zod';
import { carrierWordFault, readCarriers } from '../credential-carriers.policy.ts';
import { isRange } from '../target/address.policy.ts';
import { account, credential, settleCredential, shortForm } from './credential.ts';
import { defaultsOfKinds } from './defaults.ts';
import { origin, originFault } from './origins.ts';
import { checkWait, waitShape, waitsOf, type ServerInput } from './server.ts';
import { buildDialect, checkBucketBy, refusalParts, speaks } from './speaks.ts';
import * as is from './values.ts';

/** A limit. Absence means the default of the kind, never "no limit". */
const limit = z.exactOptional(is.countOrNone);

/** Keys that may stand in `limits` or directly on the upstream, not in both. */
const pace = is.section(
  {
    maxInFlight: limit,
    maxInFlightTotal: limit,
    ...waitShape,
    learn: z.exactOptional(z.boolean()),
    probe: z.exactOptional(is.count),
  },
  {
    maxInFlight:
      'Calls in flight per workspace and bucket. Default: commerce 1, others none. "none" = no limit.',
    maxInFlightTotal:
      'Calls in flight per bucket, of all workspaces. Default: learned from refusals that say so, unless learn is false. "none" = no limit.',
    learn:
      'false pins the stated limits: what the upstream reports never raises them, and its refusals teach no maxInFlightTotal. Default true.',
    probe: 'Calls sent to a bucket of unknown level before its first response. Default 1.',
  },
);

const paceKeys = pace.keyof().options;

/** Refuses keys that two sections state. */
function refuseGivenTwice(outer: object, inner: object, nameOfInner: string, refuse: is.Refuse): void {
  const given = is.stated(inner);
  for (const key of Object.keys(is.stated(outer)))
    if (Object.hasOwn(given, key)) refuse(`is also given in ${nameOfInner}`, 'keep one of the two', key);
}

const bucket = is.section(
  { capacity: is.count.optional(), leakPerSecond: is.rate.optional() },
  {
    capacity: 'Calls the leaky bucket holds. Default 40.',
    leakPerSecond: 'Calls that leak per second. Default capacity / 20.',
  },
);
const cost = is.section(
  { capacity: is.count, restorePerSecond: is.rate },
  { capacity: 'Cost points the bucket holds.', restorePerSecond: 'Cost points restored per second.' },
);

const limits = is
  .section(
    {
      requestsPerMinute: limit,
      requestsPerDay: limit,
      tokensPerMinute: limit,
      tokensPerDay: limit,
      bucket: bucket.optional(),
      ...bucket.shape,
      cost: z.exactOptional(cost),
      ...pace.shape,
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
  )
  .superRefine(is.rule((limits, refuse) => refuseGivenTwice(limits, limits.bucket ?? {}, 'bucket', refuse)));

const timeouts = is.section(
  {
    connectSeconds: is.seconds.default(10),
    headSeconds: is.seconds.optional(),
    idleSeconds: is.seconds.default(300),
    totalSeconds: is.seconds.optional(),
  },
  {
    connectSeconds: 'Name resolution, TCP and TLS together.',
    headSeconds: 'From sending to the response’s head. Default 300, commerce 60.',
    idleSeconds:
      'Longest silence inside a response, and longest time for which its client may leave it unread.',
    totalSeconds: 'One whole exchange, however fast it moves. Default: no such limit.',
  },
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

/** One upstream. */
export const upstream = is
  .section(
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
      ...pace.shape,
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
  )
  .superRefine(
    is.rule((upstream, refuse) => {
      const { kind, speaks, bucketBy, account, credential } = upstream;
      refuseGivenTwice(upstream, upstream.limits ?? {}, 'limits', refuse);
      checkBucketBy(bucketBy, refuse);
      // Other kinds have dialects of their own: what an operator adds are words of refusals.
      const spoken = typeof speaks === 'object' ? Object.keys(is.stated(speaks)) : [];
      const unspoken = spoken.filter((part) => !refusalParts.includes(part)).map((part) => [part]);
      const words = `leave kind out, or describe refusals alone: ${refusalParts.join(', ')}`;
      if (kind !== 'generic')
        for (const part of typeof speaks === 'string' ? [[]] : unspoken)
          refuse('belongs to the kind generic', words, 'speaks', ...part);
      if (bucketBy !== undefined && spoken.includes('bucketBy'))
        refuse('is also given in speaks', 'keep one of the two', 'bucketBy');
      const fix = 'add the credential, or leave account out: what a client brings is a quota of its own';
      if (account !== undefined && credential === undefined)
        refuse('names the quota of no credential', fix, 'account');
    }),
  );

type UpstreamInput = z.output<typeof upstream>;

/** Refuses origins that lead back to this server or inside, and waits that the ceiling of the server forbids. */
export function checkBesideServer(
  { origins, allowPrivateAddresses, limits = {}, ...upstream }: UpstreamInput,
  server: ServerInput,
  refuse: is.Refuse,
): void {
  origins.forEach((origin, index) => {
    const fault = originFault(origin, allowPrivateAddresses, server);
    if (fault !== null) refuse(fault.reason, fault.fix, 'origins', index);
  });
  const { maxWaitCeilingSeconds } = waitsOf(server, upstream, limits);
  checkWait(upstream, maxWaitCeilingSeconds, refuse);
  checkWait(limits, maxWaitCeilingSeconds, (reason, fix, key) => refuse(reason, fix, 'limits', key));
}

/** The upstream as calls are sent to it: what absent keys mean is filled in. */
export interface UpstreamSettings extends is.Frozen<ReturnType<typeof settleUpstream>> {}
/** Limits of an upstream. `null`: none stated (learned, or unlimited). Rates are the upstream's own units. */
export interface UpstreamLimits extends is.Frozen<ReturnType<typeof settleLimits>> {}
/** Times a single upstream exchange may take, milliseconds. */
export type UpstreamTimeouts = UpstreamSettings['timeouts'];

/** `folder`: where relative paths start. */
export function settleUpstream(name: string, written: UpstreamInput, server: ServerInput, folder: string) {
  const { kind, account, bucketBy, timeouts, credential, speaks, caFile } = written;
  const defaults = defaultsOfKinds[kind];
  const spoken = speaks === undefined ? null : buildDialect(speaks);
  return {
    ...is.omit(written, [...paceKeys, 'account', 'speaks', 'credentialFields', 'keepAliveComments']),
    name,
    caFile: caFile === null ? null : resolve(folder, caFile),
    /** `null`: the client brings its own. */
    credential:
      credential === undefined
        ? null
        : settleCredential(credential, { field: defaults.field, account, folder }),
    /** Where requests carry a credential of the upstream. */
    carriers: readCarriers(written.credentialFields, kind),
    limits: settleLimits(written, server, spoken?.maxInFlight ?? defaults.maxInFlight),
    /** What separates the buckets of this upstream: `credential` always, `host` where the platform counts per store. */
    bucketBy: [...new Set(bucketBy ?? spoken?.bucketBy ?? defaults.bucketBy)],
    /**
     * How it counts, reports and refuses, where that is described; `null`: as its kind says. `bucketBy` of the upstream replaces that of a
     * preset, with everything that distinguishes its quotas.
     */
    dialect:
      spoken === null
        ? null
        : { ...spoken.dialect, ...(bucketBy === undefined ? {} : { separators: [], namedIn: null }) },
    timeouts: {
      connectMs: timeouts.connectSeconds * 1000,
      /** Time from the sent request to the response's head. */
      headMs: (timeouts.headSeconds ?? defaults.headSeconds) * 1000,
      /** Longest silence inside the response's body. */
      idleMs: timeouts.idleSeconds * 1000,
      /** Whole exchange; `null` = as long as it moves. */
      totalMs: is.msOf(timeouts.totalSeconds),
    },
    /** A silent event stream gets a comment so often, milliseconds; `null` = none. */
    commentMs: is.msOf(written.keepAliveComments),
  };
}

function settleLimits(written: UpstreamInput, server: ServerInput, maxInFlight: number | null) {
  const { requestsPerMinute, requestsPerDay } = defaultsOfKinds[written.kind];
  const own: NonNullable<UpstreamInput['limits']> = written.limits ?? {};
  const { bucket, capacity = bucket?.capacity ?? 40, leakPerSecond, ...limits } = own;
  const stated = {
    requestsPerMinute,
    requestsPerDay,
    tokensPerMinute: null,
    tokensPerDay: null,
    cost: null,
    maxInFlight,
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
