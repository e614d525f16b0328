/** What a command may touch of the process, as a port: commands are functions from arguments to text and an exit code. */
import type { Clock } from '../clock.ts';
import type { Env } from '../config/load.ts';

export interface CliIo {
  /** Writes one line (or several) to standard output; the line end is added. */
  readonly out: (text: string) => void;
  /** Same, standard error. */
  readonly err: (text: string) => void;
  readonly env: Env;
  /** Which of the two a person reads at a terminal. */
  readonly terminals: { readonly out: boolean; readonly err: boolean };
  readonly clock: Pick<Clock, 'now'>;
}
