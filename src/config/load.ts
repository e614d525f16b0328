/**
 * The one reader of the configuration file and of the environment: text in, frozen {@link Settings} out, or one
 * {@link ConfigError} with every problem. Invariant: nothing is returned that has not passed every check.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { accessSync, constants, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseEnv } from 'node:util';
import { Worker } from 'node:worker_threads';
import { checkText, type ConfigSource, type WrittenConfig } from './check-text.ts';
import type { CheckResult } from './check-thread.ts';
import { ConfigError, pathText, type Path } from './problem.ts';
import { fileSchema, settle, settleInTurns, type Settings } from './schema.ts';

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

/** Reads and checks the file. @throws ConfigError */
export const loadSettings = (source: ConfigSource): Settings => readSettings(source).settings;

/** Like {@link loadSettings}, with the digest by which a later change is noticed. @throws ConfigError */
export function readSettings(source: ConfigSource): { settings: Settings; digest: string } {
  const written = readFiles(source);
  return {
    settings: withReadableFiles(parseSettings(written.text, written), written),
    digest: written.digest,
  };
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
    const { code = 'unknown' } = error as NodeJS.ErrnoException;
    const [reason, fix] =
      code === 'ENOENT'
        ? [
            'the file does not exist',
            'run `npx sluice init` to write one (in the repository: `npm run sluice -- init`), or name another file with --config',
          ]
        : [
            `the file cannot be read (${code})`,
            'correct its permissions, or name another file with --config',
          ];
    throw new ConfigError(path, [{ path: '', line: null, reason, fix }]);
  }
}

/** Checks a configuration text; `path` only names it in messages. Touches no files but those of presets. @throws ConfigError */
export const parseSettings = (text: string, source: ConfigSource): Settings =>
  settle(checkText(fileSchema, text, source), source);

/** The settings, where all files of certificates that they name can be read. @throws ConfigError */
function withReadableFiles(settings: Settings, { path }: ConfigSource): Settings {
  const files: (readonly [at: Path, file: string | null | undefined])[] = [
    ...[...settings.upstreams].map(([name, { caFile }]) => [['upstreams', name, 'caFile'], caFile] as const),
    [['redis', 'tls', 'caFile'], settings.redis?.tls?.caFile],
  ];
  const problems = files
    .filter(([, file]) => typeof file === 'string' && !isReadable(file))
    .map(([at]) => ({
      path: pathText(at),
      line: null,
      reason: 'cannot be read',
      fix: 'give a PEM file that exists and may be read; relative paths start at the configuration file',
    }));
  if (problems.length > 0) throw new ConfigError(path, problems);
  return settings;
}

function isReadable(file: string): boolean {
  try {
    accessSync(file, constants.R_OK);
    return true;
  } catch {
    return false;
  }
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
  return withReadableFiles(await settleInTurns(file, written), written);
}

/** Sources run as they are, and compiled: the thread's has the ending of this file. */
const threadSource = new URL(`./check-thread${import.meta.url.slice(-3)}`, import.meta.url);

async function checkInThread(written: WrittenConfig, signal: AbortSignal) {
  // Without the flags of this process: what is loaded before it (tracing, a test's runner) does not belong in the thread.
  const thread = new Worker(threadSource, { workerData: written, execArgv: [], name: 'configuration check' });
  // A thread that dies without a word must not keep later reloads waiting.
  const died = new AbortController();
  thread.once('exit', () => died.abort());
  try {
    const either = { signal: AbortSignal.any([signal, died.signal]) };
    const [result] = (await once(thread, 'message', either)) as [CheckResult];
    if ('length' in result) throw new ConfigError(written.path, result);
    return result;
  } finally {
    await thread.terminate();
  }
}
