/**
 * The one place where metrics, log, spans and listeners meet: everything that the rest of the product reports, and what it asks of it.
 * No method throws or blocks, and none takes a value that must not be seen outside (a workspace is shown under its label only).
 */
import type { Call, MeterName, Reckoned } from '../call.ts';
import type { Settings, UpstreamKind, UpstreamSettings } from '../config/settings.ts';
import { limitRefusals, refusals } from '../errors.ts';
import { ShortLived } from '../short-lived.ts';
import { RunningCallRecord, type CallRecord, type CallReporters } from './call-record.ts';
import type {
  ConfigurationState,
  FactSink,
  LimiterHealth,
  LimiterMode,
  LiveLane,
  LivePressure,
  PressureSource,
  RedisCommand,
  RefusedRequest,
} from './events.ts';
import { createLabels } from './labels.ts';
import { createLogger, type LoggerParts } from './logger.ts';
import { createMetrics, type CounterName, type MetricsFormat } from './metrics.ts';
import type { Tracing } from './tracing.ts';

/** What the parts of the gateway report to. */
export type Telemetry = Omit<RunningTelemetry, 'labels' | 'lanes' | 'metrics' | 'close'>;

export interface TelemetryParts extends LoggerParts {
  /** Spans, when an exporter is configured (`startTracing`). */
  readonly tracing?: Tracing | null;
  /** Hears of calls as they go; `null` = nobody does. */
  readonly activity?: FactSink | null;
  readonly metrics?: Parameters<typeof createMetrics>[0];
}

/** Parts of the settings that telemetry reads; the label key holds for the life of the process. */
interface TelemetrySettings extends Pick<Settings, 'log' | 'upstreams'> {
  readonly privacy: Pick<Settings['privacy'], 'labelKey'>;
}

const dimensionsOfKind: Record<UpstreamKind, readonly MeterName[]> = {
  'language-model': ['requests', 'tokens', 'requests_day', 'tokens_day'],
  commerce: ['requests', 'cost'],
  generic: ['requests', 'requests_day'],
};

export type RunningTelemetry = ReturnType<typeof createTelemetry>;

export function createTelemetry(started: TelemetrySettings, parts: TelemetryParts) {
  const { clock, tracing = null, activity = null } = parts;
  const metrics = createMetrics(parts.metrics);
  const logger = createLogger(started.log, parts);
  const { log } = logger;
  const labels = createLabels(started.privacy.labelKey, clock, {
    onRelease: (label) => metrics.release(label),
  });
  const records = new ShortLived<string, RunningCallRecord>();
  /** Upstreams whose pressure is shown; calls on others go on. */
  let upstreams: readonly UpstreamSettings[] = [...started.upstreams.values()];
  /** What only the gateway knows; given once it exists. */
  let source: PressureSource;
  let health: LimiterHealth = { mode: null, modeSince: 0, redisMs: null };
  let configuration: ConfigurationState = { inForceSince: clock.now(), refusedAt: null };
  let isFailureReported = false;

  function failed(cause: unknown): void {
    // A bug here would repeat for every call: one line is enough to find it.
    if (!isFailureReported) log.bug('telemetry failed; reported once', cause);
    isFailureReported = true;
  }
  /** Nothing that goes wrong here may touch a call. */
  function guard(run: () => void): void {
    try {
      run();
    } catch (cause) {
      failed(cause);
    }
  }
  const reporters: CallReporters = {
    clock,
    metrics,
    logger,
    labels,
    live: records,
    tracing,
    activity,
    failed,
  };

  /** Pressure per configured upstream, this replica. */
  function live(): readonly LivePressure[] {
    const now = clock.monotonic();
    const shown = upstreams.map(({ name, kind, mode }) => {
      const none = { waiting: 0, oldestMs: 0, inFlight: 0 };
      return { upstream: name, mode, dimensions: dimensionsOfKind[kind], ...none };
    });
    const byName = new Map(shown.map((pressure) => [pressure.upstream, pressure]));
    for (const { upstream, call, isWaiting } of records.values()) {
      const pressure = byName.get(upstream);
      if (pressure === undefined) continue;
      pressure[isWaiting ? 'waiting' : 'inFlight'] += 1;
      if (isWaiting) pressure.oldestMs = Math.max(pressure.oldestMs, now - call.receivedAt);
    }
    return shown;
  }

  return {
    /** Log lines that are not about a call. */
    log,
    /** Labels of workspaces, and which of them are shown under a label of their own. */
    labels,
    live,

    /** A configuration was read now. */
    configurationRead(result: 'in use' | 'refused'): void {
      const at = clock.now();
      if (result === 'in use') configuration = { inForceSince: at, refusedAt: null };
      else configuration = { ...configuration, refusedAt: at };
    },

    /** Since when the settings in use hold, and what was refused since then. */
    configuration: (): ConfigurationState => configuration,

    begin: (call: Call): CallRecord => new RunningCallRecord(call, reporters),

    /** It is known what limits would have done with a call that was only observed. */
    reckoned: (workspaceId: string, upstream: string, reckoned: Reckoned): void =>
      guard(() => {
        const by = { workspace: labels.of(workspaceId), upstream };
        const refusedFor = reckoned.kind === 'refuse' ? reckoned.code : null;
        // All begin with the first call, so that the first increase of each is seen.
        for (const reason of limitRefusals)
          metrics.count('sluice_would_refuse_total', { ...by, reason }, reason === refusedFor ? 1 : 0);
        if (refusedFor === null) metrics.observe('sluice_would_wait_seconds', { upstream }, reckoned.waitMs);
      }),

    /** Its response names a request id, so it has a log line like a call of a stranger. */
    requestRefused({ requestId, method, status, code }: RefusedRequest): void {
      const call = {
        id: requestId,
        method,
        receivedAt: clock.monotonic(),
        form: 'proxy',
        rawFields: [],
      } as const;
      const { signal: clientGone } = new AbortController();
      const record = new RunningCallRecord({ ...call, clientGone }, { ...reporters, tracing: null });
      record.ended({ outcome: refusals[code].family, status, code });
    },

    limiterMode(mode: LimiterMode): void {
      if (mode !== health.mode) health = { ...health, mode, modeSince: clock.now() };
    },

    redisCommand(command: RedisCommand, durationMs: number): void {
      const { redisMs } = health;
      health = { ...health, redisMs: redisMs === null ? durationMs : redisMs * 0.95 + durationMs * 0.05 };
      guard(() => metrics.observe('sluice_redis_command_seconds', { command }, durationMs));
    },

    /** What has no other name than its counter. */
    count: (name: CounterName, by: Readonly<Record<string, string>> = {}): void =>
      guard(() => metrics.count(name, by)),

    /** Where gauges read from; the last one given counts. */
    observe(from: PressureSource): void {
      source = from;
    },

    limiterHealth: (): LimiterHealth => health,

    /** Workspaces and upstreams with calls now, how many wait and how many are in flight: this replica. Ids stay in memory. */
    lanes(): Iterable<LiveLane> {
      const lanes = new Map<string, { -readonly [Key in keyof LiveLane]: LiveLane[Key] }>();
      for (const { workspaceId, upstream, isWaiting } of records.values()) {
        if (workspaceId === null) continue;
        const name = `${upstream} ${workspaceId}`;
        const lane = lanes.get(name) ?? { workspaceId, upstream, waiting: 0, inFlight: 0 };
        lane[isWaiting ? 'waiting' : 'inFlight'] += 1;
        lanes.set(name, lane);
      }
      return lanes.values();
    },

    /** A scrape, in the plain form by default. */
    async metrics(format: MetricsFormat = 'prometheus') {
      const headrooms = await source.headrooms();
      return metrics.page(format, { source, live: live(), health, configuration, headrooms });
    },

    /** Takes over new settings: how much is logged, and the upstreams that have gauges. */
    reload(next: Pick<TelemetrySettings, 'log' | 'upstreams'>): void {
      logger.reload(next.log);
      upstreams = [...next.upstreams.values()];
    },

    /** Exports buffered spans. Called once, last. */
    close: async (): Promise<void> =>
      tracing?.close().catch((cause: unknown) => log.bug('the last traces could not be exported', cause)),
  };
}
