/**
 * Checks a configuration text in a thread of its own: seconds of work for ten thousand workspaces, in which calls go on.
 * Owns the thread's life: the thread ends with its result, with `signal`, or when it fails, and leaves nothing behind. The work
 * of the thread is in `check-thread-entry.ts`.
 */
import { Worker } from 'node:worker_threads';
import type { ConfigSource } from './check-text.ts';
import type { CheckedInput } from './checked-input.ts';
import { ConfigError, type Problem } from './problem.ts';

/** The message that the thread is given. */
export interface CheckTask extends ConfigSource {
  readonly text: string;
}

/** The message with which the thread answers. */
export type CheckResult =
  | { readonly kind: 'usable'; readonly input: CheckedInput }
  | { readonly kind: 'refused'; readonly problems: readonly Problem[] };

/** The thread gave no result: it could not start, or ended before it had one. Says nothing about the text. */
export class CheckThreadError extends Error {
  constructor(reason: string, cause?: unknown) {
    super(`the thread that checks the configuration ${reason}`, cause === undefined ? undefined : { cause });
    this.name = 'CheckThreadError';
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
 * @throws ConfigError, CheckThreadError, or `signal.reason`
 */
export async function checkInThread(
  task: CheckTask,
  signal: AbortSignal,
  start: StartThread = startCheckThread,
): Promise<CheckedInput> {
  signal.throwIfAborted();
  let thread: CheckThread;
  try {
    thread = start({ text: task.text, path: task.path, env: { ...task.env } });
  } catch (cause) {
    throw new CheckThreadError(`could not start: ${wordsOf(cause)}`, cause);
  }
  const result = await resultOf(thread, signal);
  if (result.kind === 'refused') throw new ConfigError(task.path, result.problems);
  return result.input;
}

/** Settles when the thread has ended, for whatever reason. */
function resultOf(thread: CheckThread, signal: AbortSignal): Promise<CheckResult> {
  return new Promise((resolve, reject) => {
    let result: CheckResult | null = null;
    let failure: CheckThreadError | null = null;
    const stop = (): void => void thread.terminate();
    thread.on('message', (message) => {
      result = message;
    });
    thread.on('error', (cause) => {
      failure = new CheckThreadError(`failed: ${wordsOf(cause)}`, cause);
    });
    thread.on('exit', (code) => {
      signal.removeEventListener('abort', stop);
      if (signal.aborted) reject(signal.reason as Error);
      else if (failure !== null) reject(failure);
      else if (result !== null) resolve(result);
      else reject(new CheckThreadError(`ended without a result (exit code ${code})`));
    });
    signal.addEventListener('abort', stop);
  });
}

/** The message of what another thread threw, which need not be an `Error` of this thread. */
const wordsOf = (cause: unknown): string =>
  typeof cause === 'object' && cause !== null && 'message' in cause ? String(cause.message) : String(cause);
