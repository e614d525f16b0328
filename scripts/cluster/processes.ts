/**
 * Processes of the cluster verification: simulators and Redis servers, each a child of this process on ports of the
 * system's choice. Owns: starting, and ending every child of this process (replicas, which `fleet.ts` starts, included).
 */
import { spawn, execFile, type ChildProcess } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import type { LogEntry } from '../../simulators/log.ts';
import { redisBinary, startRedis, type RedisServer } from '../../test/support/redis.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { freePort } from '../../test/support/free-port.ts';

const run = promisify(execFile);
const root = new URL('../../', import.meta.url).pathname;
const children = new Set<ChildProcess>();
const servers = new Set<RedisServer>();
const folders = new Set<string>();

/** An empty folder of this run, removed at the end. */
export async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-cluster-'));
  folders.add(folder);
  return folder;
}

export interface Simulator {
  readonly url: string;
  log(): Promise<readonly LogEntry[]>;
  /** The log begins anew; buckets stay as they are. */
  forget(): Promise<void>;
  /** Changes a part of its options, or does what its control knows beside them (`drain`, `close`). */
  configure(part: Readonly<Record<string, unknown>>): Promise<void>;
  stop(): void;
}

/** A child of this process, killed at the end at the latest. */
export function child(command: string, args: readonly string[]): ChildProcess {
  const started = spawn(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
  children.add(started);
  started.once('exit', () => children.delete(started));
  return started;
}

/** Processes that start at the same time, over all rows: more of them would keep one another and other rows waiting. */
const startingAtOnce = 2;
/** For what never starts: on a machine that is busy with other work a start can take minutes. */
const startLimitMs = 300_000;
let starting = 0;
const waitingToStart: (() => void)[] = [];

/** Runs `start` when fewer than {@link startingAtOnce} others start. */
export async function startOneAtATime<T>(start: () => Promise<T>): Promise<T> {
  if (starting >= startingAtOnce) await new Promise<void>((resolve) => waitingToStart.push(resolve));
  else starting += 1;
  try {
    return await start();
  } finally {
    const next = waitingToStart.shift();
    if (next === undefined) starting -= 1;
    else next();
  }
}

/** Resolves with the first line of standard output that `read` takes something from. */
export function firstLine<T>(
  from: ChildProcess,
  lines: string[],
  read: (line: string) => T | null,
): Promise<T> {
  return new Promise((resolve, reject) => {
    if (from.stdout === null || from.stderr === null) return reject(new Error('no output'));
    const limitInWords = `${startLimitMs / 1_000} s`;
    void pause(startLimitMs).then(() =>
      reject(new Error(`said nothing of use for ${limitInWords}:\n${lines.slice(-20).join('\n')}`)),
    );
    createInterface({ input: from.stderr }).on('line', (line) => lines.push(line));
    createInterface({ input: from.stdout }).on('line', (line) => {
      lines.push(line);
      const found = read(line);
      if (found !== null) resolve(found);
    });
    from.once('exit', (code) =>
      reject(new Error(`ended with ${String(code)}:\n${lines.slice(-20).join('\n')}`)),
    );
  });
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

export const startSimulator = (
  kind: 'language-model' | 'commerce',
  config: Readonly<Record<string, unknown>>,
): Promise<Simulator> => startOneAtATime(() => startSimulatorNow(kind, config));

async function startSimulatorNow(
  kind: 'language-model' | 'commerce',
  config: Readonly<Record<string, unknown>>,
): Promise<Simulator> {
  const process_ = child(process.execPath, ['simulators/main.ts', kind, '--config', JSON.stringify(config)]);
  const url = await firstLine(process_, [], (line) => {
    const { url: at } = parsed(line);
    return typeof at === 'string' ? at : null;
  });
  let since = 0;
  // The simulator's own control route: its log, as it is.
  const log = async () => (await (await fetch(`${url}/__sim/log?since=${since}`)).json()) as LogEntry[];
  return {
    url,
    log,
    async forget() {
      since = Math.max(since, ...(await log()).map(({ seq }) => seq));
    },
    async configure(part) {
      const response = await fetch(`${url}/__sim/config`, { method: 'POST', body: JSON.stringify(part) });
      if (!response.ok) throw new Error(`the simulator refused: ${await response.text()}`);
    },
    stop: () => void process_.kill('SIGKILL'),
  };
}

export async function startServer(options: Parameters<typeof startRedis>[0] = {}): Promise<RedisServer> {
  const server = await startRedis(options);
  servers.add(server);
  return server;
}

/** Kills a server at once and forgets it. */
export async function stopServer(server: RedisServer): Promise<void> {
  servers.delete(server);
  await server.stop();
}

export const cli = async (port: number, ...args: string[]): Promise<string> =>
  (await run('redis-cli', ['-p', String(port), ...args])).stdout.trim();

/** A Sentinel on its own port that watches `primary` under the name `main`. */
export async function startSentinel(primary: number, quorum: number): Promise<number> {
  // Another process may take the port before the Sentinel does.
  for (let attempt = 1; ; attempt += 1) {
    const port = await freePort();
    const hasStarted = await startSentinelAt(port, primary, quorum).then(
      () => true,
      (failure: unknown) => {
        if (attempt === 8) throw failure;
        return false;
      },
    );
    if (hasStarted) return port;
  }
}

async function startSentinelAt(port: number, primary: number, quorum: number): Promise<void> {
  const folder = await newFolder();
  const file = join(folder, 'sentinel.conf');
  await writeFile(
    file,
    [
      `port ${port}`,
      'bind 127.0.0.1',
      `dir ${folder}`,
      `sentinel monitor main 127.0.0.1 ${primary} ${quorum}`,
      'sentinel down-after-milliseconds main 500',
      'sentinel failover-timeout main 3000',
    ].join('\n'),
  );
  const process_ = child(await redisBinary(), [file, '--sentinel']);
  await firstLine(process_, [], (line) => (/\+monitor/.test(line) ? true : null));
}

/** Polls until it holds, for at most `limitMs`. */
export async function until(what: () => Promise<boolean>, limitMs: number): Promise<boolean> {
  for (let left = limitMs; left > 0; left -= 50) {
    if (await what().catch(() => false)) return true;
    await pause(50);
  }
  return false;
}

/** Ends whatever is left. */
export async function endAll(): Promise<void> {
  for (const one of children) one.kill('SIGKILL');
  await Promise.all([...servers].map(stopServer));
  await Promise.all([...folders].map((folder) => rm(folder, { recursive: true, force: true })));
}
