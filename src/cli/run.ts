/** Parses the command line and runs its command. Owns: the exit code of a command that no signal ended. */
import { readFileSync } from 'node:fs';
import { findPackageJSON } from 'node:module';
import { systemClock } from '../clock.ts';
import { parseArguments } from './arguments.ts';
import { runCheck } from './check.ts';
import type { CliIo } from './io.ts';
import { runKeysCreate } from './keys.ts';
import { runKeysList, runLabels } from './labels.ts';
import { Output } from './output.ts';

const stderr = new Output(process.stderr);
/** Something of what the command printed is lost, though its reader is there. */
let isIncomplete = false;
const stdout = new Output(process.stdout, {
  onLoss(why) {
    // A reader that has seen enough, such as `head`.
    if (why === 'EPIPE') return;
    isIncomplete = true;
    stderr.write(`Not everything could be written to the standard output: ${why}.\n`);
    if (process.exitCode === 0) process.exitCode = 1;
  },
});

const io: CliIo = {
  out: (text) => stdout.write(`${text}\n`),
  err: (text) => stderr.write(`${text}\n`),
  env: process.env,
  clock: systemClock,
};

export async function run(argv: readonly string[]): Promise<void> {
  const code = await codeOf(argv);
  process.exitCode = code === 0 && isIncomplete ? 1 : code;
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
      return (await import('../../tools/learn/learn.ts')).runLearn(command, io);
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
      return (await import('../../demo/demo.ts')).runDemo(command, io);
  }
}

function packageVersion(): string {
  const text = readFileSync(findPackageJSON(import.meta.url) ?? '', 'utf8');
  const { version } = JSON.parse(text) as { readonly version: string };
  return version;
}
