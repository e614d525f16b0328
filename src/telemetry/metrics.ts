/**
 * The metrics that count facts. Owns: the registry and the prepared series. The series that the path of a call touches are looked up
 * once per workspace and upstream, created at 0 (so that their first increase is seen) and then only incremented.
 *
 * Invariants: at most one series set per label and upstream; no label value comes from outside (labels are ours,
 * upstreams are configured names, the rest are closed sets); histograms carry no workspace.
 */
import { collectDefaultMetrics } from 'prom-client';
import { overloadBounds, type OverloadBound } from '../errors.ts';
import {
  leaseLostReasons,
  limiterModes,
  redisErrorKinds,
  renewalOutcomes,
  type LeaseLostReason,
  type LimiterMode,
  type RedisCommand,
  type RedisErrorKind,
  type RenewalOutcome,
} from './events.ts';
import { createRegistry, writeMetrics, type MetricsFormat, type MetricsPage } from './exposition.ts';
import { readGauges, type GaugeReadings } from './gauges.ts';
import { createInstruments } from './instruments.ts';
import {
  createUpstreamSeries,
  createWorkspaceSeries,
  removeSeries,
  type UpstreamSeries,
  type WorkspaceSeries,
} from './prepared-series.ts';

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
  joined(upstream: string): void;
  madeAgain(upstream: string): void;
  refusedAgain(upstream: string): void;
  sentAfterClientGone(): void;
  /** A call without a valid API key got no log line. */
  logLineLeftOut(): void;
  /** Text of a scrape, gauges read at this moment. */
  page(format: MetricsFormat): Promise<MetricsPage>;
}

export interface MetricsOptions {
  /** Process and Node metrics too. Off in tests. */
  readonly processMetrics?: boolean;
  /** Trace ids on histograms, shown only to scrapers that ask for OpenMetrics. */
  readonly exemplars?: boolean;
}

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
  const logLinesLeftOut = instruments.logLinesLeftOut.of({});

  const workspaces = new Map<string, Map<string, WorkspaceSeries>>();
  const upstreams = new Map<string, UpstreamSeries>();
  const redisTimers = new Map<RedisCommand, { observe(seconds: number): void }>();

  return {
    workspace(label, upstream) {
      let byUpstream = workspaces.get(label);
      if (byUpstream === undefined) workspaces.set(label, (byUpstream = new Map()));
      let series = byUpstream.get(upstream);
      if (series === undefined) {
        byUpstream.set(upstream, (series = createWorkspaceSeries(instruments, label, upstream)));
      }
      return series;
    },
    upstream(name) {
      let series = upstreams.get(name);
      if (series === undefined)
        upstreams.set(name, (series = createUpstreamSeries(instruments, name, wallClock)));
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
    madeAgain(upstream) {
      instruments.madeAgain.of({ upstream }).value += 1;
    },
    refusedAgain(upstream) {
      instruments.refusedAgain.of({ upstream }).value += 1;
    },
    replayed(upstream) {
      instruments.replays.of({ upstream }).value += 1;
    },
    joined(upstream) {
      instruments.joins.of({ upstream }).value += 1;
    },
    credentialRenewal(upstream, outcome) {
      // All series are created at once, so that the first failure is seen as an increase.
      for (const each of renewalOutcomes) instruments.credentialRenewals.of({ upstream, outcome: each });
      instruments.credentialRenewals.of({ upstream, outcome }).value += 1;
    },
    sentAfterClientGone() {
      sentAfterGone.value += 1;
    },
    logLineLeftOut() {
      logLinesLeftOut.value += 1;
    },
    page(format) {
      readGauges(instruments, readings);
      return writeMetrics(registry, format);
    },
  };
}
