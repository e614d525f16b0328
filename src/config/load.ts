/**
 * The one reader of the configuration file and of the environment: text in, frozen {@link Settings} out, or one
 * {@link ConfigError} with every problem. Invariant: nothing is returned that has not passed every check.
 */
import { createHash, randomBytes } from 'node:crypto';
import { accessSync, constants, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { parseEnv } from 'node:util';
import type { Slices } from '../slices.ts';
import { checkText, type ConfigSource } from './check-text.ts';
import {
  checkedInput,
  checkInThread,
  restOf,
  workspacesOf,
  type CheckedInput,
  type StartThread,
} from './check-thread.ts';
import { defaultServer } from './defaults.ts';
import { ConfigError, pathText, type Path, type Problem } from './problem.ts';
import { fileSchema, settledWorkspace, settleRest, type FileContext, type RestSettings } from './schema.ts';
import type { Settings, WorkspaceSettings } from './settings.ts';

export { ConfigError } from './problem.ts';
export type { Problem } from './problem.ts';
export type { ConfigSource, Env } from './check-text.ts';

/** Path of the `.env` that belongs to a configuration file. */
export const envFileOf = (config: string): string => join(dirname(config), '.env');

/** The text of the `.env` beside the configuration; empty when it cannot be read. */
function envFileText(config: string): string {
  try {
    return readFileSync(envFileOf(config), 'utf8');
  } catch {
    return '';
  }
}

/** Label key of this process when the file has none: the same at every reload, so that labels stay the same. */
const processLabelKey = randomBytes(32).toString('hex');

/** `SLUICE_ADMIN_HOST`: what the image sets, whose ports are reached from outside of its network only if they listen to it. */
const contextOf = ({ path, env }: ConfigSource): FileContext => ({
  processLabelKey,
  folder: dirname(path),
  adminHost: env['SLUICE_ADMIN_HOST'] || defaultServer.adminHost,
});

/** Reads and checks the file. @throws ConfigError */
export function loadSettings(source: ConfigSource): Settings {
  return readSettings(source).settings;
}

/** Like {@link loadSettings}, with the digest by which a later change is noticed. @throws ConfigError */
export function readSettings(source: ConfigSource): { settings: Settings; digest: string } {
  const { text, digest, ...read } = readFiles(source);
  return { settings: withFiles(parseSettings(text, read), read.path), digest };
}

/** A configuration as it was read: `env` has the variables of the `.env` beside it too. */
export interface WrittenConfig extends ConfigSource {
  readonly text: string;
  /** Of the file and its `.env`; only equality means anything. */
  readonly digest: string;
}

/** Reads the file and the `.env` beside it; a variable of `env` wins over that of `.env`. @throws ConfigError when the file cannot be read */
export function readFiles({ path, env }: ConfigSource): WrittenConfig {
  const text = readText(path);
  const variables = envFileText(path);
  const digest = createHash('sha256').update(text).update('\0').update(variables).digest('hex');
  return { text, digest, path, env: { ...parseEnv(variables), ...env } };
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const code =
      typeof error === 'object' && error !== null && 'code' in error ? String(error.code) : 'unknown';
    const reason = code === 'ENOENT' ? 'the file does not exist' : `the file cannot be read (${code})`;
    const fix =
      code === 'ENOENT'
        ? 'run `npx sluice init` to write one (in the repository: `npm run sluice -- init`), or name another file with --config'
        : 'correct its permissions, or name another file with --config';
    throw new ConfigError(path, [{ path: '', line: null, reason, fix }]);
  }
}

/** Checks a configuration text; `path` only names it in messages. Touches no files but those of presets. @throws ConfigError */
export function parseSettings(text: string, source: ConfigSource): Settings {
  const { workspaces, ...rest } = checkText(fileSchema, text, source);
  const settings = settleRest(rest, contextOf(source));
  const context = { upstreams: settings.upstreams, folder: dirname(source.path) };
  const all = Object.entries(workspaces).map(
    ([id, written]) => [id, settledWorkspace(id, written, context)] as const,
  );
  return Object.freeze({ ...settings, workspaces: new Map(all) });
}

/**
 * Settings of a text that was checked in another thread, built in slices: very many workspaces keep no call waiting.
 * @throws ConfigError when a certificate file cannot be read
 */
export async function settingsOf(
  checked: CheckedInput,
  source: ConfigSource,
  slices: Slices,
): Promise<Settings> {
  const context = contextOf(source);
  const { folder } = context;
  const rest = withFiles(settleRest(restOf(checked), context), source.path);
  const workspaces = new Map<string, WorkspaceSettings>();
  await slices.forEach(workspacesOf(checked), ([id, input]) =>
    workspaces.set(id, settledWorkspace(id, input, { upstreams: rest.upstreams, folder })),
  );
  return Object.freeze({ ...rest, workspaces });
}

/** Makes the paths of certificate files absolute and sees that they can be read. */
function withFiles<S extends RestSettings>(settings: S, path: string): S {
  const problems: Problem[] = [];
  const readable = (caFile: string, at: Path): string => {
    const file = resolve(dirname(path), caFile);
    try {
      accessSync(file, constants.R_OK);
    } catch {
      const fix =
        'give a PEM file that exists and may be read; relative paths start at the configuration file';
      problems.push({ path: pathText(at), line: null, reason: 'cannot be read', fix });
    }
    return file;
  };
  const upstreams = new Map(settings.upstreams);
  for (const [name, upstream] of settings.upstreams) {
    if (upstream.caFile === null) continue;
    const caFile = readable(upstream.caFile, ['upstreams', name, 'caFile']);
    upstreams.set(name, Object.freeze({ ...upstream, caFile }));
  }
  let { redis } = settings;
  if (typeof redis?.tls?.caFile === 'string') {
    const caFile = readable(redis.tls.caFile, ['redis', 'tls', 'caFile']);
    redis = Object.freeze({ ...redis, tls: Object.freeze({ caFile }) });
  }
  if (problems.length > 0) throw new ConfigError(path, problems);
  return Object.freeze({ ...settings, upstreams, redis });
}

/** Where a text is checked while calls go on. */
export interface ApartOptions {
  readonly slices: Slices;
  /** Its abort ends the thread. */
  readonly signal: AbortSignal;
  /** Tests replace the thread that checks the text by it. When set, short texts are checked in it as well. */
  readonly startThread?: StartThread | undefined;
}

/**
 * While calls go on, a text of up to this many characters, some hundred workspaces, is checked in this thread: that takes a few
 * milliseconds, while another thread takes half a second to start.
 */
export const maxReloadLengthHere = 12_000;

/**
 * Settings of what was read, while calls go on.
 * @throws ConfigError, what `checkInThread` throws, or `signal.reason`
 */
export async function settingsApart(
  { text, ...source }: Omit<WrittenConfig, 'digest'>,
  { slices, signal, startThread }: ApartOptions,
): Promise<Settings> {
  const isShort = startThread === undefined && text.length <= maxReloadLengthHere;
  const checked = isShort
    ? checkedInput(checkText(fileSchema, text, source))
    : await checkInThread({ text, ...source }, signal, startThread);
  const settings = await settingsOf(checked, source, slices);
  signal.throwIfAborted();
  return settings;
}
