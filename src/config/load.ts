/**
 * The one reader of the configuration file and of the environment: text in, {@link Settings} out, or one
 * {@link ConfigError} with every problem. Invariant: nothing is returned that has not passed every check.
 */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseEnv } from 'node:util';
import { Worker } from 'node:worker_threads';
import { checkText, ConfigError, pathText, type ConfigSource, type Problem } from './check-text.ts';
import { fileSchema, settled, type FileInput, type Settings } from './settings.ts';

export { ConfigError, type ConfigSource, type Env, type Problem } from './check-text.ts';

/** A configuration as it was read: `env` has the variables of the `.env` beside it too. */
export interface WrittenConfig extends ConfigSource {
  readonly text: string;
  /** The file and its `.env`; only equality means anything. */
  readonly digest: string;
}

/** Path of the `.env` that belongs to a configuration file. */
export const envFileOf = (config: string): string => join(dirname(config), '.env');

/** The text of a file, without the byte order mark that some editors write; `null` where it cannot be read. */
function textOf(path: string): string | null {
  try {
    return new TextDecoder().decode(readFileSync(path));
  } catch {
    return null;
  }
}

/** Reads and checks the file. @throws ConfigError */
export const loadSettings = (source: ConfigSource): Settings => readSettings(source).settings;

/** Like {@link loadSettings}, with the digest by which a later change is noticed. @throws ConfigError */
export function readSettings(source: ConfigSource): { settings: Settings; digest: string } {
  const written = readFiles(source);
  const settings = withReadableFiles(parseSettings(written.text, written), written);
  return { settings, digest: written.digest };
}

/** Why a file gives no text, and what to do, by Node's code. */
const unreadable: Readonly<Record<string, readonly [reason: string, fix: string]>> = {
  ENOENT: [
    'the file does not exist',
    'run `npx sluice init` to write one (in the repository: `npm run sluice -- init`), or name another file with --config',
  ],
  ERR_ENCODING_INVALID_ENCODED_DATA: ['the file is not UTF-8', 'save it as UTF-8'],
};

/** Reads the file and the `.env` beside it; a variable of `env` wins over that of `.env`. @throws ConfigError when the file cannot be read */
export function readFiles({ path, env }: ConfigSource): WrittenConfig {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(readFileSync(path));
    const variables = textOf(envFileOf(path)) ?? '';
    return { text, digest: `${text}\0${variables}`, path, env: { ...parseEnv(variables), ...env } };
  } catch (error) {
    const { code = 'unknown' } = error as NodeJS.ErrnoException;
    const [reason, fix] = unreadable[code] ?? [
      `the file cannot be read (${code})`,
      'correct its permissions, or name another file with --config',
    ];
    throw new ConfigError(path, [{ path: '', line: null, reason, fix }]);
  }
}

/** Checks a configuration text; `path` only names it in messages. Touches no files but those of presets. @throws ConfigError */
export const parseSettings = (text: string, source: ConfigSource): Settings =>
  settled(checkText(fileSchema, text, source), source);

/** The settings, where all files of certificates that they name can be read. @throws ConfigError */
function withReadableFiles(settings: Settings, { path }: ConfigSource): Settings {
  const fix = 'give a PEM file that exists and may be read; relative paths start at the configuration file';
  const problems = [
    ...[...settings.upstreams].map(([name, { caFile }]) => ({ at: ['upstreams', name, 'caFile'], caFile })),
    { at: ['redis', 'tls', 'caFile'], caFile: settings.redis?.tls?.caFile ?? null },
  ]
    .filter(({ caFile }) => caFile !== null && textOf(caFile) === null)
    .map(({ at }) => ({ path: pathText(at), line: null, reason: 'cannot be read', fix }));
  if (problems.length > 0) throw new ConfigError(path, problems);
  return settings;
}

/**
 * While calls go on, a text of up to this many characters, some hundred workspaces, is checked in this thread: that takes a few
 * milliseconds. Ten thousand workspaces take seconds, in another thread.
 */
const maxLengthHere = 12_000;

/** Settings of what was read, while calls go on. Rejects also where the thread gave no result, which says nothing about the text. @throws ConfigError */
export async function settingsApart(written: WrittenConfig, signal: AbortSignal): Promise<Settings> {
  const file =
    written.text.length > maxLengthHere
      ? await checkInThread(written, signal)
      : checkText(fileSchema, written.text, written);
  return withReadableFiles(settled(file, written), written);
}

/** Sources run as they are, and compiled: the thread's has the ending of this file. */
const threadSource = new URL(`./check-thread${import.meta.url.slice(-3)}`, import.meta.url);

async function checkInThread(written: WrittenConfig, signal: AbortSignal): Promise<FileInput> {
  // Without the flags of this process: what is loaded before it (tracing, a test's runner) does not belong in the thread.
  const thread = new Worker(threadSource, { workerData: written, execArgv: [], name: 'configuration check' });
  try {
    const [result] = (await once(thread, 'message', { signal })) as [FileInput | readonly Problem[]];
    if ('length' in result) throw new ConfigError(written.path, result);
    return result;
  } finally {
    await thread.terminate();
  }
}
