/**
 * Counts. Owns the registry and the prepared series: what the hot path touches is looked up once per workspace and
 * upstream, created at 0 (so that the first increase is seen) and then only incremented.
 *
 * Invariants: at most one series set per label and upstream; no label value comes from outside (labels are ours,
 * upstreams are configured names, the rest are closed sets); histograms carry no workspace.
 */
import { collectDefaultMetrics } from 'prom-client';
import { refusals, type RefusalCode } from '../errors.ts';
import type { MeterName } from '../call.ts';
import {
  leaseLostReasons,
  limiterModes,
  redisErrorKinds,
  type LeaseLostReason,
  type LimiterMode,
  type LivePressure,
  type ObservedBucket,
  type RedisCommand,
  type RedisErrorKind,
} from './events.ts';
import { createInstruments, type Instruments } from './instruments.ts';
import { outcomes, type CallOutcome } from './outcome.policy.ts';
import { createRegistry, writeMetrics, type MetricsFormat, type MetricsPage } from './exposition.ts';

/** Counters of one workspace label on one upstream. */
export interface WorkspaceSeries {
  ended(outcome: CallOutcome): void;
  shed(code: RefusalCode): void;
  throttled(kind: 'rate' | 'permanent'): void;
  absorbed(): void;
}

/** Histograms of one upstream. `traceId` becomes an exemplar when they are on. */
export interface UpstreamSeries {
  waited(outcome: CallOutcome, seconds: number, traceId: string | null): void;
  upstream(seconds: number, traceId: string | null): void;
  overhead(seconds: number, traceId: string | null): void;
}

export interface Metrics {
  workspace(label: string, upstream: string): WorkspaceSeries;
  upstream(name: string): UpstreamSeries;
  /** Removes every series of a label that was taken back. */
  release(label: string): void;
  limiterMode(mode: LimiterMode): void;
  redisCommand(command: RedisCommand, seconds: number): void;
  redisError(kind: RedisErrorKind): void;
  leaseLost(reason: LeaseLostReason): void;
  sentAfterClientGone(): void;
  /** Text of a scrape, gauges read at this moment. */
  page(format: MetricsFormat): Promise<MetricsPage>;
}

/** What gauges read at scrape time. */
export interface GaugeReadings {
  heldBytes(): number;
  buckets(): readonly ObservedBucket[];
  live(): readonly LivePressure[];
}

export interface MetricsOptions {
  /** Process and Node metrics too. Off in tests. */
  readonly processMetrics?: boolean;
  /** Trace ids on histograms, shown only to scrapers that ask for OpenMetrics. */
  readonly exemplars?: boolean;
}

/** Reasons of `sluice_shed_total`: every refusal of the shed family. */
export const shedReasons = (Object.keys(refusals) as RefusalCode[]).filter(
  (code) => refusals[code].family === 'shed',
);

/** Dimensions of `sluice_bucket_used_ratio`. The image meter is shown by activity only. */
const dimensions: readonly MeterName[] = ['requests', 'tokens', 'requests_day', 'tokens_day', 'cost'];

/** prom-client's gauges that are named like counters; `promtool check metrics` refuses them. */
const misnamed = [
  'nodejs_active_handles_total',
  'nodejs_active_requests_total',
  'nodejs_active_resources_total',
];

/** Creates the registry and everything in it. */
export function createMetrics(readings: GaugeReadings, options: MetricsOptions = {}): Metrics {
  const registry = createRegistry();
  const exemplars = options.exemplars ?? false;
  const instruments = createInstruments(registry, exemplars);
  if (options.processMetrics ?? false) {
    collectDefaultMetrics({ register: registry });
    for (const name of misnamed) registry.removeSingleMetric(name);
  }
  for (const mode of limiterModes) instruments.limiterMode.set({ mode }, 0);
  for (const kind of redisErrorKinds) instruments.redisErrors.inc({ kind }, 0);
  for (const reason of leaseLostReasons) instruments.leasesLost.inc({ reason }, 0);

  const workspaces = new Map<string, Map<string, WorkspaceSeries>>();
  const upstreams = new Map<string, UpstreamSeries>();
  const redisTimers = new Map<RedisCommand, { observe(seconds: number): void }>();

  return {
    workspace(label, upstream) {
      let byUpstream = workspaces.get(label);
      if (byUpstream === undefined) workspaces.set(label, (byUpstream = new Map()));
      let series = byUpstream.get(upstream);
      if (series === undefined) {
        byUpstream.set(upstream, (series = prepareWorkspace(instruments, label, upstream)));
      }
      return series;
    },
    upstream(name) {
      let series = upstreams.get(name);
      if (series === undefined) upstreams.set(name, (series = prepareUpstream(instruments, name, exemplars)));
      return series;
    },
    release(label) {
      for (const upstream of workspaces.get(label)?.keys() ?? []) removeSeries(instruments, label, upstream);
      workspaces.delete(label);
    },
    limiterMode(mode) {
      for (const each of limiterModes) instruments.limiterMode.set({ mode: each }, each === mode ? 1 : 0);
    },
    redisCommand(command, seconds) {
      let timer = redisTimers.get(command);
      if (timer === undefined) redisTimers.set(command, (timer = instruments.redisTime.labels(command)));
      timer.observe(seconds);
    },
    redisError: (kind) => instruments.redisErrors.inc({ kind }),
    leaseLost: (reason) => instruments.leasesLost.inc({ reason }),
    sentAfterClientGone: () => instruments.sentAfterGone.inc(),
    page(format) {
      readGauges(instruments, readings);
      return writeMetrics(registry, format);
    },
  };
}

function prepareWorkspace(instruments: Instruments, workspace: string, upstream: string): WorkspaceSeries {
  const { requests, shed, throttles, absorbed } = instruments;
  const ended = new Map<CallOutcome, { inc(): void }>();
  for (const outcome of outcomes) {
    requests.inc({ workspace, upstream, outcome }, 0);
    ended.set(outcome, requests.labels(workspace, upstream, outcome));
  }
  const refused = new Map<RefusalCode, { inc(): void }>();
  for (const reason of shedReasons) {
    shed.inc({ workspace, upstream, reason }, 0);
    refused.set(reason, shed.labels(workspace, upstream, reason));
  }
  const rate = throttles.labels(workspace, upstream, 'rate');
  const permanent = throttles.labels(workspace, upstream, 'permanent');
  rate.inc(0);
  permanent.inc(0);
  const kept = absorbed.labels(workspace, upstream);
  kept.inc(0);
  return {
    ended: (outcome) => ended.get(outcome)?.inc(),
    shed: (code) => refused.get(code)?.inc(),
    throttled: (kind) => (kind === 'rate' ? rate : permanent).inc(),
    absorbed: () => kept.inc(),
  };
}

function prepareUpstream(instruments: Instruments, upstream: string, exemplars: boolean): UpstreamSeries {
  const { queueWait, upstreamTime, overhead } = instruments;
  const waits = new Map(outcomes.map((outcome) => [outcome, queueWait.labels(upstream, outcome)]));
  const times = upstreamTime.labels(upstream);
  const overheads = overhead.labels(upstream);
  // Prepared series take no exemplar: only the few sampled calls pay for the long way.
  const exemplar = (traceId: string | null) =>
    exemplars && traceId !== null ? { trace_id: traceId } : undefined;
  return {
    waited(outcome, value, traceId) {
      const exemplarLabels = exemplar(traceId);
      if (exemplarLabels === undefined) waits.get(outcome)?.observe(value);
      else queueWait.observe({ labels: { upstream, outcome }, value, exemplarLabels });
    },
    upstream(value, traceId) {
      const exemplarLabels = exemplar(traceId);
      if (exemplarLabels === undefined) times.observe(value);
      else upstreamTime.observe({ labels: { upstream }, value, exemplarLabels });
    },
    overhead(value, traceId) {
      const exemplarLabels = exemplar(traceId);
      if (exemplarLabels === undefined) overheads.observe(value);
      else overhead.observe({ labels: { upstream }, value, exemplarLabels });
    },
  };
}

function removeSeries(instruments: Instruments, workspace: string, upstream: string): void {
  for (const outcome of outcomes) instruments.requests.remove(workspace, upstream, outcome);
  for (const reason of shedReasons) instruments.shed.remove(workspace, upstream, reason);
  instruments.throttles.remove(workspace, upstream, 'rate');
  instruments.throttles.remove(workspace, upstream, 'permanent');
  instruments.absorbed.remove(workspace, upstream);
}

/** Sets every gauge from the readings. Upstreams that are no longer configured disappear. */
function readGauges(instruments: Instruments, readings: GaugeReadings): void {
  const { queueDepth, queueOldest, inFlight, bucketUsed, bucketClosed, queueBytes } = instruments;
  for (const gauge of [queueDepth, queueOldest, inFlight, bucketUsed, bucketClosed]) gauge.reset();
  queueBytes.set(readings.heldBytes());
  const known = new Set<string>();
  for (const { upstream, dimensions: expected, waiting, oldestMs, inFlight: sent } of readings.live()) {
    known.add(upstream);
    queueDepth.set({ upstream }, waiting);
    queueOldest.set({ upstream }, oldestMs / 1000);
    inFlight.set({ upstream }, sent);
    bucketClosed.set({ upstream }, 0);
    for (const dimension of expected) bucketUsed.set({ upstream, dimension }, 0);
  }
  const closed = new Map<string, number>();
  const used = new Map<string, { upstream: string; dimension: MeterName; ratio: number }>();
  for (const { upstream, snapshot } of readings.buckets()) {
    if (!known.has(upstream)) continue;
    closed.set(upstream, Math.max(closed.get(upstream) ?? 0, snapshot.closedMs));
    for (const { meter, level, limit } of snapshot.meters) {
      if (!dimensions.includes(meter)) continue;
      const ratio = limit > 0 ? level / limit : 0;
      const key = `${upstream} ${meter}`;
      if (ratio > (used.get(key)?.ratio ?? -1)) used.set(key, { upstream, dimension: meter, ratio });
    }
  }
  for (const [upstream, closedMs] of closed) bucketClosed.set({ upstream }, closedMs / 1000);
  for (const { upstream, dimension, ratio } of used.values()) bucketUsed.set({ upstream, dimension }, ratio);
}
