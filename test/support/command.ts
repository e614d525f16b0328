/** A command of the CLI, run in this process. */
import { runCommand } from '../../src/cli/commands.ts';
import type { CliIo } from '../../src/cli/io.ts';

interface Surroundings {
  readonly env?: CliIo['env'];
  readonly now?: number;
}

/** Begins a command; what it prints is in `out` and `err`, a text for each line. */
export function begun(
  argv: readonly string[],
  terminals: CliIo['terminals'] = { out: null, err: false },
  { env = {}, now = 0 }: Surroundings = {},
) {
  const [out, err]: [string[], string[]] = [[], []];
  const ended = runCommand(argv, {
    out: (text) => void out.push(text),
    err: (text) => void err.push(text),
    env,
    terminals,
    readerGone: new AbortController().signal,
    clock: { now: () => now },
  });
  return { out, err, ended };
}

/** Runs a command, without a terminal, to its end: its exit code, and both outputs as texts. */
export async function ran(argv: readonly string[], surroundings: Surroundings = {}) {
  const { out, err, ended } = begun(argv, undefined, surroundings);
  const code = await ended;
  return { code, out: out.join('\n'), err: err.join('\n') };
}
