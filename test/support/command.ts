/** A command of the CLI, run in this process. */
import { readCommand } from '../../src/cli/commands.ts';
import type { CliIo } from '../../src/cli/io.ts';

/** Begins a command; what it prints is in `out` and `err`, a text for each line. */
export function begun(argv: readonly string[], terminals: CliIo['terminals'] = { out: null, err: false }) {
  const readerGone = new AbortController();
  const [out, err]: [string[], string[]] = [[], []];
  const command = readCommand(argv);
  if (command.kind !== 'command') throw new Error(`no command: ${argv.join(' ')}`);
  const ended = command.run({
    out: (text) => void out.push(text),
    err: (text) => void err.push(text),
    env: {},
    terminals,
    readerGone: readerGone.signal,
    clock: { now: () => 0 },
  });
  return { out, err, ended, readerGone };
}
