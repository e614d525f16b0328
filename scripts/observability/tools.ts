/** Finds the Debian tools that the verification drives, and runs them. Installs a missing one where it may (root, apt). */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';

const packages: Record<string, string> = {
  prometheus: 'prometheus',
  promtool: 'prometheus',
  chromium: 'chromium',
};

const present = (tool: string): boolean => spawnSync('which', [tool]).status === 0;

/** True when `tool` can be run; tries Debian's package first when it is missing. */
export function available(tool: string): boolean {
  if (present(tool)) return true;
  const name = packages[tool];
  if (name === undefined || process.getuid?.() !== 0 || !present('apt-get')) return false;
  console.log(`installing ${name} for ${tool}`);
  // RUNLEVEL keeps the package from starting a service of its own.
  const env = { ...process.env, RUNLEVEL: '1', DEBIAN_FRONTEND: 'noninteractive' };
  spawnSync('apt-get', ['update', '-qq'], { env });
  spawnSync('apt-get', ['install', '-y', '-qq', '--no-install-recommends', name, 'fonts-dejavu-core'], {
    env,
  });
  return present(tool);
}

export interface Ran {
  readonly status: number | null;
  readonly output: string;
}

export function run(
  tool: string,
  args: readonly string[],
  options: { input?: string; cwd?: string } = {},
): Ran {
  const { status, stdout, stderr, error } = spawnSync(tool, args, { encoding: 'utf8', ...options });
  return { status, output: `${stdout ?? ''}${stderr ?? ''}${error?.message ?? ''}`.trim() };
}

/** Starts a server; the child is ended by {@link end}, by its own id. */
export function start(tool: string, args: readonly string[]): ChildProcess {
  return spawn(tool, args, { stdio: ['ignore', 'ignore', 'ignore'] });
}

export async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const over = new Promise<void>((done) => void child.once('exit', () => done()));
  child.kill('SIGTERM');
  await over;
}

export const pause = (ms: number): Promise<void> => new Promise((done) => void setTimeout(done, ms));
