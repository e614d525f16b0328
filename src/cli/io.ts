/**
 * What a command may touch of the process, as a port: commands are functions from arguments to text and an exit code. And the two parts of
 * a process that every command must not stumble over: outputs that break, and signals that end it.
 */
import type { Writable } from 'node:stream';
import { systemClock, type Clock } from '../clock.ts';
import { ConfigError, type Env } from '../config/load.ts';

/** What a terminal shows, in characters. */
export interface Screen {
  readonly columns: number;
  readonly rows: number;
}

export interface CliIo {
  /** Writes one line (or several) to standard output; the line end is added. */
  readonly out: (text: string) => void;
  /** Same, standard error. */
  readonly err: (text: string) => void;
  readonly env: Env;
  /** Which of the two a person reads at a terminal; of standard output, how much of it is seen now. */
  readonly terminals: { readonly out: Screen | null; readonly err: boolean };
  /** Aborted when nobody reads standard output any more: `head` has seen enough. */
  readonly readerGone: AbortSignal;
  readonly clock: Pick<Clock, 'now'>;
}

/** The command line cannot be understood: why, as a sentence. */
export class UsageError extends Error {}

/** What `read` makes of the configuration, or `null` with every problem on standard error. */
export function readOrSayWhy<T>(read: () => T, { err }: CliIo): T | null {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    err(error.message);
    return null;
  }
}

/** Rows below their heads, the columns as wide as their widest cell. */
export function table(heads: readonly string[], rows: readonly (readonly string[])[]): readonly string[] {
  const all = [heads, ...rows];
  const widths = heads.map((_, at) => Math.max(...all.map((row) => row[at]?.length ?? 0)));
  return all.map((row) =>
    row
      .map((cell, at) => cell.padEnd(widths[at] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}

/** So much may wait for a reader; further texts are lost. Bytes, or UTF-16 units where the stream keeps strings. */
const maxWaiting = 1_048_576;

/**
 * What the process prints, on a stream that may break at any time: the reader is gone (EPIPE), the disk is full (ENOSPC), a pipe
 * is full and nobody reads it. None of that ends the process, keeps it waiting or fills its memory: what cannot be written is
 * lost. Node never closes standard output and standard error, so writing succeeds again when it can.
 * @param onLoss the first text was lost. `why`: a code of the system such as `EPIPE`; `full`: nobody reads
 */
export function outputTo(stream: Writable, onLoss: (why: string) => void = () => {}) {
  let isBroken = false;
  const lose = (why: string): void => {
    if (!isBroken) onLoss(why);
    isBroken = true;
  };
  const written = (failure?: (Error & { readonly code?: string }) | null): void => {
    if (failure) lose(failure.code ?? failure.name);
  };
  // Each failed write is noticed by its callback. Without a listener the event would end the process.
  stream.on('error', () => {});
  return {
    /** Writes the text, or loses it; never throws. */
    write(text: string): void {
      if (stream.writableLength > maxWaiting) lose('full');
      else stream.write(text, written);
    },
  };
}

/**
 * A signal within this time of the first repeats it, milliseconds: Ctrl-C reaches a script of npm twice, from the
 * terminal and from npm, which passes signals on.
 */
const sameSignalMs = 500;

/** `SIGTERM` is how a supervisor ends a process, `SIGINT` how a person does at a terminal. */
type EndSignal = 'SIGTERM' | 'SIGINT';

/**
 * The two signals by which whoever runs a command ends it: the first asks for an orderly end, the second, which is no repetition of it,
 * for an immediate one. Listens from now on, until the process ends, and does not keep it alive.
 */
export function endSignals(
  clock: Pick<Clock, 'monotonic'> = systemClock,
  source: { on(name: EndSignal, heard: () => void): unknown } = process,
): { readonly first: Promise<EndSignal>; readonly second: Promise<void> } {
  const first = Promise.withResolvers<EndSignal>();
  const second = Promise.withResolvers<void>();
  let firstAt: number | null = null;
  for (const name of ['SIGTERM', 'SIGINT'] as const)
    source.on(name, () => {
      firstAt ??= clock.monotonic();
      first.resolve(name);
      if (clock.monotonic() - firstAt >= sameSignalMs) second.resolve();
    });
  return { first: first.promise, second: second.promise };
}
