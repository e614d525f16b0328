/** What a command may touch of the process, as a port: commands are functions from arguments to text and an exit code. */
import type { Clock } from '../clock.ts';
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
