/** Gateways in front of a simulator that enforces a described dialect, and what both must show at the end. */
import { expect } from '@jest/globals';
import { stringify } from 'yaml';
import { createKey } from '../../src/cli/keys.ts';
import type { Clock } from '../../src/clock.ts';
import type { Service } from '../../src/service.ts';
import {
  createDialectSimulator,
  type DialectOptions,
  type DialectSimulator,
} from '../../src/simulators/dialect.ts';
import { serviceOf } from './gateway.ts';

export interface SpokenOptions extends Omit<DialectOptions, 'clock'> {
  /** What the gateway's configuration describes; default: what the simulator enforces. */
  readonly described?: unknown;
  /** For the gateway and the simulator. */
  readonly clock?: Clock;
  readonly replicas?: number;
  /** URL of Redis; left out, the limiter is embedded. */
  readonly redis?: string;
  /** Further keys of the upstream. */
  readonly more?: Readonly<Record<string, unknown>>;
}

export interface SpokenReply {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly tookMs: number;
}

export interface SpokenWorld {
  readonly simulator: DialectSimulator;
  readonly services: readonly Service[];
  readonly logs: readonly string[];
  /** One call, of the n-th replica in turn. */
  call(path?: string, headers?: Readonly<Record<string, string>>): Promise<SpokenReply>;
  /** So many calls at once; their statuses. */
  burst(calls: number, path?: string): Promise<readonly number[]>;
  /** Calls that the upstream refused for want of quota. */
  throttles(): number;
  close(): Promise<void>;
}

export async function spokenWorld(options: SpokenOptions): Promise<SpokenWorld> {
  const { described = options.speaks, clock, replicas = 1, redis, more = {}, ...simulated } = options;
  const clocks = clock === undefined ? {} : { clock };
  const simulator = createDialectSimulator({ ...simulated, ...clocks });
  const { url } = await simulator.listen();
  const { key, hash } = createKey();
  const yaml = stringify({
    server: { host: '127.0.0.1', adminHost: '127.0.0.1', port: 0, adminPort: 0, drainDelaySeconds: 0 },
    privacy: { labelKey: 'a label key for tests only' },
    ...(redis === undefined ? {} : { redis: { url: redis } }),
    upstreams: {
      api: {
        origins: [url],
        allowPrivateAddresses: true,
        credential: 'Bearer upstream-token',
        maxWaitSeconds: 600,
        speaks: described,
        ...more,
      },
    },
    workspaces: { acme: { keys: [hash] } },
  });
  const logs: string[] = [];
  const services: Service[] = [];
  for (let replica = 0; replica < replicas; replica++) services.push(await serviceOf(yaml, logs, clocks));
  let next = 0;
  const call: SpokenWorld['call'] = async (path = '/v1/things', headers = {}) => {
    const port = services[next++ % services.length]?.dataAddress.port ?? 0;
    const startedAt = performance.now();
    const answer = await fetch(`http://127.0.0.1:${port}/via/api${path}`, {
      headers: { 'sluice-key': key, ...headers },
    });
    const text = await answer.text();
    return { status: answer.status, headers: answer.headers, text, tookMs: performance.now() - startedAt };
  };
  return {
    simulator,
    services,
    logs,
    call,
    async burst(calls, path) {
      const replies = await Promise.all(Array.from({ length: calls }, () => call(path)));
      return replies.map(({ status }) => status);
    },
    throttles: () => simulator.log.filter(({ kind }) => kind === 'throttled').length,
    async close() {
      await Promise.all(services.map((service) => service.close()));
      await simulator.close();
      expect(simulator.failures).toEqual([]);
      expect(logs.filter((line) => line.includes('"level":"error"'))).toEqual([]);
    },
  };
}
