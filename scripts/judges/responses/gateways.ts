/** The gateway whose responses are recorded, and the upstreams behind it. */
import { createKey } from '../../../src/cli/keys.ts';
import { startFleet, type Gateway } from '../../cluster/fleet.ts';
import { startUpstreams } from './upstreams.ts';

export interface Gateways {
  readonly gateway: Gateway;
  /** The key of a workspace that may call every upstream, and of one that may call `plain` only. */
  readonly key: string;
  readonly narrowKey: string;
  /** Origin of the upstream that says what it is asked for. */
  readonly origin: string;
  stop(): Promise<void>;
}

export async function startGateways(): Promise<Gateways> {
  const upstreams = await startUpstreams();
  const [wide, narrow] = [createKey(), createKey()];
  const yaml = [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, maxBodyBytes: 100000 }',
    'log: { level: info, sampleSuccesses: 0 }',
    `upstreams:\n${upstreams.yaml}`,
    `workspaces:\n  wide:\n    keys: ["${wide.hash}"]\n  narrow:\n    keys: ["${narrow.hash}"]\n    upstreams: [plain]`,
  ].join('\n');
  const fleet = await startFleet(1, { keys: {}, yaml: () => yaml });
  const [gateway] = fleet.gateways;
  if (gateway === undefined) throw new Error('no gateway');
  // What is left of a day and of a minute.
  for (const upstream of ['daily', 'narrow'])
    await fetch(`${gateway.url}/via/${upstream}/x`, { headers: { 'sluice-key': wide.key } });
  return {
    gateway,
    key: wide.key,
    narrowKey: narrow.key,
    origin: upstreams.origin,
    async stop() {
      await fleet.stop();
      upstreams.stop();
    },
  };
}
