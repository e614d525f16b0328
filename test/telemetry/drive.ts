/** Drives telemetry without a gateway: a settable clock, lines kept in memory, calls and workspaces by name. */
import type { DestinationStream } from 'pino';
import type { Call, Caller } from '../../src/call.ts';
import type { Clock, Random } from '../../src/clock.ts';
import type { UpstreamKind, UpstreamSettings, WorkspaceSettings } from '../../src/config/settings.ts';
import type { MetricsFormat } from '../../src/telemetry/exposition.ts';
import { createTelemetry, type TelemetryPorts } from '../../src/telemetry/telemetry.ts';

export interface SettableClock extends Clock {
  advance(ms: number): void;
}

/** A clock that moves only when told; a timer without delay runs at once, others never. */
export function settableClock(wall = Date.UTC(2026, 10, 21, 12)): SettableClock {
  let at = 1_000;
  return {
    now: () => wall + at,
    monotonic: () => at,
    after(delayMs, run) {
      if (delayMs <= 0) queueMicrotask(run);
      return () => {};
    },
    advance(ms) {
      at += ms;
    },
  };
}

export const fixedRandom = (value: number): Random => ({ next: () => value, hex: (n) => 'ab'.repeat(n) });

export function memoryLines(): DestinationStream & { readonly lines: string[] } {
  const lines: string[] = [];
  return { lines, write: (line: string) => void lines.push(line) };
}

export function upstreamNamed(
  name: string,
  kind: UpstreamKind = 'language-model',
  host = 'api.example',
): UpstreamSettings {
  return {
    name,
    kind,
    origins: [{ scheme: 'https', host, wildcard: kind === 'commerce', port: 443 }],
    credential: { field: 'authorization', value: 'Bearer canary-credential' },
    limits: {
      requestsPerMinute: 500,
      requestsPerDay: 10_000,
      tokensPerMinute: null,
      tokensPerDay: null,
      bucket: { capacity: 40, leakPerSecond: 2 },
      cost: null,
      maxInFlight: null,
      maxQueued: 1000,
      maxWaitSeconds: 45,
      maxWaitCeilingSeconds: 600,
      learn: true,
      probe: 1,
    },
    bucketBy: ['credential'],
    allowPrivateAddresses: false,
    propagateTrace: false,
    timeouts: { connectMs: 1000, headMs: 1000, idleMs: 1000, totalMs: 1000 },
    maxSockets: 10,
    caFile: null,
  };
}

export function callerNamed(id: string): Caller {
  const workspace: WorkspaceSettings = {
    id,
    keys: [],
    upstreams: new Set(['lm', 'shop']),
    requestsPerMinute: new Map(),
    requestsPerDay: new Map(),
    weight: 1,
    credentials: new Map(),
  };
  return { workspace, keyField: 'authorization', stillValid: () => true };
}

export function callAt(clock: Clock, given: Partial<Call> = {}): Call {
  return {
    id: '0123456789abcdef0123456789abcdef',
    receivedAt: clock.monotonic(),
    method: 'POST',
    form: 'proxy',
    rawUrl: '/proxy?target=https%3A%2F%2Fcanary-target.example%2Fpath',
    rawFields: ['Authorization', 'Bearer canary-key'],
    source: '203.0.113.7',
    clientGone: new AbortController().signal,
    readBody: () => Promise.resolve({ bytes: Buffer.from('canary-body'), replayable: true }),
    tell: () => {},
    ...given,
  };
}

export const lm = upstreamNamed('lm');
export const shop = upstreamNamed('shop', 'commerce', 'canary-shops.example');

/** Telemetry over two upstreams, with the clock and the lines that drive it. */
export function driven(given: Partial<TelemetryPorts> & { readonly sampleSuccesses?: number } = {}) {
  const clock = settableClock();
  const destination = memoryLines();
  const telemetry = createTelemetry(
    {
      privacy: { labelKey: 'a label key of a test' },
      log: { level: 'info', sampleSuccesses: given.sampleSuccesses ?? 1 },
      upstreams: new Map([lm, shop].map((each) => [each.name, each])),
    },
    { clock, random: fixedRandom(0.5), destination, ...given },
  );
  const scrape = async (format?: MetricsFormat) => (await telemetry.metrics(format)).body;
  /** Value of one series, or `undefined`. Labels in any order. */
  const value = async (name: string, labels: Record<string, string> = {}) => {
    for (const line of (await scrape()).split('\n')) {
      const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (match === null || match[1] !== name) continue;
      const own = new Map([...(match[2] ?? '').matchAll(/(\w+)="([^"]*)"/g)].map((m) => [m[1], m[2]]));
      const wanted = Object.entries(labels);
      if (own.size === wanted.length && wanted.every(([k, v]) => own.get(k) === v)) return Number(match[3]);
    }
    return undefined;
  };
  const lines = () => destination.lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  return { clock, telemetry, scrape, value, lines };
}
