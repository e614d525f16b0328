/** `workspaces.<id>`: who may call, and how much. */
import { z } from 'zod';
import { didYouMean } from '../nearest.policy.ts';
import { account, credential, settleCredential, shortForm } from './credential.ts';
import { defaultsOfKinds } from './defaults.ts';
import type { Fault, Path } from './problem.ts';
import { readSeparator, type Separator } from './speaks.ts';
import type { UpstreamSettings } from './upstream.ts';
import {
  countOrNone,
  expires,
  hash,
  keyId,
  named,
  orNull,
  rate,
  readText,
  refuse,
  section,
  type Frozen,
  type RuleContext,
} from './values.ts';

const perUpstream = (description: string) =>
  z
    .union([...countOrNone.options, named(countOrNone)])
    .optional()
    .describe(`${description} One number counts for each upstream alone; "none" = no ceiling.`);

/** By what a workspace tells its callers apart. */
export type CallerPart = { readonly kind: 'key' } | Extract<Separator, { kind: 'header' | 'body' }>;

const callerPart = readText((written): { readonly value: CallerPart } | Fault => {
  if (written === 'key') return { value: { kind: 'key' } };
  const part = readSeparator(written);
  return part !== null && typeof part === 'object' && (part.kind === 'header' || part.kind === 'body')
    ? { value: part }
    : { reason: 'tells no callers apart', fix: 'write key, "header:x-agent" or "body:/user"' };
});

/** How calls are treated that do not say it themselves. */
const callsAre = z
  .enum(['normal', 'background'])
  .describe(
    'background: calls leave only when no other call of their bucket can, but one a minute. Default: normal.',
  );

/** One workspace. */
export const workspace = section({
  keys: z
    .array(
      z.union([
        hash,
        section({ hash, id: orNull(keyId), expires: orNull(expires), class: orNull(callsAre) }),
      ]),
    )
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
  class: callsAre.default('normal'),
  weight: rate.default(1).describe('Share of a bucket relative to other workspaces that wait for it.'),
  callers: section({
    by: callerPart.describe('key, "header:<name>" or "body:<JSON Pointer>": what names the caller.'),
  })
    .optional()
    .describe(
      'Shares the turns of the workspace fairly between its callers, up to 1,000 at a time. Default: by arrival.',
    ),
  credentials: named(credential(shortForm)).optional().describe('Own upstream credentials, by upstream.'),
  accounts: named(account).optional().describe('Names of the quotas behind those credentials, by upstream.'),
}).superRefine(({ accounts = {}, credentials = {} }, context) => {
  for (const name of Object.keys(accounts)) {
    if (Object.hasOwn(credentials, name)) continue;
    const fix = 'add the workspace’s credential for it, or leave the account out';
    refuse(context, { reason: 'names the quota of no credential', fix }, ['accounts', name]);
  }
});

export type WorkspaceInput = z.output<typeof workspace>;

/** Refuses names of upstreams that are not configured, or not allowed to the workspace. `known`: all that are configured. */
export function checkUpstreamNames(
  workspace: WorkspaceInput,
  known: readonly string[],
  { context, path }: { readonly context: RuleContext; readonly path: Path },
): void {
  const { upstreams: allowed = known, requestsPerMinute, requestsPerDay, credentials } = workspace;
  const check = (name: string, ...at: Path): void => {
    if (!known.includes(name)) {
      const fix =
        known.length === 0
          ? 'describe it in upstreams'
          : `${didYouMean(name, known)}use one of: ${known.join(', ')}`;
      refuse(context, { reason: 'names an upstream that is not configured', fix }, [...path, ...at]);
    } else if (!allowed.includes(name)) {
      const fix = `add ${name} to the workspace’s upstreams, or remove this entry`;
      refuse(context, { reason: 'names an upstream that the workspace may not call', fix }, [...path, ...at]);
    }
  };
  workspace.upstreams?.forEach((name, index) => check(name, 'upstreams', index));
  for (const [key, byUpstream] of Object.entries({ requestsPerMinute, requestsPerDay, credentials }))
    if (typeof byUpstream === 'object' && byUpstream !== null)
      for (const name of Object.keys(byUpstream)) check(name, key, name);
}

/** The digest of each key, with the path to it from the workspace. */
export const keyHashes = ({ keys }: WorkspaceInput): { readonly hash: string; readonly path: Path }[] =>
  keys.map((key, index) =>
    typeof key === 'string'
      ? { hash: key, path: ['keys', index] }
      : { hash: key.hash, path: ['keys', index, 'hash'] },
  );

/** A workspace as its calls are judged. */
export interface WorkspaceSettings extends Frozen<ReturnType<typeof settleWorkspace>> {}
export type WorkspaceKey = WorkspaceSettings['keys'][number];

/** `upstreams`: all that the file describes. `folder`: where relative paths start. */
export function settleWorkspace(
  id: string,
  written: WorkspaceInput,
  {
    upstreams,
    folder,
  }: { readonly upstreams: ReadonlyMap<string, UpstreamSettings>; readonly folder: string },
) {
  const allowed = written.upstreams ?? [...upstreams.keys()];
  const { accounts = {}, credentials = {} } = written;
  return {
    id,
    keys: written.keys.map((key) => {
      const own = typeof key === 'string' ? { hash: key, id: null, expires: null, class: null } : key;
      const { hash, id, expires } = own;
      /** `sha256`: hexadecimal, by it a key is found. `expiresAt`: `null` = never. */
      return {
        sha256: hash.slice('sha256:'.length),
        id,
        expiresAt: expires,
        /** Its calls leave when no other call can. */
        isBackground: (own.class ?? written.class) === 'background',
      };
    }),
    /** Names of the upstreams this workspace may call. */
    upstreams: new Set(allowed),
    /** Own ceilings by upstream name; where absent the upstream's stated limit is the ceiling. `null` = none. */
    requestsPerMinute: byUpstream(written.requestsPerMinute, allowed),
    requestsPerDay: byUpstream(written.requestsPerDay, allowed),
    weight: written.weight,
    /** What names the caller of a call; `null` = the workspace does not tell them apart. */
    callers: written.callers?.by ?? null,
    /** Own upstream credentials by upstream name. */
    credentials: new Map(
      Object.entries(credentials).map(([name, credential]) => {
        const upstream = upstreams.get(name);
        const defaultField =
          upstream?.credential?.field ?? defaultsOfKinds[upstream?.kind ?? 'generic'].field;
        const account = Object.hasOwn(accounts, name) ? accounts[name] : undefined;
        return [name, settleCredential(credential, { defaultField, account, folder })];
      }),
    ),
  };
}

/** A ceiling of each upstream: one number that holds for each, or one number by upstream. */
function byUpstream(
  ceiling: WorkspaceInput['requestsPerMinute'],
  allowed: readonly string[],
): Map<string, number | null> {
  if (ceiling === undefined) return new Map();
  return typeof ceiling === 'object' && ceiling !== null
    ? new Map(Object.entries(ceiling))
    : new Map(allowed.map((name) => [name, ceiling]));
}
