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

export type SpokenFleet = Awaited<ReturnType<typeof spokenFleet>>;
export type SpokenOptions = SpokenUpstream & SpokenReplicas;
export type SpokenWorld = Awaited<ReturnType<typeof spokenWorld>>;

/** One upstream, called `api`. */
export async function spokenWorld(options: SpokenOptions) {
  const { clock: _clock, replicas: _replicas, redis: _redis, ...upstream } = options;
  const { services, logs, upstream: named, close } = await spokenFleet({ api: upstream }, options);
  return { services, logs, close, ...named('api') };
}

export async function spokenFleet(
  upstreams: Readonly<Record<string, SpokenUpstream>>,
  { clock, replicas = 1, redis }: SpokenReplicas,
) {
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
    /** One upstream behind all replicas. */
    upstream: (name: string) => {
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

function spoken(simulator: DialectSimulator, prefix: string, services: readonly Service[], key: string) {
  let next = 0;
  /** One call, of the n-th replica in turn. */
  const call = async (path = '/v1/things', headers: Readonly<Record<string, string>> = {}) => {
    const port = services[next++ % services.length]?.dataAddress.port ?? 0;
    const response = await fetch(`http://127.0.0.1:${port}${prefix}${path}`, {
      headers: { 'sluice-key': key, ...headers },
    });
    return { status: response.status, headers: response.headers, text: await response.text() };
  };
  /** So many calls at once. */
  const calls = (count: number, path?: string) =>
    Promise.all(Array.from({ length: count }, () => call(path)));
  return {
    simulator,
    call,
    calls,
    burst: async (count: number, path?: string) => (await calls(count, path)).map(({ status }) => status),
    /** Calls that the upstream refused for want of quota. */
    throttles: () => simulator.log.filter(({ kind }) => kind === 'throttled').length,
  };
}
