/**
 * The shape of the configuration file: every key, its default, its description, and the rules between sections; each section that is
 * long has a file of its own. The published JSON Schema is generated from here, so a description is documentation.
 * Invariants: unknown keys are refused everywhere; a rule sees values of the right type only, and rules between sections a file without
 * mistakes of form.
 */
import { createHash, randomBytes } from 'node:crypto';
import { dirname, normalize } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { z } from 'zod';
import type { ConfigSource } from './check-text.ts';
import { tokenUrlFault, withKeys } from './credential.ts';
import { upstreamNamePattern, workspaceIdFault } from './names.ts';
import type { Fault, Path } from './problem.ts';
import { redis, settleRedis } from './redis.ts';
import { server, settleServer } from './server.ts';
import { checkBesideServer, settleUpstream, upstream } from './upstream.ts';
import * as is from './values.ts';
import { wildcardFault } from './origins.ts';
import {
  checkUpstreamNames,
  keyHashes,
  settleWorkspace,
  workspace,
  type WorkspaceSettings,
} from './workspace.ts';

const privacy = is.section(
  is.atRestart({
    labelKey: is
      .orNull(is.secretLike(/^.{16}/su, 'is shorter than 16 characters'))
      .describe(
        'Secret for workspace labels and keyed digests. Required with redis; else a random one per process.',
      ),
  }),
);

const log = is.section(
  is.described(
    {
      level: z.enum(['debug', 'info', 'warn', 'error', 'silent']).default('info'),
      sampleSuccesses: z.number().min(0).max(1).default(1),
    },
    {
      level: 'Least level that is written.',
      sampleSuccesses: 'Share of successful calls that get a log line.',
    },
  ),
);

const mebibyte = 1_048_576;
const bytes = z.int().min(0).max(Number.MAX_SAFE_INTEGER);

const idempotency = is.section(
  is.described(
    {
      keepSeconds: z.int().min(0).max(86_400).default(600),
      maxBytes: bytes.max(64 * mebibyte).default(mebibyte),
      maxWorkspaceBytes: bytes.default(16 * mebibyte),
      maxTotalBytes: bytes.default(64 * mebibyte),
    },
    {
      keepSeconds: 'How long the response to a call with an idempotency key is kept. 0: not at all.',
      maxBytes: 'Larger responses are not kept; a repeat gets 409 idempotency_conflict.',
      maxWorkspaceBytes:
        'Bytes that a replica keeps for one workspace at most; the oldest responses go first.',
      maxTotalBytes: 'Bytes that a replica keeps in all at most.',
    },
  ),
);

const workspaceFault = (id: string): Fault | null => {
  const reason = workspaceIdFault(id);
  return reason === null ? null : { reason: `id ${reason}`, fix: 'use 1 to 128 printable characters' };
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
      .meta({ minProperties: 1, propertyNames: { pattern: upstreamNamePattern.source } })
      .describe('APIs behind Sluice, by name.'),
    workspaces: is
      .named(workspace, workspaceFault('__proto__') ?? undefined)
      .meta({ propertyNames: { minLength: 1, maxLength: 128 } })
      .describe('Callers, by id. {} lets nobody call.'),
  })
  .superRefine(checkFile);

/** The file after defaults of single keys; absent keys that depend on others are still absent. */
export type FileInput = z.output<typeof fileSchema>;

/** Rules between sections: names that must exist, values that must differ, secrets that must be there. They see files of the right form. */
function checkFile(file: FileInput, context: is.RuleContext): void {
  const { server, redis, privacy, upstreams, workspaces } = file;
  const at = (path: Path, reason: string, fix: string): void => is.refuse(context, { reason, fix }, path);
  const names = Object.keys(upstreams);
  if (names.length === 0) at(['upstreams'], 'is empty', 'describe at least one upstream');
  for (const [name, upstream] of Object.entries(upstreams)) {
    const path = ['upstreams', name];
    const fix = 'use up to 63 lower-case letters, digits, - and _, a letter or digit first';
    if (!upstreamNamePattern.test(name)) at(path, 'is not a usable upstream name', fix);
    checkBesideServer(upstream, server, { context, path });
  }
  const hashes = new Set<string>();
  for (const [id, workspace] of Object.entries(workspaces)) {
    const path = ['workspaces', id];
    const fault = workspaceFault(id);
    if (fault !== null) is.refuse(context, fault, path);
    checkUpstreamNames(workspace, names, { context, path });
    for (const { hash, path: inside } of keyHashes(workspace)) {
      const fix = 'give each workspace its own key: a key must name exactly one workspace, once';
      if (hashes.has(hash) && /^sha256:[0-9a-f]{64}$/.test(hash))
        at([...path, ...inside], 'is a key that was already given above', fix);
      hashes.add(hash);
    }
  }
  checkCredentials(file, hashes, context);
  if (redis === undefined || privacy.labelKey !== null) return;
  const fix = 'set it to a secret that all replicas share, for instance "${SLUICE_LABEL_KEY}"';
  at(['privacy', 'labelKey'], 'is missing, and redis needs it', fix);
}

/** Credentials go where the operator means them to go, and hold nothing that must not go there. `hashes`: of all API keys. */
function checkCredentials(
  { upstreams, workspaces }: FileInput,
  hashes: ReadonlySet<string>,
  context: is.RuleContext,
): void {
  const at = (path: Path, reason: string, fix: string): void => is.refuse(context, { reason, fix }, path);
  const all = [
    ...Object.entries(upstreams).flatMap(([name, { credential }]) =>
      credential === undefined ? [] : [{ path: ['upstreams', name, 'credential'], name, credential }],
    ),
    ...Object.entries(workspaces).flatMap(([id, { credentials = {} }]) =>
      Object.entries(credentials).map(([name, credential]) => ({
        path: ['workspaces', id, 'credentials', name],
        name,
        credential,
      })),
    ),
  ];
  // A caller could have the credential sent to a host of its own.
  const injected = new Set(all.map(({ name }) => name));
  for (const [name, { origins }] of Object.entries(upstreams))
    origins.forEach((pattern, index) => {
      const fault = injected.has(name) ? wildcardFault(pattern) : null;
      if (fault !== null) is.refuse(context, fault, ['upstreams', name, 'origins', index]);
    });
  // One refresh token belongs to one client. Paths are compared as they are written, without `.` and `..`; clients with all that they
  // send, because a change of how they write their request would be a mistake as well.
  const owners = new Map<string, { readonly client: string; readonly at: string }>();
  for (const { path, name, credential } of all) {
    const { value, oauth } = withKeys(credential);
    if (value !== undefined && hashes.has(sha256(value.replace(/^bearer\s+/i, '')))) {
      const own = typeof credential === 'string' ? path : [...path, 'value'];
      at(own, 'is an API key of Sluice', 'give the credential that the upstream knows');
    }
    const owner = Object.hasOwn(upstreams, name) ? upstreams[name] : undefined;
    const fault = owner === undefined ? null : tokenUrlFault(credential, owner.allowPrivateAddresses);
    if (fault !== null) is.refuse(context, fault, [...path, 'oauth', 'tokenUrl']);
    const { refreshTokenFile = null, shared: _, ...sent } = oauth ?? {};
    if (refreshTokenFile === null) continue;
    const mine = { client: JSON.stringify(sent), at: path.join('.') };
    const first = owners.get(normalize(refreshTokenFile)) ?? mine;
    owners.set(normalize(refreshTokenFile), first);
    const fix = 'give each client a file of its own: two that use one refresh token lock each other out';
    if (first.client !== mine.client)
      at([...path, 'oauth', 'refreshTokenFile'], `is the file of another client (${first.at})`, fix);
  }
  for (const { path, credential } of all) {
    const { file } = withKeys(credential);
    const fix =
      'leave file out and use the same oauth section: a refresh token is never sent to the upstream';
    if (file !== undefined && owners.has(normalize(file)))
      at([...path, 'file'], 'is a refreshTokenFile, too', fix);
  }
}

const sha256 = (text: string): string => `sha256:${createHash('sha256').update(text).digest('hex')}`;

/** Label key of this process when the file has none: the same at every reload, so that labels stay the same. */
const processLabelKey = randomBytes(32).toString('hex');

/** The configuration after validation: every default filled in, frozen, units in the names. */
export interface Settings extends is.Frozen<ReturnType<typeof settled>> {}

export const settle = (file: FileInput, source: ConfigSource): Settings => is.freeze(settled(file, source));

/** Workspaces that are settled between two turns of the event loop, a few milliseconds of work. */
const workspacesPerTurn = 200;

/** Like {@link settle}, while calls go on: very many workspaces keep none of them waiting. */
export async function settleInTurns(file: FileInput, source: ConfigSource): Promise<Settings> {
  const rest = settle({ ...file, workspaces: {} }, source);
  const workspaces = new Map<string, WorkspaceSettings>();
  const context = { upstreams: rest.upstreams, folder: dirname(source.path) };
  for (const [id, written] of Object.entries(file.workspaces)) {
    workspaces.set(id, is.freeze(settleWorkspace(id, written, context)));
    if (workspaces.size % workspacesPerTurn === 0) await nextTurn();
  }
  return Object.freeze({ ...rest, workspaces });
}

function settled(file: FileInput, { path, env }: ConfigSource) {
  const { labelKey } = file.privacy;
  /** Where relative paths start. */
  const folder = dirname(path);
  const upstreams = new Map(
    Object.entries(file.upstreams).map(([name, written]) => [
      name,
      settleUpstream(name, written, { server: file.server, folder }),
    ]),
  );
  return {
    // What the image sets, whose ports are reached from outside of its network only if they listen to it.
    server: settleServer(file.server, env['SLUICE_ADMIN_HOST'] || '127.0.0.1'),
    redis: file.redis === undefined ? null : settleRedis(file.redis, folder),
    privacy: {
      /** HMAC key of the workspace labels. */
      labelKey: labelKey ?? processLabelKey,
      /** True when none was configured and a random one of this process is used: labels change with every start. */
      labelKeyGenerated: labelKey === null,
    },
    log: file.log,
    idempotency: file.idempotency,
    upstreams,
    workspaces: new Map(
      Object.entries(file.workspaces).map(([id, written]) => [
        id,
        settleWorkspace(id, written, { upstreams, folder }),
      ]),
    ),
    /** What the file states in sections that only a restart takes over, to tell which of their keys have changed. */
    written: { server: file.server, redis: file.redis, privacy: file.privacy },
  };
}

export interface LogSettings extends is.Frozen<z.output<typeof log>> {}
/** What is kept of responses, for repeats with the same idempotency key. */
export interface IdempotencySettings extends is.Frozen<z.output<typeof idempotency>> {}

/** Keys of the file whose new value waits for a restart; empty = everything takes effect now. Shows no value. */
export const restartKeys = ({ written: started }: Settings, { written: next }: Settings): readonly string[] =>
  (['server', 'redis', 'privacy'] as const).flatMap((name) => {
    const [before, after]: readonly (Readonly<Record<string, unknown>> | undefined)[] = [
      started[name],
      next[name],
    ];
    if (before === undefined || after === undefined) return before === after ? [] : [name];
    return Object.entries<z.ZodType>({ server, redis, privacy }[name].shape)
      .filter(
        ([key, schema]) =>
          schema.meta()?.['restart'] === true && JSON.stringify(before[key]) !== JSON.stringify(after[key]),
      )
      .map(([key]) => `${name}.${key}`);
  });

/** The new settings, except that those which only a restart can change keep the values that the process was started with. */
export const withStartedValues = (started: Settings, next: Settings): Settings =>
  Object.freeze({ ...next, server: started.server, redis: started.redis, privacy: started.privacy });
