/** Programs that verifications start, on ports of the system's choice and in folders of their own. `endAll` leaves nothing behind. */
import { spawn, spawnSync } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pause } from '../../test/support/redis-fleet.ts';

export const root = new URL('../../', import.meta.url).pathname;

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

export interface Started {
  /** What it has written, line by line. */
  readonly lines: readonly string[];
  readonly pid: number;
  readonly ended: Promise<{ readonly code: number | null; readonly signal: string | null }>;
  isAlive(): boolean;
  signal(name: NodeJS.Signals): void;
  /** The end of what it has written. */
  said(): string;
  /** Ends it by SIGTERM, and by SIGKILL after the limit. Milliseconds. */
  stop(limitMs?: number): Started['ended'];
}

const running = new Set<Started>();
const folders = new Set<string>();

/** Starts a program that runs until it is stopped, at the end of this process at the latest. */
export function start(
  program: string,
  args: readonly string[],
  options: { readonly cwd?: string; readonly env?: NodeJS.ProcessEnv } = {},
): Started {
  const child = spawn(program, args, { cwd: root, ...options, stdio: ['ignore', 'pipe', 'pipe'] });
  const lines: string[] = [];
  for (const input of [child.stdout, child.stderr])
    createInterface({ input }).on('line', (line) => lines.push(line));
  const ended = new Promise<{ code: number | null; signal: string | null }>((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal }));
    child.once('error', (error) => resolve({ code: -1, signal: String(error) }));
  });
  const started: Started = {
    lines,
    pid: child.pid ?? -1,
    ended,
    isAlive: () => child.pid !== undefined && child.exitCode === null && child.signalCode === null,
    signal: (name) => void child.kill(name),
    said: () => lines.slice(-40).join('\n'),
    async stop(limitMs = 10_000) {
      child.kill('SIGTERM');
      const late = setTimeout(() => child.kill('SIGKILL'), limitMs);
      return ended.finally(() => clearTimeout(late));
    },
  };
  running.add(started);
  void ended.then(() => running.delete(started));
  return started;
}

/** An empty folder of this run, removed at the end. */
export async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-verification-'));
  folders.add(folder);
  return folder;
}

/** Polls until it holds, for at most `limitMs`; what fails does not hold. */
export async function eventually(holds: () => boolean | Promise<boolean>, limitMs: number): Promise<boolean> {
  const endsAt = Date.now() + limitMs;
  for (;;) {
    if (await Promise.resolve(holds()).catch(() => false)) return true;
    if (Date.now() > endsAt) return false;
    await pause(50);
  }
}

/** As {@link eventually}. @throws after the limit, with what `detail` says */
export async function until(
  what: string,
  limitMs: number,
  holds: () => boolean | Promise<boolean>,
  detail: () => string | Promise<string> = () => '',
): Promise<void> {
  if (await eventually(holds, limitMs)) return;
  const said = await Promise.resolve(detail()).catch(() => '');
  throw new Error(`not within ${limitMs / 1_000} s: ${what}\n${said}`);
}

/** For what never starts: on a machine that is busy with other work a start can take minutes. */
const startLimitMs = 300_000;

/** Resolves with what `read` takes from the first line from which it takes something. @throws when the program ends before */
export async function firstLine<T>(of: Started, read: (line: string) => T | null | undefined): Promise<T> {
  let found: T | null = null;
  let at = 0;
  const isOver = (): boolean => {
    const wasAlive = of.isAlive();
    while (found === null && at < of.lines.length) found = read(of.lines[at++] ?? '') ?? null;
    return found !== null || !wasAlive;
  };
  await until('it says something of use', startLimitMs, isOver, of.said);
  if (found === null) throw new Error(`it ended:\n${of.said()}`);
  return found;
}

/** The line as a JSON object; an empty one when it is none. */
export function parsed(line: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === 'object' && value !== null ? Object.fromEntries(Object.entries(value)) : {};
  } catch {
    return {};
  }
}

let lastStart: Promise<unknown> = Promise.resolve();

/** Runs `begin` when those before it have started: together they would keep one another and other rows waiting. */
export function inTurn<T>(begin: () => Promise<T>): Promise<T> {
  const started = lastStart.then(begin);
  lastStart = started.catch(() => null);
  return started;
}

/** Whether the address answers 200 now. */
export async function answers(url: string): Promise<boolean> {
  const response = await fetch(url).catch(() => null);
  await response?.arrayBuffer();
  return response?.ok === true;
}

const ends = new Set<() => Promise<unknown>>();

/** Has this done by {@link endAll} as well. */
export const atEnd = (end: () => Promise<unknown>): unknown => ends.add(end);

/** Ends whatever is left. */
export async function endAll(): Promise<void> {
  await Promise.all([...ends].map((end) => end()));
  for (const one of running) one.signal('SIGKILL');
  await Promise.all([...running].map(({ ended }) => ended));
  await Promise.all([...folders].map((folder) => rm(folder, { recursive: true, force: true })));
}
