/** Gateways in front of simulators that enforce described dialects, and what all must show at the end. */
import { expect } from '@jest/globals';
import { stringify } from 'yaml';
import { createKey } from '../../src/cli/keys.ts';
import { type DialectOptions, DialectSimulator } from '../../simulators/dialect.ts';
import { serviceOf } from './gateway.ts';

export interface SpokenUpstream extends Omit<DialectOptions, 'clock'> {
  /** What the gateway's configuration describes; default: what the simulator enforces. */
  readonly described?: unknown;
}

export type SpokenFleet = Awaited<ReturnType<typeof spokenFleet>>;

export async function spokenFleet(upstreams: Readonly<Record<string, SpokenUpstream>>) {
  const simulators = new Map<string, DialectSimulator>();
  const written: Record<string, unknown> = {};
  for (const [name, { described, ...simulated }] of Object.entries(upstreams)) {
    const simulator = new DialectSimulator(simulated);
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
    upstreams: written,
    workspaces: { acme: { keys: [hash] } },
  });
  const logs: string[] = [];
  const service = await serviceOf(yaml, logs);
  return {
    service,
    /** One upstream behind the gateway. */
    upstream: (name: string) => {
      const simulator = simulators.get(name);
      if (simulator === undefined) throw new Error(`no upstream ${name}`);
      return spoken(simulator, `http://127.0.0.1:${service.dataAddress.port}/via/${name}`, key);
    },
    async close() {
      await service.close();
      for (const simulator of simulators.values()) {
        await simulator.close();
        expect(simulator.failures).toEqual([]);
      }
      expect(logs.filter((line) => line.includes('"level":"error"'))).toEqual([]);
    },
  };
}

function spoken(simulator: DialectSimulator, url: string, key: string) {
  const call = async (path = '/v1/things', headers: Readonly<Record<string, string>> = {}) => {
    const response = await fetch(url + path, { headers: { 'sluice-key': key, ...headers } });
    return { status: response.status, headers: response.headers, text: await response.text() };
  };
  /** So many calls at once; their statuses. */
  const burst = async (count: number): Promise<readonly number[]> =>
    (await Promise.all(Array.from({ length: count }, () => call()))).map(({ status }) => status);
  /** Calls that the upstream refused for want of quota. */
  const throttles = (): number => simulator.log.filter(({ kind }) => kind === 'throttled').length;
  return { simulator, call, burst, throttles };
}
