/**
 * From the validated file to {@link Settings}: fills in what depends on other keys, merges the sections a key may stand
 * in, freezes the result. Decides defaults, refuses nothing.
 */
import { readCarriers } from '../credential-carriers.policy.ts';
import { buildCredential } from './credential-build.ts';
import type { FileInput, UpstreamInput, WorkspaceInput } from './schema.ts';
import { defaultWaits } from './defaults.ts';
import { readInstant } from './instant.ts';
import { buildDialect, type BuiltDialect } from './speaks-build.ts';
import { readOrigin } from './origins.ts';
import { buildRedis } from './redis-build.ts';
import type {
  Settings,
  UpstreamKind,
  UpstreamLimits,
  UpstreamSettings,
  WorkspaceSettings,
} from './settings.ts';

/** Defaults of the upstream kinds: requests per minute and day, calls in flight, credential field, seconds to the head. */
const kinds: Readonly<
  Record<
    UpstreamKind,
    {
      readonly requestsPerMinute: number | null;
      readonly requestsPerDay: number | null;
      readonly maxInFlight: number | null;
      readonly field: string;
      readonly headSeconds: number;
      readonly bucketBy: UpstreamSettings['bucketBy'];
    }
  >
> = {
  'language-model': {
    requestsPerMinute: 500,
    requestsPerDay: 10_000,
    maxInFlight: null,
    field: 'authorization',
    headSeconds: 300,
    bucketBy: ['credential', 'model'],
  },
  commerce: {
    requestsPerMinute: 40,
    requestsPerDay: null,
    maxInFlight: 1,
    field: 'x-shopify-access-token',
    headSeconds: 60,
    bucketBy: ['credential'],
  },
  generic: {
    requestsPerMinute: null,
    requestsPerDay: null,
    maxInFlight: null,
    field: 'authorization',
    headSeconds: 300,
    bucketBy: ['credential'],
  },
};

const mebibyte = 1_048_576;

/** `none` → no limit, absent → the default. */
const limitOf = (value: number | 'none' | undefined, fallback: number | null): number | null =>
  value === undefined ? fallback : value === 'none' ? null : value;

/** A file without its workspaces, which may be very many. */
export type RestInput = Omit<FileInput, 'workspaces'>;

/** Settings without the workspaces. */
export type RestSettings = Omit<Settings, 'workspaces'>;

/** What the settings need beside the text of the file. */
export interface BuildContext {
  /** Serves when the file has none. */
  readonly processLabelKey: string;
  /** Folder of the file, where relative paths start. */
  readonly folder: string;
  /** Address of the admin port where the file has none. */
  readonly adminHost: string;
}

/** Builds the frozen settings. */
export function buildSettings({ workspaces, ...rest }: FileInput, around: BuildContext): Settings {
  const built = buildRest(rest, around);
  const context = { upstreams: built.upstreams, folder: around.folder };
  const all = Object.entries(workspaces).map(([id, input]) => buildWorkspace(id, input, context));
  return Object.freeze({ ...built, workspaces: new Map(all.map((workspace) => [workspace.id, workspace])) });
}

/** Builds everything but the workspaces, frozen. */
export function buildRest(
  file: RestInput,
  { processLabelKey, folder, adminHost }: BuildContext,
): RestSettings {
  const { server } = file;
  return deepFreeze({
    server: {
      host: server.host,
      port: server.port,
      adminHost: server.adminHost ?? adminHost,
      adminPort: server.adminPort,
      adminNames: server.adminNames.map((name) => name.toLowerCase()),
      adminToken: server.adminToken ?? null,
      maxBodyBytes: server.maxBodyBytes,
      maxReplayBytes: server.maxReplayBytes ?? server.maxBodyBytes,
      maxHeldBytes: server.maxHeldBytes ?? Math.max(256 * mebibyte, 4 * server.maxBodyBytes),
      maxConnections: server.maxConnections,
      maxCallsPerConnection: server.maxCallsPerConnection,
      maxOpenCalls: server.maxOpenCalls,
      maxEventLoopDelayMs: server.maxEventLoopDelayMs,
      maxMemoryRatio: server.maxMemoryRatio,
      drainSeconds: server.drainSeconds,
      drainDelaySeconds: Math.min(server.drainDelaySeconds, server.drainSeconds),
      keepAliveSeconds: server.keepAliveSeconds,
      publicHosts: server.publicHosts.map((host) => host.toLowerCase()),
    },
    redis: file.redis === undefined ? null : buildRedis(file.redis),
    privacy: {
      labelKey: file.privacy.labelKey ?? processLabelKey,
      labelKeyGenerated: file.privacy.labelKey === undefined,
    },
    log: file.log,
    idempotency: file.idempotency,
    upstreams: new Map(
      Object.entries(file.upstreams).map(([name, input]) => [
        name,
        buildUpstream(name, input, { server, folder }),
      ]),
    ),
  });
}

function buildUpstream(
  name: string,
  input: UpstreamInput,
  { server, folder }: { readonly server: FileInput['server']; readonly folder: string },
): UpstreamSettings {
  const defaults = kinds[input.kind];
  const spoken = input.speaks === undefined ? null : buildDialect(input.speaks);
  const { connectSeconds, headSeconds, idleSeconds, totalSeconds } = input.timeouts;
  return {
    name,
    kind: input.kind,
    origins: input.origins.flatMap((text) => {
      const reading = readOrigin(text);
      return reading.kind === 'origin' ? [reading.pattern] : [];
    }),
    credential:
      input.credential === undefined
        ? null
        : buildCredential(input.credential, { defaultField: defaults.field, account: input.account, folder }),
    carriers: readCarriers(input.credentialFields, input.kind),
    limits: buildLimits(input, server, spoken),
    bucketBy: [...new Set(input.bucketBy ?? spoken?.bucketBy ?? defaults.bucketBy)],
    maxBuckets: input.maxBuckets,
    dialect: dialectOf(input, spoken),
    allowPrivateAddresses: input.allowPrivateAddresses,
    cookies: input.cookies,
    propagateTrace: input.propagateTrace,
    timeouts: {
      connectMs: connectSeconds * 1000,
      headMs: (headSeconds ?? defaults.headSeconds) * 1000,
      idleMs: idleSeconds * 1000,
      totalMs: totalSeconds * 1000,
    },
    maxSockets: input.maxSockets,
    idempotencyFields: input.idempotencyFields.map((field) => field.toLowerCase()),
    caFile: input.caFile ?? null,
  };
}

/** `bucketBy` of the upstream replaces that of a preset, with everything that distinguishes its quotas. */
function dialectOf({ bucketBy }: UpstreamInput, spoken: BuiltDialect | null): UpstreamSettings['dialect'] {
  if (spoken === null) return null;
  return bucketBy === undefined ? spoken.dialect : { ...spoken.dialect, separators: [] };
}

function buildLimits(
  input: UpstreamInput,
  server: FileInput['server'],
  spoken: BuiltDialect | null,
): UpstreamLimits {
  const defaults = kinds[input.kind];
  const limits = input.limits ?? {};
  const capacity = limits.bucket?.capacity ?? limits.capacity ?? 40;
  const wait = limits.maxWaitSeconds ?? input.maxWaitSeconds ?? server.maxWaitSeconds;
  const ceiling =
    limits.maxWaitCeilingSeconds ??
    input.maxWaitCeilingSeconds ??
    server.maxWaitCeilingSeconds ??
    defaultWaits.maxWaitCeilingSeconds;
  return {
    requestsPerMinute: limitOf(limits.requestsPerMinute, defaults.requestsPerMinute),
    requestsPerDay: limitOf(limits.requestsPerDay, defaults.requestsPerDay),
    tokensPerMinute: limitOf(limits.tokensPerMinute, null),
    tokensPerDay: limitOf(limits.tokensPerDay, null),
    bucket: {
      capacity,
      // The platform empties a full bucket in 20 s: 40 at 2/s, 80 at 4/s, 400 at 20/s.
      leakPerSecond: limits.bucket?.leakPerSecond ?? limits.leakPerSecond ?? capacity / 20,
    },
    cost: limits.cost ?? null,
    maxInFlight: limitOf(
      limits.maxInFlight ?? input.maxInFlight,
      spoken?.maxInFlight ?? defaults.maxInFlight,
    ),
    maxQueued: limits.maxQueued ?? input.maxQueued ?? server.maxQueued ?? defaultWaits.maxQueued,
    // One section may state a wait and another a shorter maximum wait: the maximum wins.
    maxWaitSeconds: Math.min(wait ?? defaultWaits.maxWaitSeconds, ceiling),
    maxWaitCeilingSeconds: ceiling,
    learn: limits.learn ?? input.learn ?? true,
    probe: limits.probe ?? input.probe ?? 1,
  };
}

/** A workspace's ceiling as the file states it: one number that holds for each upstream, or one number by upstream. */
type OwnCeiling = WorkspaceInput['requestsPerMinute'];

/** Builds one workspace, frozen. `upstreams`: all that the file describes. */
export function buildWorkspace(
  id: string,
  input: WorkspaceInput,
  { upstreams, folder }: Pick<RestSettings, 'upstreams'> & Pick<BuildContext, 'folder'>,
): WorkspaceSettings {
  const allowed = input.upstreams ?? [...upstreams.keys()];
  const byUpstream = (value: OwnCeiling): Map<string, number | null> => {
    const entries =
      typeof value === 'object' ? Object.entries(value) : allowed.map((name) => [name, value] as const);
    return new Map(value === undefined ? [] : entries.map(([name, limit]) => [name, limitOf(limit, null)]));
  };
  return deepFreeze({
    id,
    keys: input.keys.map((key) => {
      const { hash, id, expires } =
        typeof key === 'string' ? { hash: key, id: undefined, expires: undefined } : key;
      const sha256 = hash.slice('sha256:'.length).toLowerCase();
      return { sha256, id: id ?? null, expiresAt: expires === undefined ? null : readInstant(expires) };
    }),
    upstreams: new Set(allowed),
    requestsPerMinute: byUpstream(input.requestsPerMinute),
    requestsPerDay: byUpstream(input.requestsPerDay),
    weight: input.weight,
    credentials: new Map(
      Object.entries(input.credentials ?? {}).map(([name, credential]) => {
        const upstream = upstreams.get(name);
        const defaultField = upstream?.credential?.field ?? kinds[upstream?.kind ?? 'generic'].field;
        const accounts = input.accounts ?? {};
        const account = Object.hasOwn(accounts, name) ? accounts[name] : undefined;
        return [name, buildCredential(credential, { defaultField, account, folder })];
      }),
    ),
  });
}

/** Freezes objects, lists and what maps hold; maps themselves are read-only by type. */
function deepFreeze<T>(value: T): T {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value)) return value;
  if (value instanceof Map) for (const item of value.values()) deepFreeze(item);
  for (const item of Object.values(value)) deepFreeze(item);
  return Object.freeze(value);
}
