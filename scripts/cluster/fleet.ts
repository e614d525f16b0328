/**
 * The replicas of the verification as processes, and the configuration file that they share.
 *
 * Owns: starting, signalling by process id. Does not own: what runs beside them (`processes.ts`).
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { FleetConfig } from '../../test/support/redis-fleet.ts';
import { child, firstLine, startOneAtATime, newFolder, parsed } from './processes.ts';

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
  stop(): Promise<void>;
}

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
    async stop() {
      for (const gateway of gateways) gateway.signal('SIGCONT');
      for (const gateway of gateways) gateway.signal('SIGKILL');
      await Promise.all(gateways.map((gateway) => gateway.ended()));
    },
  };
}

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
