/**
 * The shape of the configuration file: every key, its default, its description, and the rules between sections; each section that is
 * long has a file of its own. The published JSON Schema is generated from here, so a description is documentation.
 * Invariants: unknown keys are refused everywhere; a rule sees values of the right type only, and rules between sections a file without
 * mistakes of form.
 */
import { createHash } from 'node:crypto';
import { normalize } from 'node:path';
import { z } from 'zod';
import { tokenUrlFault, withKeys, type CredentialInput } from './credential.ts';
import { upstreamNamePattern, workspaceIdFault } from './names.ts';
import type { Fault, Path } from './problem.ts';
import { redis, settleRedis } from './redis.ts';
import { server, settleServer } from './server.ts';
import { checkBesideServer, settleUpstream, upstream } from './upstream.ts';
import * as is from './values.ts';
import { wildcardFault } from './origins.ts';
import { checkUpstreamNames, keyHashes, settleWorkspace, workspace } from './workspace.ts';

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
  const names = Object.keys(upstreams);
  if (names.length === 0)
    is.refuse(context, { reason: 'is empty', fix: 'describe at least one upstream' }, ['upstreams']);
  for (const [name, upstream] of Object.entries(upstreams)) {
    const at = { context, path: ['upstreams', name] };
    const fix = 'use up to 63 lower-case letters, digits, - and _, a letter or digit first';
    if (!upstreamNamePattern.test(name))
      is.refuse(context, { reason: 'is not a usable upstream name', fix }, at.path);
    checkBesideServer(upstream, server, at);
  }
  for (const [id, workspace] of Object.entries(workspaces)) {
    const at = { context, path: ['workspaces', id] };
    const fault = workspaceFault(id);
    if (fault !== null) is.refuse(context, fault, at.path);
    checkUpstreamNames(workspace, names, at);
  }
  const credentials = [...credentialsOf(file)];
  checkTokenUrls(credentials, file, context);
  checkWildcards(credentials, file, context);
  checkRefreshTokenFiles(credentials, context);
  checkKeys(credentials, file, context);
  if (redis === undefined || privacy.labelKey !== null) return;
  const fix = 'set it to a secret that all replicas share, for instance "${SLUICE_LABEL_KEY}"';
  is.refuse(context, { reason: 'is missing, and redis needs it', fix }, ['privacy', 'labelKey']);
}

interface Located {
  readonly path: Path;
  readonly credential: CredentialInput;
  /** Name of the upstream that it is for. */
  readonly upstream: string;
}

/** Every credential of the file. */
function* credentialsOf({ upstreams, workspaces }: FileInput): Generator<Located> {
  for (const [name, { credential }] of Object.entries(upstreams))
    if (credential !== undefined)
      yield { path: ['upstreams', name, 'credential'], credential, upstream: name };
  for (const [id, { credentials = {} }] of Object.entries(workspaces))
    for (const [name, credential] of Object.entries(credentials))
      yield { path: ['workspaces', id, 'credentials', name], credential, upstream: name };
}

/** A token endpoint is asked from where its upstream may be. */
function checkTokenUrls(
  credentials: readonly Located[],
  { upstreams }: FileInput,
  context: is.RuleContext,
): void {
  const byName = new Map(Object.entries(upstreams));
  for (const { path, credential, upstream } of credentials) {
    const owner = byName.get(upstream);
    const fault = owner === undefined ? null : tokenUrlFault(credential, owner.allowPrivateAddresses);
    if (fault !== null) is.refuse(context, fault, [...path, 'oauth', 'tokenUrl']);
  }
}

/** Refuses a credential for a wildcard under which anybody can have a host: any caller could have it sent to a host of its own. */
function checkWildcards(
  credentials: readonly Located[],
  { upstreams }: FileInput,
  context: is.RuleContext,
): void {
  const injected = new Set(credentials.map(({ upstream }) => upstream));
  for (const [name, { origins }] of Object.entries(upstreams))
    origins.forEach((pattern, index) => {
      const fault = injected.has(name) ? wildcardFault(pattern) : null;
      if (fault !== null) is.refuse(context, fault, ['upstreams', name, 'origins', index]);
    });
}

/**
 * One refresh token belongs to one client, and is no credential itself. Paths are compared as they are written, without `.` and `..`;
 * clients with all that they send, because a change of how they write their request would be a mistake as well.
 */
function checkRefreshTokenFiles(credentials: readonly Located[], context: is.RuleContext): void {
  const owners = new Map<string, { readonly client: string; readonly at: string }>();
  for (const { path, credential } of credentials) {
    const { refreshTokenFile = null, shared: _, ...client } = withKeys(credential).oauth ?? {};
    if (refreshTokenFile === null) continue;
    const owner = owners.get(normalize(refreshTokenFile));
    if (owner === undefined) {
      owners.set(normalize(refreshTokenFile), { client: JSON.stringify(client), at: path.join('.') });
    } else if (owner.client !== JSON.stringify(client)) {
      const reason = `is the file of another client (${owner.at})`;
      const fix = 'give each client a file of its own: two that use one refresh token lock each other out';
      is.refuse(context, { reason, fix }, [...path, 'oauth', 'refreshTokenFile']);
    }
  }
  for (const { path, credential } of credentials) {
    const { file } = withKeys(credential);
    if (file === undefined || !owners.has(normalize(file))) continue;
    const fix =
      'leave file out and use the same oauth section: a refresh token is never sent to the upstream';
    is.refuse(context, { reason: 'is a refreshTokenFile, too', fix }, [...path, 'file']);
  }
}

/** A key names exactly one workspace, once; and a client's API key is never sent upstream, so it cannot be a credential either. */
function checkKeys(
  credentials: readonly Located[],
  { workspaces }: FileInput,
  context: is.RuleContext,
): void {
  const seen = new Set<string>();
  for (const [id, workspace] of Object.entries(workspaces))
    for (const { hash, path } of keyHashes(workspace)) {
      if (seen.has(hash) && /^sha256:[0-9a-f]{64}$/.test(hash)) {
        const fix = 'give each workspace its own key: a key must name exactly one workspace, once';
        is.refuse(context, { reason: 'is a key that was already given above', fix }, [
          'workspaces',
          id,
          ...path,
        ]);
      }
      seen.add(hash);
    }
  for (const { path, credential } of credentials) {
    const { value } = withKeys(credential);
    if (value === undefined || !seen.has(sha256(value.replace(/^bearer\s+/i, '')))) continue;
    const at = typeof credential === 'string' ? path : [...path, 'value'];
    const fix = 'give the credential that the upstream knows';
    is.refuse(context, { reason: 'is an API key of Sluice', fix }, at);
  }
}

const sha256 = (text: string): string => `sha256:${createHash('sha256').update(text).digest('hex')}`;

/** Where a file is and what stands in for what it leaves out. */
export interface FileContext {
  /** Label key where the file has none. */
  readonly processLabelKey: string;
  /** Folder of the file, where relative paths start. */
  readonly folder: string;
  /** Address of the admin port where the file has none. */
  readonly adminHost: string;
}

/** The sections from which ports, connections and names in Redis are made at the start. */
const startedSections = { server, redis, privacy } as const;

/** The configuration after validation: every default filled in, frozen, units in the names. */
export interface Settings extends is.Frozen<ReturnType<typeof settled>> {}

export const settle = (file: FileInput, context: FileContext): Settings => is.freeze(settled(file, context));

function settled(file: FileInput, { processLabelKey, folder, adminHost }: FileContext) {
  const { labelKey } = file.privacy;
  const upstreams = new Map(
    Object.entries(file.upstreams).map(([name, written]) => [
      name,
      settleUpstream(name, written, { server: file.server, folder }),
    ]),
  );
  return {
    server: settleServer(file.server, adminHost),
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
export function restartKeys(started: Settings, next: Settings): readonly string[] {
  return Object.entries(startedSections).flatMap(([name, { shape }]) => {
    const [before, after] = [started, next].map(({ written }) => new Map(Object.entries(written)).get(name));
    if (before === undefined || after === undefined) return before === after ? [] : [name];
    const textOf = (section: object, key: string): string =>
      JSON.stringify(new Map(Object.entries(section)).get(key));
    return Object.entries<z.ZodType>(shape)
      .filter(
        ([key, schema]) => schema.meta()?.['restart'] === true && textOf(before, key) !== textOf(after, key),
      )
      .map(([key]) => `${name}.${key}`);
  });
}

/** The new settings, except that those which only a restart can change keep the values that the process was started with. */
export const withStartedValues = (started: Settings, next: Settings): Settings =>
  Object.freeze({ ...next, server: started.server, redis: started.redis, privacy: started.privacy });
