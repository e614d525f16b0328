/**
 * Builds telemetry: the one place where metrics, log, spans and listeners meet. Owns no fact and no number.
 */
import type { DestinationStream } from 'pino';
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import {
  idleProcess,
  type FactSink,
  type LimiterHealth,
  type PressureSource,
  type Telemetry,
} from './events.ts';
import type { MetricsFormat, MetricsPage } from './exposition.ts';
import { createLabels, noneLabel } from './labels.ts';
import { Live, type FollowedLane } from './live.ts';
import { createLogger } from './logger.ts';
import { createMetrics, type MetricsOptions } from './metrics.ts';
import { ObservedCall, type CallReporters } from './observed-call.ts';
import { outcomeOfRefusal } from './outcome.policy.ts';
import type { Tracing } from './spans.ts';

export interface TelemetryParts {
  readonly clock: Clock;
  readonly random: Random;
  /** Where log lines go, one JSON object per `write`. */
  readonly destination: DestinationStream;
  /** Spans, when an exporter is configured (`startTracing`). */
  readonly tracing?: Tracing | null;
  /** Further listeners, e.g. the activity recorder. */
  readonly sinks?: readonly FactSink[];
  readonly metrics?: MetricsOptions;
}

export interface RunningTelemetry extends Telemetry {
  /** Workspaces and upstreams with calls now, how many wait and how many are in flight: this replica. Ids stay in memory. */
  lanes(): Iterable<FollowedLane>;
  /** Gives labels to workspaces that are clearly busier than some that hold one; see `labels.ts`. */
  preferLabels(busy: ReadonlyMap<string, number>): void;
  /** Workspaces that are shown under a label of their own now. Ids stay in memory. */
  labelled(): Iterable<string>;
  isLabelled(workspaceId: string): boolean;
  /** A scrape, in the plain form by default. */
  metrics(format?: MetricsFormat): Promise<MetricsPage>;
  /** Takes over new log settings. */
  reconfigure(settings: Pick<TelemetrySettings, 'log'>): void;
  /** Exports buffered spans. Called once, last. */
  close(): Promise<void>;
}

/** Parts of the settings that telemetry reads; the label key holds for the life of the process. */
export type TelemetrySettings = Pick<Settings, 'privacy' | 'log' | 'upstreams'>;

export function createTelemetry(settings: TelemetrySettings, parts: TelemetryParts): RunningTelemetry {
  const { clock } = parts;
  const live = new Live();
  let source: PressureSource = {
    process: () => idleProcess,
    buckets: () => [],
    breakers: () => [],
    credentials: () => [],
  };
  const metrics = createMetrics(
    {
      now: () => clock.now(),
      process: () => source.process(),
      buckets: () => source.buckets(),
      breakers: (upstream) => source.breakers(upstream),
      live: () => live.read(clock.monotonic()),
      credentials: () => source.credentials(),
    },
    parts.metrics,
  );
  const labels = createLabels(settings.privacy.labelKey, clock, {
    onRelease: (label) => metrics.release(label),
  });
  const logger = createLogger(settings.log, parts);
  let isReported = false;
  const failed = (cause: unknown): void => {
    // A bug here would repeat for every call: one line is enough to find it.
    if (!isReported) logger.log.bug('telemetry failed; reported once', cause);
    isReported = true;
  };
  const reporters: CallReporters = { clock, metrics, logger, labels, live, sinks: parts.sinks ?? [], failed };
  const tracing = parts.tracing ?? null;
  live.configured(settings.upstreams.values());
  const health: { -readonly [K in keyof LimiterHealth]: LimiterHealth[K] } = {
    mode: null,
    redisErrors: 0,
    leasesLost: 0,
    redisMs: null,
  };

  const guarded = (run: () => void): void => {
    try {
      run();
    } catch (cause) {
      failed(cause);
    }
  };

  return {
    begin(call) {
      let spans = null;
      try {
        spans = tracing?.begin(call) ?? null;
      } catch (cause) {
        failed(cause);
      }
      return new ObservedCall(call, reporters, spans);
    },
    refusedEarly: (code) =>
      guarded(() => {
        const series = metrics.workspace(noneLabel, noneLabel);
        series.ended(outcomeOfRefusal(code));
        series.shed(code);
      }),
    overloaded: (bound) => guarded(() => metrics.overloaded(bound)),
    shedding(cause) {
      if (cause === null) logger.log.info('new calls are let in again');
      else logger.log.warn('new calls are refused in part: the process is overloaded', { bound: cause });
    },
    limiterMode(mode) {
      health.mode = mode;
      guarded(() => metrics.limiterMode(mode));
    },
    redisCommand(command, durationMs) {
      health.redisMs = health.redisMs === null ? durationMs : health.redisMs * 0.95 + durationMs * 0.05;
      guarded(() => metrics.redisCommand(command, durationMs / 1000));
    },
    redisError(kind) {
      health.redisErrors += 1;
      guarded(() => metrics.redisError(kind));
    },
    leaseLost(reason) {
      health.leasesLost += 1;
      guarded(() => metrics.leaseLost(reason));
    },
    refusedAgain: (upstream) => guarded(() => metrics.refusedAgain(upstream)),
    repeatedAgain: (upstream) => guarded(() => metrics.repeatedAgain(upstream)),
    joined: (upstream) => guarded(() => metrics.joined(upstream)),
    replayed: (upstream) => guarded(() => metrics.replayed(upstream)),
    credentialRenewal: (upstream, outcome) => guarded(() => metrics.credentialRenewal(upstream, outcome)),
    configured: (upstreams) => live.configured(upstreams),
    observe: (given) => {
      source = given;
    },
    live: () => live.read(clock.monotonic()),
    limiterHealth: () => ({ ...health }),
    labelOf: (workspaceId) => labels.peek(workspaceId),
    preferLabels: (busy) => labels.prefer(busy),
    labelled: () => labels.holders(),
    isLabelled: (workspaceId) => labels.holds(workspaceId),
    lanes: () => live.lanes(),
    log: logger.log,
    metrics: (format = 'prometheus') => metrics.page(format),
    reconfigure: ({ log }) => logger.configure(log),
    close: async () => {
      await tracing?.close();
    },
  };
}
