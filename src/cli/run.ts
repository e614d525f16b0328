/** Runs a command line on the streams of the process. Owns: the exit code of a command that no signal ended. */
import { systemClock } from '../clock.ts';
import { runCommand } from './commands.ts';
import { outputTo } from './io.ts';

/** Resolves when the command has ended, with its exit code in `process.exitCode`. */
export async function run(argv: readonly string[]): Promise<void> {
  const stderr = outputTo(process.stderr);
  /** Something of what the command printed is lost, though its reader is there. */
  let isIncomplete = false;
  const readerGone = new AbortController();
  const stdout = outputTo(process.stdout, (why) => {
    if (why === 'EPIPE') return readerGone.abort();
    isIncomplete = true;
    stderr.write(`Not everything could be written to the standard output: ${why}.\n`);
    if (process.exitCode === 0) process.exitCode = 1;
  });
  const code = await runCommand(argv, {
    out: (text) => stdout.write(`${text}\n`),
    err: (text) => stderr.write(`${text}\n`),
    env: process.env,
    terminals: {
      get out() {
        const { isTTY, columns, rows } = process.stdout;
        return isTTY ? { columns, rows } : null;
      },
      err: process.stderr.isTTY === true,
    },
    readerGone: readerGone.signal,
    clock: systemClock,
  });
  process.exitCode = code === 0 && isIncomplete ? 1 : code;
}
