/** A real redis-server of a test's own: private port and directory, nothing saved. Where there is none, the test fails and says so. */
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { access, constants, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { freePort } from './free-port.ts';

const run = promisify(execFile);

// The set-up of the tests (`redis-installed.mjs`) found no server: a test file that imports this one fails here, once, and not with a
// stack in each of its tests.
const missing = process.env['SLUICE_TESTS_WITHOUT_REDIS'];
if (missing !== undefined) {
  const failure = new Error(missing);
  failure.stack = missing;
  throw failure;
}

export interface RedisServer {
  readonly port: number;
  readonly pid: number;
  readonly url: string;
  /** Ends this very process and removes its directory. */
  stop(): Promise<void>;
}

export interface RedisOptions {
  /** Left out: a free one. */
  readonly port?: number;
  /** A node of a Cluster: its bus port, 10,000 above its port, has to be a free port, too. */
  readonly isClusterNode?: boolean;
  /** Come after the private ones, as on the command line. Made anew for each port that is tried. */
  readonly args?: readonly string[] | ((port: number) => readonly string[]);
}

/** Another process may take a port between the search for a free one and the start: further ports are tried then. */
export async function startRedis({
  port: wanted,
  isClusterNode = false,
  args = [],
}: RedisOptions = {}): Promise<RedisServer> {
  const binary = await redisBinary();
  let failure = new Error('redis-server did not start');
  for (let attempt = 0; attempt < 8; attempt += 1) {
    const port = wanted ?? (await freePort(isClusterNode ? 22_000 : undefined));
    const directory = await mkdtemp(join(tmpdir(), 'sluice-redis-'));
    const private_ = ['--port', String(port), '--bind', '127.0.0.1', '--dir', directory];
    const forgetful = ['--save', '', '--appendonly', 'no', '--maxmemory-policy', 'noeviction'];
    const more = typeof args === 'function' ? args(port) : args;
    const stdio = ['ignore' as const, 'pipe' as const, 'pipe' as const];
    const child = spawn(binary, [...private_, ...forgetful, ...more], { stdio });
    try {
      await ready(child);
      return server(child, port, directory);
    } catch (reason) {
      failure = reason instanceof Error ? reason : failure;
      child.kill('SIGKILL');
      await rm(directory, { recursive: true, force: true });
    }
  }
  throw failure;
}

function server(child: ChildProcess, port: number, directory: string): RedisServer {
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  return {
    port,
    pid: child.pid ?? -1,
    url: `redis://127.0.0.1:${port}`,
    async stop() {
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
      await ended;
      await rm(directory, { recursive: true, force: true });
    },
  };
}

/** Resolves when the server says that it takes connections; rejects with what it printed when it ends before. */
function ready(child: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    let printed = '';
    const listen = (chunk: Buffer): void => {
      printed += chunk.toString();
      if (/Ready to accept connections/.test(printed)) resolve();
    };
    child.stdout?.on('data', listen);
    child.stderr?.on('data', listen);
    child.once('error', reject);
    child.once('exit', () => reject(new Error(`redis-server ended:\n${printed.slice(-2_000)}`)));
  });
}

/**
 * Path of a redis-server: the one that `REDIS_SERVER` names, or the first on PATH. Where there is none, root gets it by apt-get.
 * @throws Error that says how to get one.
 */
export async function redisBinary(): Promise<string> {
  const named = process.env['REDIS_SERVER'];
  if (named !== undefined) {
    if (await isProgram(named)) return named;
    throw new Error(`REDIS_SERVER names ${named}, which is not a program that can be run. ${howToGetOne}`);
  }
  const found = await onPath('redis-server');
  if (found !== null) return found;
  const aptGet = await onPath('apt-get');
  if (aptGet === null || process.getuid?.() !== 0)
    throw new Error(`redis-server is not on PATH. ${howToGetOne}`);
  const quiet = { env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }, timeout: 120_000 };
  try {
    await run(aptGet, ['update', '-q'], quiet);
    await run(aptGet, ['install', '-q', '-y', '--no-install-recommends', 'redis-server'], quiet);
  } catch (reason) {
    throw new Error(`apt-get could not install redis-server: ${String(reason)}\n${howToGetOne}`, {
      cause: reason,
    });
  }
  const installed = await onPath('redis-server');
  if (installed === null) throw new Error(`apt-get put no redis-server on PATH. ${howToGetOne}`);
  return installed;
}

const howToGetOne =
  'Tests that need Redis start a server of their own: install it (Debian, Ubuntu: sudo apt-get install redis-server; macOS: brew ' +
  'install redis), or set REDIS_SERVER to the path of one.';

async function onPath(name: string): Promise<string | null> {
  for (const directory of (process.env['PATH'] ?? '').split(delimiter)) {
    const path = join(directory, name);
    if (await isProgram(path)) return path;
  }
  return null;
}

async function isProgram(path: string): Promise<boolean> {
  try {
    await access(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
