/**
 * Counts. Owns the registry and the prepared series: what the hot path touches is looked up once per workspace and
 * upstream, created at 0 (so that the first increase is seen) and then only incremented.
 *
 * Invariants: at most one series set per label and upstream; no label value comes from outside (labels are ours,
 * upstreams are configured names, the rest are closed sets); histograms carry no workspace.
 */
import { collectDefaultMetrics } from 'prom-client';
import {
  failureReasons,
  overloadBounds,
  holds,
  refusals,
  type FailureReason,
  type HeldBy,
  type OverloadBound,
  type RefusalCode,
} from '../errors.ts';
import type { MeterName } from '../call.ts';
import {
  leaseLostReasons,
  limiterModes,
  redisErrorKinds,
  renewalOutcomes,
  type LeaseLostReason,
  type LimiterMode,
  type LivePressure,
  type ObservedBreaker,
  type ObservedBucket,
  type ObservedCredential,
  type ProcessPressure,
  type RedisCommand,
  type RedisErrorKind,
  type RenewalOutcome,
} from './events.ts';
import { readProcess } from './process-gauges.ts';
import { readCredentials } from './credential-gauge.ts';
import { createInstruments, type Instruments } from './instruments.ts';
import type { CounterSeries, HistogramSeries } from './series.ts';
import { outcomes, type CallOutcome } from './outcome.policy.ts';
import { createRegistry, writeMetrics, type MetricsFormat, type MetricsPage } from './exposition.ts';

/** Counters of one workspace label on one upstream. */
export interface WorkspaceSeries {
  ended(outcome: CallOutcome): void;
  shed(code: RefusalCode): void;
  throttled(kind: 'rate' | 'permanent'): void;
  absorbed(): void;
}

/** Histograms of one upstream, and its failed attempts. `traceId` becomes an exemplar when they are on. */
export interface UpstreamSeries {
  waited(outcome: CallOutcome, seconds: number, traceId: string | null): void;
  upstream(seconds: number, traceId: string | null): void;
  overhead(seconds: number, traceId: string | null): void;
  failed(reason: FailureReason): void;
  refusedFor(heldBy: HeldBy): void;
}

export interface Metrics {
  workspace(label: string, upstream: string): WorkspaceSeries;
  upstream(name: string): UpstreamSeries;
  /** Removes every series of a label that was taken back. */
  release(label: string): void;
  overloaded(bound: OverloadBound): void;
  limiterMode(mode: LimiterMode): void;
  redisCommand(command: RedisCommand, seconds: number): void;
  redisError(kind: RedisErrorKind): void;
  leaseLost(reason: LeaseLostReason): void;
  credentialRenewal(upstream: string, outcome: RenewalOutcome): void;
  replayed(upstream: string): void;
  repeatedAgain(upstream: string): void;
  refusedAgain(upstream: string): void;
  sentAfterClientGone(): void;
  /** Text of a scrape, gauges read at this moment. */
  page(format: MetricsFormat): Promise<MetricsPage>;
}

/** What gauges read at scrape time. */
export interface GaugeReadings {
  /** Wall clock, milliseconds: exemplars are dated. */
  now(): number;
  process(): ProcessPressure;
  buckets(): readonly ObservedBucket[];
  breakers(upstream: string): readonly ObservedBreaker[];
  live(): readonly LivePressure[];
  credentials(): readonly ObservedCredential[];
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

/**
 * Dimensions of `sluice_bucket_used_ratio`; `tokens` is the fullest of all, input and output tokens. The image meter is shown by
 * activity only.
 */
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
  const wallClock = options.exemplars === true ? readings.now : null;
  const instruments = createInstruments(registry);
  if (options.processMetrics ?? false) {
    collectDefaultMetrics({ register: registry });
    for (const name of misnamed) registry.removeSingleMetric(name);
  }
  for (const mode of limiterModes) instruments.limiterMode.set({ mode }, 0);
  for (const kind of redisErrorKinds) instruments.redisErrors.of({ kind });
  for (const bound of overloadBounds) instruments.overloads.of({ bound });
  for (const reason of leaseLostReasons) instruments.leasesLost.of({ reason });
  const sentAfterGone = instruments.sentAfterGone.of({});

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
      if (series === undefined) upstreams.set(name, (series = prepareUpstream(instruments, name, wallClock)));
      return series;
    },
    release(label) {
      for (const upstream of workspaces.get(label)?.keys() ?? []) removeSeries(instruments, label, upstream);
      workspaces.delete(label);
    },
    overloaded(bound) {
      instruments.overloads.of({ bound }).value += 1;
    },
    limiterMode(mode) {
      for (const each of limiterModes) instruments.limiterMode.set({ mode: each }, each === mode ? 1 : 0);
    },
    redisCommand(command, seconds) {
      let timer = redisTimers.get(command);
      if (timer === undefined) redisTimers.set(command, (timer = instruments.redisTime.of({ command })));
      timer.observe(seconds);
    },
    redisError(kind) {
      instruments.redisErrors.of({ kind }).value += 1;
    },
    leaseLost(reason) {
      instruments.leasesLost.of({ reason }).value += 1;
    },
    repeatedAgain(upstream) {
      instruments.repeatedAgain.of({ upstream }).value += 1;
    },
    refusedAgain(upstream) {
      instruments.refusedAgain.of({ upstream }).value += 1;
    },
    replayed(upstream) {
      instruments.replays.of({ upstream }).value += 1;
    },
    credentialRenewal(upstream, outcome) {
      // All at once, so that the first failure is seen as an increase.
      for (const each of renewalOutcomes) instruments.credentialRenewals.of({ upstream, outcome: each });
      instruments.credentialRenewals.of({ upstream, outcome }).value += 1;
    },
    sentAfterClientGone() {
      sentAfterGone.value += 1;
    },
    page(format) {
      readGauges(instruments, readings);
      return writeMetrics(registry, format);
    },
  };
}

function prepareWorkspace(instruments: Instruments, workspace: string, upstream: string): WorkspaceSeries {
  const { requests, shed, throttles, absorbed } = instruments;
  const ended = new Map(outcomes.map((outcome) => [outcome, requests.of({ workspace, upstream, outcome })]));
  const refused = new Map(shedReasons.map((reason) => [reason, shed.of({ workspace, upstream, reason })]));
  const rate = throttles.of({ workspace, upstream, kind: 'rate' });
  const permanent = throttles.of({ workspace, upstream, kind: 'permanent' });
  const kept = absorbed.of({ workspace, upstream });
  const add = (series: CounterSeries | undefined): void => {
    if (series !== undefined) series.value += 1;
  };
  return {
    ended: (outcome) => add(ended.get(outcome)),
    shed: (code) => add(refused.get(code)),
    throttled: (kind) => add(kind === 'rate' ? rate : permanent),
    absorbed: () => add(kept),
  };
}

function prepareUpstream(
  instruments: Instruments,
  upstream: string,
  wallClock: (() => number) | null,
): UpstreamSeries {
  const { queueWait, upstreamTime, overhead, failures, heldRefusals } = instruments;
  const held = new Map(holds.map((name) => [name, heldRefusals.of({ upstream, held_by: name })]));
  const failed = new Map(failureReasons.map((reason) => [reason, failures.of({ upstream, reason })]));
  const waits = new Map(outcomes.map((outcome) => [outcome, queueWait.of({ upstream, outcome })]));
  const times = upstreamTime.of({ upstream });
  const overheads = overhead.of({ upstream });
  const observe = (series: HistogramSeries | undefined, seconds: number, traceId: string | null): void => {
    series?.observe(seconds);
    if (traceId !== null && wallClock !== null) series?.exemplify(seconds, traceId, wallClock() / 1000);
  };
  return {
    waited: (outcome, seconds, traceId) => observe(waits.get(outcome), seconds, traceId),
    upstream: (seconds, traceId) => observe(times, seconds, traceId),
    overhead: (seconds, traceId) => observe(overheads, seconds, traceId),
    failed(reason) {
      const series = failed.get(reason);
      if (series !== undefined) series.value += 1;
    },
    refusedFor(heldBy) {
      const series = held.get(heldBy);
      if (series !== undefined) series.value += 1;
    },
  };
}

function removeSeries(instruments: Instruments, workspace: string, upstream: string): void {
  const { requests, shed, throttles, absorbed } = instruments;
  for (const outcome of outcomes) requests.remove({ workspace, upstream, outcome });
  for (const reason of shedReasons) shed.remove({ workspace, upstream, reason });
  throttles.remove({ workspace, upstream, kind: 'rate' });
  throttles.remove({ workspace, upstream, kind: 'permanent' });
  absorbed.remove({ workspace, upstream });
}

/** Sets every gauge from the readings. Upstreams that are no longer configured disappear. */
function readGauges(instruments: Instruments, readings: GaugeReadings): void {
  const { queueDepth, queueOldest, inFlight, bucketUsed, bucketClosed, breakerOpen } = instruments;
  for (const gauge of [queueDepth, queueOldest, inFlight, bucketUsed, bucketClosed, breakerOpen])
    gauge.reset();
  readProcess(instruments, readings.process());
  readCredentials(instruments, readings.credentials());
  const known = new Set<string>();
  for (const { upstream, dimensions: expected, waiting, oldestMs, inFlight: sent } of readings.live()) {
    known.add(upstream);
    queueDepth.set({ upstream }, waiting);
    queueOldest.set({ upstream }, oldestMs / 1000);
    inFlight.set({ upstream }, sent);
    bucketClosed.set({ upstream }, 0);
    breakerOpen.set({ upstream }, readings.breakers(upstream).length > 0 ? 1 : 0);
    for (const dimension of expected) bucketUsed.set({ upstream, dimension }, 0);
  }
  const closed = new Map<string, number>();
  const used = new Map<string, { upstream: string; dimension: MeterName; ratio: number }>();
  for (const { upstream, snapshot } of readings.buckets()) {
    if (!known.has(upstream)) continue;
    closed.set(upstream, Math.max(closed.get(upstream) ?? 0, snapshot.closedMs));
    for (const { meter, level, limit } of snapshot.meters) {
      const dimension = meter.endsWith('_tokens') ? 'tokens' : meter;
      if (!dimensions.includes(dimension)) continue;
      const ratio = limit > 0 ? level / limit : 0;
      const key = `${upstream} ${dimension}`;
      if (ratio > (used.get(key)?.ratio ?? -1)) used.set(key, { upstream, dimension, ratio });
    }
  }
  for (const [upstream, closedMs] of closed) bucketClosed.set({ upstream }, closedMs / 1000);
  for (const { upstream, dimension, ratio } of used.values()) bucketUsed.set({ upstream, dimension }, ratio);
}
