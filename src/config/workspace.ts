/** `workspaces.<id>`: who may call, and how much. */
import { z } from 'zod';
import { didYouMean } from '../nearest.policy.ts';
import { account, credential, settleCredential, shortForm } from './credential.ts';
import { defaultsOfKinds } from './defaults.ts';
import { readSeparator, type Separator } from './speaks.ts';
import type { UpstreamSettings } from './upstream.ts';
import * as is from './values.ts';

const hashOfNothing = 'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855';

/** Digest of an API key, lower case. */
const hash = is
  .text('make a key with "sluice keys create --workspace NAME" and copy the hash it prints', (text) => {
    if (is.isPlaceholder(text)) return 'is a placeholder, not a hash';
    if (text.trim().startsWith('slc_')) return 'is the key itself; only its hash belongs here';
    if (!/^sha256:[0-9a-f]{64}$/i.test(text)) return 'is not "sha256:" and 64 hexadecimal digits';
    return text.toLowerCase() === hashOfNothing ? 'is the hash of an empty key' : null;
  })
  .toLowerCase()
  .describe('sha256:<hex> of the whole key.');

/** End of an API key, milliseconds since the epoch. */
const expires = is.readText(
  { reason: 'is not a date', fix: 'write 2027-01-01T00:00:00Z or 2027-01-01' },
  is.readInstant,
);

const ceiling = z.union([...is.countOrNone.options, is.named(is.countOrNone)]).optional();
const ceilingWords = 'One number counts for each upstream alone. "none" = no ceiling.';

/** By what a workspace tells its callers apart. */
export type CallerPart = { readonly kind: 'key' } | Extract<Separator, { kind: 'header' | 'body' }>;

const callerPart = is.readText(
  { reason: 'tells no callers apart', fix: 'write key, "header:x-agent" or "body:/user"' },
  (written): CallerPart | null => {
    if (written === 'key') return { kind: 'key' };
    const part = readSeparator(written);
    return typeof part === 'object' && (part?.kind === 'header' || part?.kind === 'body') ? part : null;
  },
);

/** How calls are treated that do not say it themselves. */
const callsAre = z.enum(['normal', 'background']);
const classWords =
  'background: calls leave only when no other call of their bucket can, but one a minute. Default: normal.';

const key = is.section(
  {
    hash,
    id: is.orNull(z.string().regex(/^[A-Za-z0-9-]{1,64}$/)),
    expires: is.orNull(expires),
    class: is.orNull(callsAre),
  },
  {
    id: 'Id of the key, the middle part of slc_<id>_…: shown by `sluice labels`.',
    expires: 'Instant from which the key is refused: ISO 8601 with an offset, or a date (UTC).',
    class: classWords,
  },
);

/** One workspace. */
export const workspace = is
  .section(
    {
      keys: z.array(z.union([hash, key])),
      upstreams: z.array(z.string()).min(1).optional(),
      requestsPerMinute: ceiling,
      requestsPerDay: ceiling,
      class: callsAre.default('normal'),
      weight: is.rate.default(1),
      callers: is
        .section(
          { by: callerPart },
          { by: 'key, "header:<name>" or "body:<JSON Pointer>": what names the caller.' },
        )
        .optional(),
      credentials: is.named(credential.describe(shortForm)).optional(),
      accounts: is.named(account).optional(),
    },
    {
      keys: 'Valid API keys, as hashes. Several may be valid at once, for rotation; [] takes the last one away.',
      upstreams: 'Upstreams this workspace may call. Default: all.',
      requestsPerMinute: `Own ceiling in every 60 s window, by upstream. ${ceilingWords}`,
      requestsPerDay: `Own ceiling per 24 h, by upstream. ${ceilingWords}`,
      class: classWords,
      weight: 'Share of a bucket relative to other workspaces that wait for it.',
      callers:
        'Shares the turns of the workspace fairly between its callers, up to 1,000 at a time. Default: by arrival.',
      credentials: 'Own upstream credentials, by upstream.',
      accounts: 'Names of the quotas behind those credentials, by upstream.',
    },
  )
  .superRefine(
    is.rule(({ accounts = {}, credentials = {} }, refuse) => {
      const fix = 'add the workspace’s credential for it, or leave the account out';
      for (const name of Object.keys(accounts))
        if (!Object.hasOwn(credentials, name))
          refuse('names the quota of no credential', fix, 'accounts', name);
    }),
  );

type WorkspaceInput = z.output<typeof workspace>;

/** Refuses names of upstreams that are not configured, or not allowed to the workspace. `known`: all that are configured. */
export function checkUpstreamNames(
  { upstreams, requestsPerMinute, requestsPerDay, credentials }: WorkspaceInput,
  known: readonly string[],
  refuse: is.Refuse,
): void {
  const check = (name: string, ...at: is.Path): void => {
    const others = `${didYouMean(name, known)}use one of: ${known.join(', ')}`;
    const fix = `add ${name} to the workspace’s upstreams, or remove this entry`;
    if (!known.includes(name))
      refuse(
        'names an upstream that is not configured',
        known.length === 0 ? 'describe it in upstreams' : others,
        ...at,
      );
    else if (upstreams?.includes(name) === false)
      refuse('names an upstream that the workspace may not call', fix, ...at);
  };
  upstreams?.forEach((name, index) => check(name, 'upstreams', index));
  for (const [key, byUpstream] of Object.entries({ requestsPerMinute, requestsPerDay, credentials }))
    if (typeof byUpstream === 'object')
      for (const name of Object.keys(byUpstream ?? {})) check(name, key, name);
}

/** A workspace as its calls are judged. */
export interface WorkspaceSettings extends is.Frozen<ReturnType<typeof settleWorkspace>> {}
export type WorkspaceKey = WorkspaceSettings['keys'][number];

interface FileParts {
  /** All that the file describes, and their names: one set for all workspaces that may call each of very many. */
  readonly upstreams: ReadonlyMap<string, UpstreamSettings>;
  readonly all: ReadonlySet<string>;
  /** Where relative paths start. */
  readonly folder: string;
}

export function settleWorkspace(id: string, written: WorkspaceInput, { upstreams, all, folder }: FileParts) {
  const { accounts = {}, credentials = {}, weight } = written;
  const allowed = written.upstreams === undefined ? all : new Set(written.upstreams);
  /** A ceiling of each upstream: one number that holds for each, or one number by upstream. */
  const byUpstream = (ceiling: WorkspaceInput['requestsPerMinute']): Map<string, number | null> =>
    new Map(
      typeof ceiling === 'object' && ceiling !== null
        ? Object.entries(ceiling)
        : [...allowed].flatMap((name) => (ceiling === undefined ? [] : [[name, ceiling]])),
    );
  return {
    id,
    keys: written.keys.map((key) => {
      const { hash, id, expires, ...own } =
        typeof key === 'string' ? { hash: key, id: null, expires: null, class: null } : key;
      return {
        /** Hexadecimal: by it a key is found. */
        sha256: hash.slice('sha256:'.length),
        id,
        /** `null` = never. */
        expiresAt: expires,
        /** Its calls leave when no other call can. */
        isBackground: (own.class ?? written.class) === 'background',
      };
    }),
    /** Names of the upstreams this workspace may call. */
    upstreams: allowed,
    /** Own ceilings by upstream name; where absent the upstream's stated limit is the ceiling. `null` = none. */
    requestsPerMinute: byUpstream(written.requestsPerMinute),
    requestsPerDay: byUpstream(written.requestsPerDay),
    weight,
    /** What names the caller of a call; `null` = the workspace does not tell them apart. */
    callers: written.callers?.by ?? null,
    /** Own upstream credentials by upstream name. */
    credentials: new Map(
      Object.entries(credentials).map(([name, credential]) => {
        const { credential: common, kind = 'generic' } = upstreams.get(name) ?? {};
        const field = common?.field ?? defaultsOfKinds[kind].field;
        const account = Object.hasOwn(accounts, name) ? accounts[name] : undefined;
        return [name, settleCredential(credential, { field, account, folder })];
      }),
    ),
  };
}
