/**
 * Checks a configuration text in a thread of its own: seconds of work for ten thousand workspaces, in which calls go on.
 * The thread ends with its result, with `signal`, or when it fails, and leaves nothing behind.
 */
import { Worker } from 'node:worker_threads';
import { checkText, type ConfigSource } from './check-text.ts';
import { ConfigError, type Problem } from './problem.ts';
import { fileSchema, type FileInput, type RestInput } from './schema.ts';
import type { WorkspaceInput } from './workspace.ts';

/** The message that the thread is given. */
export interface CheckTask extends ConfigSource {
  readonly text: string;
}

/** The message with which the thread answers. */
export type CheckResult =
  | { readonly kind: 'usable'; readonly input: CheckedInput }
  | { readonly kind: 'refused'; readonly problems: readonly Problem[] };

/** Workspaces in one text, so few that parsing it takes a fraction of a millisecond. */
const perText = 50;

/**
 * A checked file on its way from one thread to another: texts, because a text is copied as it is, while objects would be made again all at
 * once by the thread that receives them.
 */
export interface CheckedInput {
  /** The file without its workspaces. */
  readonly rest: string;
  /** Some workspaces each, in the order of the file. */
  readonly workspaces: readonly string[];
}

export function checkedInput({ workspaces, ...rest }: FileInput): CheckedInput {
  const entries = Object.entries(workspaces);
  const texts: string[] = [];
  for (let from = 0; from < entries.length; from += perText) {
    texts.push(JSON.stringify(entries.slice(from, from + perText)));
  }
  return { rest: JSON.stringify(rest), workspaces: texts };
}

/** Reads back the file without its workspaces. The type is safe: the schema had checked the values before they were written. */
export const restOf = ({ rest }: CheckedInput): RestInput => JSON.parse(rest) as RestInput;

/** Reads back the workspaces, one text at a time: each when its first workspace is asked for. */
export function* workspacesOf({ workspaces }: CheckedInput): Generator<readonly [string, WorkspaceInput]> {
  for (const text of workspaces) yield* JSON.parse(text) as [string, WorkspaceInput][];
}

/** What the thread does (`check-thread-entry.ts`). */
export function checkResult({ text, path, env }: CheckTask): CheckResult {
  try {
    return { kind: 'usable', input: checkedInput(checkText(fileSchema, text, { path, env })) };
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { kind: 'refused', problems: error.problems };
  }
}

/** The part of a worker thread's interface that is used here. */
export interface CheckThread {
  on(event: 'message', heard: (result: CheckResult) => void): unknown;
  on(event: 'error', heard: (cause: unknown) => void): unknown;
  on(event: 'exit', heard: (code: number) => void): unknown;
  terminate(): Promise<unknown>;
}

/** Starts the thread; a test may start another one. */
export type StartThread = (task: CheckTask) => CheckThread;

/** Sources run as they are, and compiled: the entry has the ending of this file. */
const entry = new URL(`./check-thread-entry${import.meta.url.slice(-3)}`, import.meta.url);

/** Starts the thread of this project. */
export const startCheckThread: StartThread = (workerData) =>
  // Without the flags of this process: what is loaded before it (tracing, a test's runner) does not belong in the thread.
  new Worker(entry, { workerData, execArgv: [], name: 'configuration check' });

/**
 * Checks a text as `checkText` does. Resolves when the thread has ended.
 * @throws ConfigError, `signal.reason`, or an Error where the thread gave no result, which says nothing about the text
 */
export async function checkInThread(
  task: CheckTask,
  signal: AbortSignal,
  start: StartThread = startCheckThread,
): Promise<CheckedInput> {
  signal.throwIfAborted();
  const thread = begun(task, start);
  const seen: { result: CheckResult | null; failure: unknown } = { result: null, failure: null };
  const { promise: exited, resolve: exit } = Promise.withResolvers<number>();
  thread.on('message', (result) => (seen.result = result));
  thread.on('error', (cause) => (seen.failure = cause));
  thread.on('exit', exit);
  const stop = (): void => void thread.terminate();
  signal.addEventListener('abort', stop);
  const code = await exited;
  signal.removeEventListener('abort', stop);
  signal.throwIfAborted();
  const { result, failure } = seen;
  if (failure !== null) throw noResult(`failed: ${wordsOf(failure)}`, failure);
  if (result === null) throw noResult(`ended without a result (exit code ${code})`);
  if (result.kind === 'refused') throw new ConfigError(task.path, result.problems);
  return result.input;
}

function begun({ text, path, env }: CheckTask, start: StartThread): CheckThread {
  try {
    return start({ text, path, env: { ...env } });
  } catch (cause) {
    throw noResult(`could not start: ${wordsOf(cause)}`, cause);
  }
}

const noResult = (reason: string, cause?: unknown): Error =>
  new Error(`the thread that checks the configuration ${reason}`, { cause });

/** The message of what another thread threw, which need not be an `Error` of this thread. */
const wordsOf = (cause: unknown): string =>
  typeof cause === 'object' && cause !== null && 'message' in cause ? String(cause.message) : String(cause);
