/** Programs that verifications start, and what is asked of them. */
import { spawn, spawnSync, type ChildProcess, type SpawnOptions } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';

/** Whether the program is found in PATH. */
export const has = (program: string): boolean =>
  spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;

/** As {@link has}; root gets a missing program from this package of Debian first. */
export function available(program: string, debian: string): boolean {
  if (has(program)) return true;
  if (process.getuid?.() !== 0 || !has('apt-get')) return false;
  // RUNLEVEL keeps the package from starting a service of its own.
  const env = { ...process.env, RUNLEVEL: '1', DEBIAN_FRONTEND: 'noninteractive' };
  const options = { env, stdio: 'ignore' } as const;
  spawnSync('apt-get', ['update', '-qq'], options);
  spawnSync('apt-get', ['install', '-y', '-qq', '--no-install-recommends', ...debian.split(' ')], options);
  return has(program);
}

/** Runs a program to its end. `status`: its exit code; `null` = it was not started or was killed. */
export function run(
  program: string,
  args: readonly string[],
  options: { readonly input?: string; readonly cwd?: string } = {},
): { readonly status: number | null; readonly output: string } {
  const { status, stdout, stderr, error } = spawnSync(program, args, { encoding: 'utf8', ...options });
  return { status, output: `${stdout ?? ''}${stderr ?? ''}${error?.message ?? ''}`.trim() };
}

/** Asks until it is true. @throws after the limit, with what `detail` says */
export async function until(
  what: string,
  limitMs: number,
  holds: () => Promise<boolean>,
  detail: () => string | Promise<string> = () => '',
): Promise<void> {
  const end = Date.now() + limitMs;
  while (!(await holds())) {
    if (Date.now() > end) {
      const said = await Promise.resolve(detail()).catch(() => '');
      throw new Error(`not within ${limitMs / 1_000} s: ${what}\n${said}`);
    }
    await sleep(100);
  }
}

/** Whether the address answers 200 now. */
export async function answers(url: string): Promise<boolean> {
  const response = await fetch(url).catch(() => null);
  await response?.arrayBuffer();
  return response?.ok === true;
}

export interface Started {
  readonly child: ChildProcess;
  /** How it ended. */
  readonly ended: Promise<{ readonly code: number | null; readonly signal: string | null }>;
  /** The end of what it wrote. */
  said(): string;
  /** Ends it by SIGTERM, and by SIGKILL after the limit. Milliseconds. */
  stop(limitMs?: number): Promise<{ readonly code: number | null; readonly signal: string | null }>;
}

/** Starts a program that runs until it is stopped. */
export function start(program: string, args: readonly string[], options: SpawnOptions = {}): Started {
  const child = spawn(program, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream?.on('data', (chunk: Buffer) => (text = (text + chunk.toString()).slice(-4_000)));
  const ended = new Promise<{ code: number | null; signal: string | null }>((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal }));
    child.once('error', (error) => resolve({ code: -1, signal: String(error) }));
  });
  return {
    child,
    ended,
    said: () => text,
    async stop(limitMs = 10_000) {
      child.kill('SIGTERM');
      const late = sleep(limitMs, 'late' as const, { ref: false });
      if ((await Promise.race([ended, late])) === 'late') child.kill('SIGKILL');
      return ended;
    },
  };
}
