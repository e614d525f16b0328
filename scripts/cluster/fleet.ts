/**
 * The replicas of the verification as processes, and the configuration file that they share.
 *
 * Owns: starting, signalling by process id, reloads. Does not own: what runs beside them (`processes.ts`).
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { systemClock } from '../../src/clock.ts';
import type { FleetConfig } from '../../test/support/redis-fleet.ts';
import { child, firstLine, startOneAtATime, newFolder, parsed, until } from './processes.ts';

export interface Gateway {
  readonly url: string;
  readonly adminUrl: string;
  readonly pid: number;
  readonly lines: string[];
  isAlive(): boolean;
  signal(name: NodeJS.Signals): void;
  ended(): Promise<void>;
}

export interface Fleet {
  readonly gateways: readonly Gateway[];
  readonly keys: FleetConfig['keys'];
  /** Sum of a counter (`name` or `name{labels}`) over the replicas that answer. */
  metric(name: string): Promise<number>;
  /** The values of a metric, one per series and replica that answers. */
  metrics(name: string): Promise<readonly number[]>;
  /**
   * Writes this configuration to the file of the replicas and waits until each of them has logged the reload. Resolves
   * with the monotonic time of writing, milliseconds. Throws when a replica has not reloaded within ten seconds.
   */
  reload(config: FleetConfig): Promise<number>;
  stop(): Promise<void>;
}

const reloadLimitMs = 10_000;

/** So many replicas of one configuration; the promise ends when all of them serve. */
export async function startFleet(replicas: number, config: FleetConfig): Promise<Fleet> {
  const path = join(await newFolder(), 'sluice.yaml');
  await writeFile(path, config.yaml());
  const gateways = await Promise.all(
    Array.from({ length: replicas }, () => startOneAtATime(() => startGateway(path))),
  );
  const metrics = (name: string): Promise<number[]> => readMetrics(gateways, name);
  return {
    gateways,
    keys: config.keys,
    metrics,
    metric: async (name) => (await metrics(name)).reduce((sum, value) => sum + value, 0),
    async reload(changed) {
      const before = gateways.map(reloads);
      const writtenAt = systemClock.monotonic();
      await writeFile(path, changed.yaml());
      const done = async (): Promise<boolean> =>
        gateways.every((gateway, n) => reloads(gateway) > (before[n] ?? 0));
      if (!(await until(done, reloadLimitMs))) throw new Error('a replica did not reload its configuration');
      return writtenAt;
    },
    async stop() {
      for (const gateway of gateways) gateway.signal('SIGCONT');
      for (const gateway of gateways) gateway.signal('SIGKILL');
      await Promise.all(gateways.map((gateway) => gateway.ended()));
    },
  };
}

const reloads = ({ lines }: Gateway): number =>
  lines.filter((line) => parsed(line)['message'] === 'configuration reloaded').length;

/** What a replica's `/metrics` says. A kept connection may be closed in the moment in which it is used: then it is asked again. */
export async function metricsOf(adminUrl: string): Promise<string> {
  const ask = async (): Promise<string> => (await fetch(`${adminUrl}/metrics`)).text();
  return ask().catch(ask);
}

/** The values of a metric, one per series of those of these replicas that answer. */
export async function readMetrics(gateways: readonly Gateway[], name: string): Promise<number[]> {
  const texts = await Promise.all(
    gateways.filter((gateway) => gateway.isAlive()).map(({ adminUrl }) => metricsOf(adminUrl)),
  );
  return texts
    .flatMap((text) => text.split('\n'))
    .map((line) => line.split(' '))
    .filter(([series = '']) => series === name || series.startsWith(`${name}{`))
    .map(([, value]) => Number(value));
}

/** One replica of the configuration in this file; the promise ends when it serves. */
export async function startGateway(path: string): Promise<Gateway> {
  const process_ = child(process.execPath, ['src/main.ts', 'serve', '--config', path]);
  const ended = new Promise<void>((resolve) => process_.once('exit', () => resolve()));
  const lines: string[] = [];
  const { port, adminPort } = await firstLine(process_, lines, (line) => {
    const { message, port: at, adminPort: admin } = parsed(line);
    return message === 'serving' ? { port: Number(at), adminPort: Number(admin) } : null;
  });
  if (process_.pid === undefined) throw new Error('a replica has no process');
  return {
    url: `http://127.0.0.1:${port}`,
    adminUrl: `http://127.0.0.1:${adminPort}`,
    pid: process_.pid,
    lines,
    isAlive: () => process_.exitCode === null && process_.signalCode === null,
    signal: (name) => void process_.kill(name),
    ended: () => ended,
  };
}
