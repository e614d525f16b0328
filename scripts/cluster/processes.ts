/**
 * Processes of the cluster verification: replicas, simulators and Redis servers, each a child of this process on ports
 * of the system's choice. Owns: starting, signalling by process id, ending every one of them.
 */
import { spawn, execFile, type ChildProcess } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import type { LogEntry } from '../../src/simulators/log.ts';
import { redisBinary, startRedis, type RedisServer } from '../../test/support/redis.ts';
import { fleetConfig, pause, type FleetConfig, type FleetOptions } from '../../test/support/redis-fleet.ts';

const run = promisify(execFile);
const root = new URL('../../', import.meta.url).pathname;
const children = new Set<ChildProcess>();
const servers = new Set<RedisServer>();
const folders = new Set<string>();

export interface Gateway {
  readonly url: string;
  readonly adminUrl: string;
  readonly lines: string[];
  isAlive(): boolean;
  signal(name: NodeJS.Signals): void;
  ended(): Promise<void>;
}

export interface Simulator {
  readonly url: string;
  log(): Promise<readonly LogEntry[]>;
  /** The log begins anew; buckets stay as they are. */
  forget(): Promise<void>;
  stop(): void;
}

export interface Fleet {
  readonly gateways: readonly Gateway[];
  readonly keys: FleetConfig['keys'];
  /** Sum of a counter (`name` or `name{labels}`) over the replicas that answer. */
  metric(name: string): Promise<number>;
  /** The values of a metric, one per series and replica that answers. */
  metrics(name: string): Promise<readonly number[]>;
  stop(): Promise<void>;
}

/** A child of this process, killed at the end at the latest. */
export function child(command: string, args: readonly string[]): ChildProcess {
  const started = spawn(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
  children.add(started);
  started.once('exit', () => children.delete(started));
  return started;
}

/** Resolves with the first line of standard output that `read` takes something from. */
function firstLine<T>(from: ChildProcess, lines: string[], read: (line: string) => T | null): Promise<T> {
  return new Promise((resolve, reject) => {
    if (from.stdout === null || from.stderr === null) return reject(new Error('no output'));
    void pause(20_000).then(() => reject(new Error(`said nothing of use:\n${lines.slice(-20).join('\n')}`)));
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

const parsed = (line: string): Record<string, unknown> => {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === 'object' && value !== null ? Object.fromEntries(Object.entries(value)) : {};
  } catch {
    return {};
  }
};

export async function startSimulator(
  kind: 'language-model' | 'commerce',
  config: Readonly<Record<string, unknown>>,
): Promise<Simulator> {
  const process_ = child(process.execPath, [
    'src/simulators/main.ts',
    kind,
    '--config',
    JSON.stringify(config),
  ]);
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
    stop: () => void process_.kill('SIGKILL'),
  };
}

export async function startFleet(replicas: number, options: FleetOptions): Promise<Fleet> {
  const config = fleetConfig(options);
  const folder = await mkdtemp(join(tmpdir(), 'sluice-cluster-'));
  folders.add(folder);
  const path = join(folder, 'sluice.yaml');
  await writeFile(path, config.yaml());
  const gateways = await Promise.all(Array.from({ length: replicas }, () => startGateway(path)));
  const metrics = async (name: string): Promise<number[]> => {
    const texts = await Promise.all(
      gateways
        .filter((gateway) => gateway.isAlive())
        .map(async ({ adminUrl }) => (await fetch(`${adminUrl}/metrics`)).text()),
    );
    return texts
      .flatMap((text) => text.split('\n'))
      .map((line) => line.split(' '))
      .filter(([series = '']) => series === name || series.startsWith(`${name}{`))
      .map(([, value]) => Number(value));
  };
  return {
    gateways,
    keys: config.keys,
    metrics,
    metric: async (name) => (await metrics(name)).reduce((sum, value) => sum + value, 0),
    async stop() {
      for (const gateway of gateways) gateway.signal('SIGCONT');
      for (const gateway of gateways) gateway.signal('SIGKILL');
      await Promise.all(gateways.map((gateway) => gateway.ended()));
    },
  };
}

async function startGateway(path: string): Promise<Gateway> {
  const process_ = child(process.execPath, ['src/main.ts', 'serve', '--config', path]);
  const ended = new Promise<void>((resolve) => process_.once('exit', () => resolve()));
  const lines: string[] = [];
  const { port, adminPort } = await firstLine(process_, lines, (line) => {
    const { message, port: at, adminPort: admin } = parsed(line);
    return message === 'serving' ? { port: Number(at), adminPort: Number(admin) } : null;
  });
  return {
    url: `http://127.0.0.1:${port}`,
    adminUrl: `http://127.0.0.1:${adminPort}`,
    lines,
    isAlive: () => process_.exitCode === null && process_.signalCode === null,
    signal: (name) => void process_.kill(name),
    ended: () => ended,
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
  const port = await freePort();
  const folder = await mkdtemp(join(tmpdir(), 'sluice-sentinel-'));
  folders.add(folder);
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
  return port;
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
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
