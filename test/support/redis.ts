/**
 * A real redis-server of a test's own: private port on 127.0.0.1, private directory, nothing saved. No mock stands in
 * for it: when there is no server and none can be installed, the test fails and says so.
 */
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { access, mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

export interface RedisServer {
  readonly port: number;
  readonly pid: number;
  readonly url: string;
  /** Ends this very process and removes its directory. */
  stop(): Promise<void>;
}

/** Further arguments come after the private ones, as on the command line. */
export async function startRedis(
  options: { readonly port?: number; readonly args?: readonly string[] } = {},
): Promise<RedisServer> {
  const binary = await redisBinary();
  let failure = new Error('redis-server did not start');
  for (let attempt = 0; attempt < 5; attempt += 1) {
    const port = options.port ?? (await freePort());
    const directory = await mkdtemp(join(tmpdir(), 'sluice-redis-'));
    const private_ = ['--port', String(port), '--bind', '127.0.0.1', '--dir', directory];
    const forgetful = ['--save', '', '--appendonly', 'no', '--maxmemory-policy', 'noeviction'];
    const child = spawn(binary, [...private_, ...forgetful, ...(options.args ?? [])], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
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

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      const port = typeof address === 'object' && address !== null ? address.port : 0;
      probe.close(() => resolve(port));
    });
  });
}

/** Path of a redis-server: on PATH, or installed by the system's package manager when that is allowed. */
export async function redisBinary(): Promise<string> {
  const found = await onPath('redis-server');
  if (found !== null) return found;
  const aptGet = await onPath('apt-get');
  if (aptGet !== null && process.getuid?.() === 0) {
    const quiet = { env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }, timeout: 120_000 };
    await run(aptGet, ['update', '-q'], quiet);
    await run(aptGet, ['install', '-q', '-y', '--no-install-recommends', 'redis-server'], quiet);
    const installed = await onPath('redis-server');
    if (installed !== null) return installed;
  }
  throw new Error('these tests need redis-server on PATH (for example: apt-get install redis-server)');
}

async function onPath(name: string): Promise<string | null> {
  for (const directory of (process.env['PATH'] ?? '').split(delimiter)) {
    const path = join(directory, name);
    if (
      await access(path).then(
        () => true,
        () => false,
      )
    )
      return path;
  }
  return null;
}
