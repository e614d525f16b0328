/**
 * The whole configuration file: every key, its default, its description and the rules between sections, those of long sections in files
 * of their own; and the {@link Settings} that the rest of the product sees. The published JSON Schema is generated from here, so a
 * description is documentation.
 * Invariants: unknown keys are refused everywhere; a rule sees values of the right type only, and rules between sections a file without
 * mistakes of form.
 */
import { createHash, randomBytes } from 'node:crypto';
import { dirname, normalize } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import type { ConfigSource } from './check-text.ts';
import { tokenUrlFault, withKeys } from './credential.ts';
import { wildcardFault } from './origins.ts';
import { redis, settleRedis } from './redis.ts';
import { keysAtOnce, server, settleServer } from './server.ts';
import { checkBesideServer, settleUpstream, upstream } from './upstream.ts';
import * as is from './values.ts';
import { checkUpstreamNames, settleWorkspace, workspace } from './workspace.ts';

export type * from '../credential-carriers.policy.ts';
export type * from './credential.ts';
export type * from './defaults.ts';
export type * from './origins.ts';
export type * from './redis.ts';
export type * from './speaks.ts';
export type * from './upstream.ts';
export type * from './workspace.ts';

const privacy = is.section(
  { labelKey: is.orNull(is.secretLike(/^.{16}/su, 'is shorter than 16 characters')) },
  {
    labelKey:
      'Secret for workspace labels and keyed digests. Required with redis; else a random one per process.',
  },
);

const log = is.section(
  {
    level: z.enum(['debug', 'info', 'warn', 'error', 'silent']).default('info'),
    sampleSuccesses: z.number().min(0).max(1).default(1),
  },
  {
    level: 'Least level that is written.',
    sampleSuccesses: 'Share of successful calls that get a log line.',
  },
);

const mebibyte = 1_048_576;
const bytes = z.int().min(0).max(Number.MAX_SAFE_INTEGER);

const idempotency = is.section(
  {
    keepSeconds: z.int().min(0).max(86_400).default(600),
    maxBytes: bytes.max(64 * mebibyte).default(mebibyte),
    maxWorkspaceBytes: bytes.default(16 * mebibyte),
    maxTotalBytes: bytes.default(64 * mebibyte),
  },
  {
    keepSeconds: 'How long the response to a call with an idempotency key is kept. 0: not at all.',
    maxBytes: 'Larger responses are not kept; a repeat gets 409 idempotency_conflict.',
    maxWorkspaceBytes: 'Bytes that a replica keeps for one workspace at most; the oldest responses go first.',
    maxTotalBytes: 'Bytes that a replica keeps in all at most.',
  },
);

/** Upstream names become metric labels and path segments (`/via/{upstream}/…`). */
const upstreamName = /^[a-z0-9][a-z0-9_-]{0,62}$/;

const workspaceFault = (id: string): is.Fault | undefined => {
  const reason = is.workspaceIdFault(id);
  return reason === null ? undefined : { reason: `id ${reason}`, fix: 'use 1 to 128 printable characters' };
};

/** The whole file. */
export const fileSchema = is
  .section({
    server: server.prefault({}),
    redis: redis.optional().describe('Leave out for the embedded limiter of one process.'),
    privacy: privacy.prefault({}),
    log: log.prefault({}),
    idempotency: idempotency.prefault({}),
    upstreams: is
      .named(upstream)
      .meta({ minProperties: 1, propertyNames: { pattern: upstreamName.source } })
      .describe('APIs behind Sluice, by name.'),
    workspaces: is
      .named(workspace, workspaceFault('__proto__'))
      .meta({ propertyNames: { minLength: 1, maxLength: 128 } })
      .describe('Callers, by id. {} lets nobody call.'),
  })
  .superRefine(is.rule(checkFile));

/** The file after defaults of single keys; absent keys that depend on others are still absent. */
export type FileInput = z.output<typeof fileSchema>;

/** Rules between sections: names that must exist, values that must differ, secrets that must be there. They see files of the right form. */
function checkFile(file: FileInput, refuse: is.Refuse): void {
  const { server, redis, privacy, upstreams, workspaces } = file;
  const names = Object.keys(upstreams);
  if (names.length === 0) refuse('is empty', 'describe at least one upstream', 'upstreams');
  for (const [name, upstream] of Object.entries(upstreams)) {
    const refuseIn: is.Refuse = (reason, fix, ...path) => refuse(reason, fix, 'upstreams', name, ...path);
    const fix = 'use up to 63 lower-case letters, digits, - and _, a letter or digit first';
    if (!upstreamName.test(name)) refuseIn('is not a usable upstream name', fix);
    checkBesideServer(upstream, server, refuseIn);
  }
  const hashes = new Set<string>();
  for (const [id, workspace] of Object.entries(workspaces)) {
    const refuseIn: is.Refuse = (reason, fix, ...path) => refuse(reason, fix, 'workspaces', id, ...path);
    const fault = workspaceFault(id);
    if (fault !== undefined) refuseIn(fault.reason, fault.fix);
    checkUpstreamNames(workspace, names, refuseIn);
    workspace.keys.forEach((key, index) => {
      const [hash, ...within] = typeof key === 'string' ? [key] : [key.hash, 'hash'];
      const fix = 'give each workspace its own key: a key must name exactly one workspace, once';
      if (hashes.has(hash)) refuseIn('is a key that was already given above', fix, 'keys', index, ...within);
      hashes.add(hash);
    });
  }
  checkCredentials(file, hashes, refuse);
  const fix = 'set it to a secret that all replicas share, for instance "${SLUICE_LABEL_KEY}"';
  if (redis !== undefined && privacy.labelKey === null)
    refuse('is missing, and redis needs it', fix, 'privacy', 'labelKey');
}

/** Every credential of the file, with its path and the upstream that it is for. */
const credentialsOf = ({ upstreams, workspaces }: FileInput) => [
  ...Object.entries(upstreams).flatMap(([name, { credential, ...upstream }]) =>
    credential === undefined ? [] : [{ path: ['upstreams', name, 'credential'], credential, upstream }],
  ),
  ...Object.entries(workspaces).flatMap(([id, { credentials = {} }]) =>
    Object.entries(credentials).map(([name, credential]) => ({
      path: ['workspaces', id, 'credentials', name],
      credential,
      upstream: Object.hasOwn(upstreams, name) ? upstreams[name] : undefined,
    })),
  ),
];

/** Credentials go where the operator means them to go, and hold nothing that must not go there. `hashes`: of all API keys. */
function checkCredentials(file: FileInput, hashes: ReadonlySet<string>, refuse: is.Refuse): void {
  const all = credentialsOf(file);
  const injected = new Set(all.map(({ upstream }) => upstream?.origins));
  // A caller could have the credential sent to a host of its own.
  for (const [name, { origins }] of Object.entries(file.upstreams))
    for (const [index, pattern] of origins.entries()) {
      const fault = injected.has(origins) ? wildcardFault(pattern) : null;
      if (fault !== null) refuse(fault.reason, fault.fix, 'upstreams', name, 'origins', index);
    }
  // One refresh token belongs to one client, and is never sent to an upstream. Paths are compared as they are written, without `.` and
  // `..`; clients with all that they send, because a change of how they write their request would be a mistake as well.
  const owners = new Map<string, { readonly client: string; readonly at: string }>();
  for (const { path, upstream, credential } of all) {
    const { value, file, oauth } = withKeys(credential);
    const own = typeof credential === 'string' ? path : [...path, 'value'];
    if (value !== undefined && hashes.has(sha256(value.replace(/^bearer\s+/i, ''))))
      refuse('is an API key of Sluice', 'give the credential that the upstream knows', ...own);
    const fault = upstream === undefined ? null : tokenUrlFault(oauth, upstream.allowPrivateAddresses);
    if (fault !== null) refuse(fault.reason, fault.fix, ...path, 'oauth', 'tokenUrl');
    const { refreshTokenFile = null, shared: _, ...sent } = oauth ?? {};
    const kept = refreshTokenFile ?? file;
    if (kept === undefined) continue;
    const mine = { client: JSON.stringify(sent), at: path.join('.') };
    const first = owners.get(normalize(kept)) ?? mine;
    owners.set(normalize(kept), first);
    const at = file === undefined ? ['oauth', 'refreshTokenFile'] : ['file'];
    const fix = 'give each client a file of its own: two that use one refresh token lock each other out';
    if (first.client !== mine.client)
      refuse(`is the file of another client (${first.at})`, fix, ...path, ...at);
  }
}

const sha256 = (text: string): string => `sha256:${createHash('sha256').update(text).digest('hex')}`;

/** Label key of this process when the file has none: the same at every reload, so that labels stay the same. */
const processLabelKey = randomBytes(32).toString('hex');

/** The configuration after validation: every default filled in, units in the names. */
export interface Settings extends is.Frozen<ReturnType<typeof settled>> {}
export type LogSettings = Settings['log'];
/** What is kept of responses, for repeats with the same idempotency key. */
export type IdempotencySettings = Settings['idempotency'];
export type ServerSettings = Settings['server'];

export function settled(file: FileInput, { path, env }: ConfigSource) {
  /** Where relative paths start. */
  const folder = dirname(path);
  const upstreams = new Map(
    Object.entries(file.upstreams).map(([name, one]) => [
      name,
      settleUpstream(name, one, file.server, folder),
    ]),
  );
  const parts = { upstreams, all: new Set(upstreams.keys()), folder };
  return {
    ...file,
    // What the image sets, whose ports are reached from outside of its network only if they listen to it.
    server: settleServer(file.server, env['SLUICE_ADMIN_HOST'] || '127.0.0.1'),
    redis: file.redis === undefined ? null : settleRedis(file.redis, folder),
    privacy: {
      /** HMAC key of the workspace labels. */
      labelKey: file.privacy.labelKey ?? processLabelKey,
      /** True when none was configured and a random one of this process is used: labels change with every start. */
      labelKeyGenerated: file.privacy.labelKey === null,
    },
    upstreams,
    workspaces: new Map(
      Object.entries(file.workspaces).map(([id, one]) => [id, settleWorkspace(id, one, parts)]),
    ),
    /** What the file states in sections that only a restart takes over, to tell which of their keys have changed. */
    written: { server: file.server, redis: file.redis, privacy: file.privacy },
  };
}

/** Sections of whose keys, but for those of `keysAtOnce`, a new value waits for the next start. */
export const sectionsAtStart = ['server', 'redis', 'privacy'] as const;

/** Keys of the file whose new value waits for a restart; empty = everything takes effect now. Shows no value. */
export const restartKeys = ({ written: started }: Settings, { written: next }: Settings): readonly string[] =>
  sectionsAtStart.flatMap((name) => {
    const [before, after]: (Readonly<Record<string, unknown>> | undefined)[] = [started[name], next[name]];
    if (before === undefined || after === undefined) return before === after ? [] : [name];
    return Object.keys({ ...before, ...after })
      .filter((key) => !isDeepStrictEqual(before[key], after[key]) && !keysAtOnce.includes(key))
      .map((key) => `${name}.${key}`);
  });

/** The new settings, except that those which only a restart can change keep the values that the process was started with. */
export const withStartedValues = (started: Settings, next: Settings): Settings => ({
  ...next,
  server: started.server,
  redis: started.redis,
  privacy: started.privacy,
});
