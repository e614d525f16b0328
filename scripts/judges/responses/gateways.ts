/** The gateways whose responses are recorded: an open one, one that takes a single call, and one whose Redis is away. */
import { createKey } from '../../../src/cli/keys.ts';
import { startFleet, type Gateway } from '../../cluster/fleet.ts';
import { startUpstreams } from './upstreams.ts';

export interface Gateways {
  readonly open: Gateway;
  readonly full: Gateway;
  readonly withoutRedis: Gateway;
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
  const yaml = (server: string, more = ''): string =>
    [
      `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, maxBodyBytes: 100000, ${server} }`,
      'privacy: { labelKey: "a label key of the judges" }',
      'log: { level: info, sampleSuccesses: 0 }',
      'idempotency: { maxBytes: 20000 }',
      more,
      `upstreams:\n${upstreams.yaml}`,
      `workspaces:\n  wide:\n    keys: ["${wide.hash}"]\n  narrow:\n    keys: ["${narrow.hash}"]\n    upstreams: [plain]`,
    ].join('\n');
  const start = (text: string) => startFleet(1, { keys: {}, yaml: () => text });
  const fleets = [
    await start(yaml('drainSeconds: 6, drainDelaySeconds: 3')),
    await start(yaml('maxOpenCalls: 1')),
    await start(
      yaml('drainSeconds: 0', 'redis: { url: "redis://127.0.0.1:9", whenDown: deny, startSeconds: 3600 }'),
    ),
  ];
  const [open, full, withoutRedis] = fleets.flatMap(({ gateways }) => gateways);
  if (open === undefined || full === undefined || withoutRedis === undefined) throw new Error('no gateway');
  return {
    open,
    full,
    withoutRedis,
    key: wide.key,
    narrowKey: narrow.key,
    origin: upstreams.origin,
    async stop() {
      for (const fleet of fleets) await fleet.stop();
      upstreams.stop();
    },
  };
}
