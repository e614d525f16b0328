/** Programs that run to their end. */
import { execFile } from 'node:child_process';

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

/** @throws {CommandFailure} with everything it wrote */
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
        if (error === null) return resolve({ stdout, stderr });
        const line = `${program.split('/').at(-1) ?? program} ${args.join(' ')}`;
        reject(new CommandFailure(line, { stdout, stderr: stderr || error.message }));
      },
    );
    child.stdin?.on('error', () => {});
    child.stdin?.end(input ?? '');
  });
}
