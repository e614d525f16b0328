/** Replicas as processes, and the configuration file that they share. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { firstLine, inTurn, newFolder, parsed, start, type Started } from './processes.ts';

export interface Gateway extends Started {
  readonly url: string;
  readonly adminUrl: string;
  readonly wasKilled: boolean;
}

/** The text of a configuration on the loopback address; each part is one line of YAML. */
export const yamlOf = (parts: {
  /** Of the section `server`, beside addresses. */
  readonly server?: readonly string[];
  /** Of the section `redis`, without its braces; left out, the limiter is embedded. */
  readonly redis?: string | undefined;
  readonly upstreams: readonly string[];
  readonly workspaces: readonly string[];
}): string =>
  [
    `server: { ${['host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0', ...(parts.server ?? [])].join(', ')} }`,
    ...(parts.redis === undefined ? [] : [`redis: { ${parts.redis} }`]),
    'privacy: { labelKey: "a label key of verifications" }',
    'log: { level: info, sampleSuccesses: 0 }',
    'upstreams:',
    ...parts.upstreams.map((line) => `  ${line}`),
    'workspaces:',
    ...parts.workspaces.map((line) => `  ${line}`),
  ].join('\n');

/** One replica of the configuration in this file; the promise ends when it serves. */
export async function startGateway(path: string): Promise<Gateway> {
  const started = start(process.execPath, ['src/main.ts', 'serve', '--config', path]);
  const { port, adminPort } = await firstLine(started, (line) => {
    const { message, port: at, adminPort: admin } = parsed(line);
    return message === 'serving' ? { port: Number(at), adminPort: Number(admin) } : null;
  });
  let wasKilled = false;
  return {
    ...started,
    url: `http://127.0.0.1:${port}`,
    adminUrl: `http://127.0.0.1:${adminPort}`,
    signal(name) {
      wasKilled ||= name === 'SIGKILL';
      started.signal(name);
    },
    get wasKilled() {
      return wasKilled;
    },
  };
}

/** What a replica's `/metrics` says. A kept connection may be closed in the moment in which it is used: then it is asked again. */
export async function metricsOf({ adminUrl }: Gateway): Promise<string> {
  const ask = async (): Promise<string> => (await fetch(`${adminUrl}/metrics`)).text();
  return ask().catch(ask);
}

/** Replicas of one configuration. */
export class Fleet {
  readonly #path: string;
  /** All that were started, in that order. */
  readonly gateways: Gateway[] = [];

  constructor(path: string) {
    this.#path = path;
  }

  async add(): Promise<void> {
    this.gateways.push(await inTurn(() => startGateway(this.#path)));
  }

  /** The values of a metric (`name` or `name{labels}`), one per series and replica of these that lives. */
  async metrics(name: string, of: readonly Gateway[] = this.gateways): Promise<readonly number[]> {
    const texts = await Promise.all(of.filter((gateway) => gateway.isAlive()).map(metricsOf));
    return texts
      .flatMap((text) => text.split('\n'))
      .map((line) => line.split(' '))
      .filter(([series = '']) => series === name || series.startsWith(`${name}{`))
      .map(([, value]) => Number(value));
  }

  /** Sum of a counter over the replicas that live. */
  async metric(name: string): Promise<number> {
    return (await this.metrics(name)).reduce((sum, value) => sum + value, 0);
  }

  /** Longest delay of an event loop since the last reading, of all or these. Milliseconds. */
  async lagMs(of: readonly Gateway[] = this.gateways): Promise<number> {
    return 1_000 * Math.max(0, ...(await this.metrics('nodejs_eventloop_lag_max_seconds', of)));
  }

  async stop(): Promise<void> {
    for (const gateway of this.gateways) gateway.signal('SIGKILL');
    await Promise.all(this.gateways.map(({ ended }) => ended));
  }
}

/** So many replicas of this configuration; the promise ends when all of them serve. */
export async function startFleet(replicas: number, yaml: string): Promise<Fleet> {
  const path = join(await newFolder(), 'sluice.yaml');
  await writeFile(path, yaml);
  const fleet = new Fleet(path);
  await Promise.all(Array.from({ length: replicas }, () => fleet.add()));
  return fleet;
}
