/** Drives telemetry without a gateway: a settable clock, lines kept in memory, calls and workspaces by name. */
import { bucketKey } from '../../src/ids.ts';
import type { Call } from '../../src/call.ts';
import type { Clock, Random } from '../../src/clock.ts';
import type { UpstreamKind, UpstreamSettings } from '../../src/config/settings.ts';
import type { BucketSnapshot } from '../../src/limiter/limiter.ts';
import type { CallRecord } from '../../src/telemetry/call-record.ts';
import type { MetricsFormat } from '../../src/telemetry/metrics.ts';
import type { EndedFact, PressureSource, ProcessPressure } from '../../src/telemetry/events.ts';
import { createTelemetry, type TelemetryParts } from '../../src/telemetry/telemetry.ts';
import { fixedCredential, unstatedLimits, upstreamSettings } from '../support/upstream-settings.ts';

export interface SettableClock extends Clock {
  advance(ms: number): void;
}

/** A clock that moves only when the test says so; a timer without delay runs at once, others never. */
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

export function memoryLines() {
  const lines: string[] = [];
  return { lines, write: (line: string) => void lines.push(line) };
}

export function upstreamNamed(
  name: string,
  kind: UpstreamKind = 'language-model',
  host = 'api.example',
): UpstreamSettings {
  return upstreamSettings(name, [`https://${kind === 'commerce' ? '*.' : ''}${host}`], {
    kind,
    credential: fixedCredential('authorization', 'Bearer canary-credential'),
    limits: { ...unstatedLimits, requestsPerMinute: 500, requestsPerDay: 10_000 },
  });
}

export function callAt(clock: Clock, given: Partial<Call> = {}): Call {
  return {
    id: '0123456789abcdef0123456789abcdef',
    receivedAt: clock.monotonic(),
    method: 'POST',
    form: 'proxy',
    rawUrl: '/proxy?target=https%3A%2F%2Fcanary-target.example%2Fpath',
    rawFields: ['Authorization', 'Bearer canary-key'],
    clientGone: new AbortController().signal,
    readBody: () =>
      Promise.resolve({ bytes: Buffer.from('canary-body'), replayable: true, completeAt: null }),
    authenticated: () => {},
    report: () => {},
    retain: () => () => {},
    ...given,
  };
}

/** How a call ended; `given` is what a test is about. */
export const ended = (given: Partial<EndedFact> = {}): EndedFact => ({
  outcome: 'ok',
  code: null,
  heldBy: null,
  waitedMs: 0,
  attempts: 1,
  durationMs: 10,
  ...given,
});

/** A bucket without waiting calls; `given` is what a test is about. */
export const bucketSnapshot = (given: Partial<BucketSnapshot> = {}): BucketSnapshot => ({
  bucket: bucketKey('b'),
  closedMs: 0,
  waiting: 0,
  inFlight: 0,
  maxInFlightTotal: null,
  reserved: 0,
  meters: [],
  ...given,
});

export const lm = upstreamNamed('lm');
export const shop = upstreamNamed('shop', 'commerce', 'canary-shops.example');

/** A call of a workspace to an upstream that has been admitted. */
export function entered(
  { telemetry, clock }: Pick<ReturnType<typeof driven>, 'telemetry' | 'clock'>,
  {
    workspace = 'acme',
    upstream = lm,
    ...call
  }: Partial<Call> & { workspace?: string; upstream?: UpstreamSettings } = {},
): CallRecord {
  const record = telemetry.begin(callAt(clock, call));
  record.workspaceId = workspace;
  record.routed(upstream);
  record.admitting();
  return record;
}

export const idleProcess: ProcessPressure = {
  heldBytes: 0,
  keptBytes: 0,
  headBytes: 0,
  connections: 0,
  openCalls: 0,
  eventLoopDelayMs: 0,
  memoryRatio: 0,
  sheddingShare: 0,
  overloadRefusals: 0,
};

/** A gateway that has done nothing yet. */
export const nothingKnown: PressureSource = {
  process: () => idleProcess,
  buckets: () => [],
  ceilingsUsed: () => [],
  breakers: () => [],
  pauseOf: () => null,
  credentials: () => [],
  headrooms: () => Promise.resolve(new Map()),
};

/** Telemetry over two upstreams, with the clock and the lines that drive it. */
export function driven(given: Partial<TelemetryParts> & { readonly sampleSuccesses?: number } = {}) {
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
  telemetry.observe(nothingKnown);
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
