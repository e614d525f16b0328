/** Long-running programs of one run: started at the lowest priority with a log file each, ended in the reverse order. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const STOP_LIMIT_MS = 10_000;

export interface Output {
  readonly stdout: string;
  readonly stderr: string;
}

/** A program ended with another code than 0. `output` holds what it wrote. */
export class CommandFailure extends Error {
  readonly output: Output;

  constructor(line: string, output: Output) {
    super(`${line}\n${output.stdout}${output.stderr}`);
    this.output = output;
  }
}

/** Runs a program to its end. @throws {CommandFailure} with everything it wrote */
export function command(
  program: string,
  args: readonly string[],
  options: { env?: NodeJS.ProcessEnv; input?: string; timeoutMs?: number; cwd?: string } = {},
): Promise<Output> {
  const { input, timeoutMs = 300_000, ...rest } = options;
  return new Promise((resolve, reject) => {
    const child = execFile(
      program,
      [...args],
      { ...rest, timeout: timeoutMs, maxBuffer: 1 << 27 },
      (error, stdout, stderr) => {
        if (error === null) resolve({ stdout, stderr });
        else
          reject(
            new CommandFailure(`${program.split('/').at(-1) ?? program} ${args.join(' ')}`, {
              stdout,
              stderr: stderr || error.message,
            }),
          );
      },
    );
    child.stdin?.on('error', () => {});
    child.stdin?.end(input ?? '');
  });
}

/** Long options with their values, as `--name=value`. */
export const flags = (options: Readonly<Record<string, string | number | boolean>>): string[] =>
  Object.entries(options).map(([name, value]) => `--${name}=${value}`);

/** Asks until it is true. @throws after the limit */
export async function until(
  what: string,
  limitMs: number,
  holds: () => Promise<boolean>,
  detail: () => Promise<string> = () => Promise.resolve(''),
): Promise<void> {
  const end = Date.now() + limitMs;
  while (!(await holds())) {
    if (Date.now() > end)
      throw new Error(`not within ${limitMs / 1000} s: ${what}\n${await detail().catch(() => '')}`);
    await sleep(400);
  }
}

export class Processes {
  readonly #running: { name: string; child: ChildProcess; ended: Promise<void> }[] = [];
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  start(name: string, program: string, args: readonly string[], env: NodeJS.ProcessEnv = process.env): void {
    const log = openSync(join(this.#folder, `${name}.log`), 'a');
    const child = spawn('nice', ['-n', '19', program, ...args], { stdio: ['ignore', log, log], env });
    const ended = new Promise<void>((resolve) => {
      child.once('exit', () => resolve());
      child.once('error', () => resolve());
    });
    this.#running.push({ name, child, ended });
  }

  /** The end of what a program wrote, for messages. */
  log(name: string): string {
    return readFileSync(join(this.#folder, `${name}.log`), 'utf8').slice(-2000);
  }

  /** Ends everything that was started here, the last first; what does not end is killed. */
  async stop(): Promise<void> {
    for (const { child, ended } of this.#running.reverse()) {
      child.kill('SIGTERM');
      const late = sleep(STOP_LIMIT_MS, 'late', { ref: false });
      if ((await Promise.race([ended, late])) === 'late') child.kill('SIGKILL');
      await ended;
    }
    this.#running.length = 0;
  }
}
