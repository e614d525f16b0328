/** Gateways in front of simulators that enforce described dialects, and what all must show at the end. */
import { expect } from '@jest/globals';
import { stringify } from 'yaml';
import { createKey } from '../../src/cli/keys.ts';
import type { Clock } from '../../src/clock.ts';
import type { Service } from '../../src/service.ts';
import { type DialectOptions, DialectSimulator } from '../../simulators/dialect.ts';
import { serviceOf } from './gateway.ts';

export interface SpokenUpstream extends Omit<DialectOptions, 'clock'> {
  /** What the gateway's configuration describes; default: what the simulator enforces. */
  readonly described?: unknown;
}

export interface SpokenReplicas {
  /** For the gateways and the simulators. */
  readonly clock?: Clock;
  readonly replicas?: number;
  /** URL of Redis; left out, the limiter is embedded. */
  readonly redis?: string;
}

export interface SpokenReply {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

/** One upstream behind all replicas. */
export interface Spoken {
  readonly simulator: DialectSimulator;
  /** One call, of the n-th replica in turn. */
  call(path?: string, headers?: Readonly<Record<string, string>>): Promise<SpokenReply>;
  /** So many calls at once. */
  calls(count: number, path?: string): Promise<readonly SpokenReply[]>;
  /** So many calls at once; their statuses. */
  burst(calls: number, path?: string): Promise<readonly number[]>;
  /** Calls that the upstream refused for want of quota. */
  throttles(): number;
}

export interface SpokenFleet {
  readonly services: readonly Service[];
  readonly logs: readonly string[];
  /** Of the upstream with this name. */
  upstream(name: string): Spoken;
  close(): Promise<void>;
}

export type SpokenOptions = SpokenUpstream & SpokenReplicas;
export type SpokenWorld = Spoken & Omit<SpokenFleet, 'upstream'>;

/** One upstream, called `api`. */
export async function spokenWorld(options: SpokenOptions): Promise<SpokenWorld> {
  const { clock, replicas, redis, ...upstream } = options;
  const shared = {
    ...(clock === undefined ? {} : { clock }),
    ...(replicas === undefined ? {} : { replicas }),
    ...(redis === undefined ? {} : { redis }),
  };
  const { services, logs, upstream: named, close } = await spokenFleet({ api: upstream }, shared);
  return { services, logs, close, ...named('api') };
}

export async function spokenFleet(
  upstreams: Readonly<Record<string, SpokenUpstream>>,
  { clock, replicas = 1, redis }: SpokenReplicas,
): Promise<SpokenFleet> {
  const clocks = clock === undefined ? {} : { clock };
  const simulators = new Map<string, DialectSimulator>();
  const written: Record<string, unknown> = {};
  for (const [name, { described, ...simulated }] of Object.entries(upstreams)) {
    const simulator = new DialectSimulator({ ...simulated, ...clocks });
    simulators.set(name, simulator);
    written[name] = {
      origins: [(await simulator.listen()).url],
      allowPrivateAddresses: true,
      credential: 'Bearer upstream-token',
      maxWaitSeconds: 600,
      speaks: described ?? simulated.speaks,
    };
  }
  const { key, hash } = createKey();
  const yaml = stringify({
    server: { host: '127.0.0.1', adminHost: '127.0.0.1', port: 0, adminPort: 0, drainDelaySeconds: 0 },
    privacy: { labelKey: 'a label key for tests only' },
    ...(redis === undefined ? {} : { redis: { url: redis, commandTimeoutMs: 2000 } }),
    upstreams: written,
    workspaces: { acme: { keys: [hash] } },
  });
  const logs: string[] = [];
  const services: Service[] = [];
  for (let replica = 0; replica < replicas; replica++) services.push(await serviceOf(yaml, logs, clocks));
  return {
    services,
    logs,
    upstream: (name) => {
      const simulator = simulators.get(name);
      if (simulator === undefined) throw new Error(`no upstream ${name}`);
      return spoken(simulator, `/via/${name}`, services, key);
    },
    async close() {
      await Promise.all(services.map((service) => service.close()));
      for (const simulator of simulators.values()) {
        await simulator.close();
        expect(simulator.failures).toEqual([]);
      }
      expect(logs.filter((line) => line.includes('"level":"error"'))).toEqual([]);
    },
  };
}

function spoken(
  simulator: DialectSimulator,
  prefix: string,
  services: readonly Service[],
  key: string,
): Spoken {
  let next = 0;
  const call: Spoken['call'] = async (path = '/v1/things', headers = {}) => {
    const port = services[next++ % services.length]?.dataAddress.port ?? 0;
    const response = await fetch(`http://127.0.0.1:${port}${prefix}${path}`, {
      headers: { 'sluice-key': key, ...headers },
    });
    return { status: response.status, headers: response.headers, text: await response.text() };
  };
  const calls: Spoken['calls'] = (count, path) =>
    Promise.all(Array.from({ length: count }, () => call(path)));
  return {
    simulator,
    call,
    calls,
    burst: async (count, path) => (await calls(count, path)).map(({ status }) => status),
    throttles: () => simulator.log.filter(({ kind }) => kind === 'throttled').length,
  };
}
