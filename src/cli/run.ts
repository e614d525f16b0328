/** Parses the command line and runs its command. Owns: the exit code of a command that no signal ended. */
import { readFileSync } from 'node:fs';
import { systemClock } from '../clock.ts';
import { parseArguments } from './arguments.ts';
import { runCheck } from './check.ts';
import type { CliIo } from './io.ts';
import { runKeysCreate } from './keys.ts';
import { runKeysList, runLabels } from './labels.ts';

const io: CliIo = {
  out: (text) => process.stdout.write(`${text}\n`),
  err: (text) => process.stderr.write(`${text}\n`),
  env: process.env,
  clock: systemClock,
};

export async function run(argv: readonly string[]): Promise<void> {
  process.exitCode = await codeOf(argv);
}

async function codeOf(argv: readonly string[]): Promise<number> {
  const command = parseArguments(argv);
  switch (command.kind) {
    case 'help':
      io.out(command.text);
      return 0;
    case 'version':
      io.out(packageVersion());
      return 0;
    case 'usage-error':
      io.err(command.text);
      return 2;
    case 'check':
      return runCheck(command, io);
    case 'learn':
      return (await import('./learn.ts')).runLearn(command, io);
    case 'keys-create':
      return runKeysCreate(command, io);
    case 'keys-list':
      return runKeysList(command, io);
    case 'labels':
      return runLabels(command, io);
    case 'control':
      return (await import('./control.ts')).runControl(command, io);
    case 'serve':
      return (await import('./serve.ts')).runServe(command, io);
    case 'demo':
      return (await import('./demo.ts')).runDemo(command, io);
  }
}

function packageVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  const { version } = JSON.parse(text) as { readonly version: string };
  return version;
}
