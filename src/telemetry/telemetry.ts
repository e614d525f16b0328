/**
 * The one place where metrics, log, spans and listeners meet: everything that the rest of the product reports, and what it asks of it.
 * No method throws or blocks, and none takes a value that must not be seen outside (a workspace is shown under its label only).
 */
import type { Call, MeterName, Reckoned } from '../call.ts';
import type { Settings, UpstreamKind, UpstreamSettings } from '../config/settings.ts';
import { limitRefusals, refusals } from '../errors.ts';
import { ShortLived } from '../short-lived.ts';
import { RunningCallRecord, type CallRecord, type CallReporters } from './call-record.ts';
import {
  nothingKnown,
  type ConfigurationState,
  type FactSink,
  type LimiterHealth,
  type LimiterMode,
  type LiveLane,
  type LivePressure,
  type Log,
  type RedisCommand,
  type RefusedRequest,
} from './events.ts';
import { createLabels, type Labels } from './labels.ts';
import { CallLogger, type LoggerParts } from './logger.ts';
import { Metrics, type CounterName, type MetricsFormat } from './metrics.ts';
import type { Tracing } from './tracing.ts';

/** What the parts of the gateway report to. */
export type Telemetry = Omit<RunningTelemetry, 'labels' | 'lanes' | 'metrics' | 'close'>;

export interface TelemetryParts extends LoggerParts {
  /** Spans, when an exporter is configured (`startTracing`). */
  readonly tracing?: Tracing | null;
  /** Hears of calls as they go; `null` = nobody does. */
  readonly activity?: FactSink | null;
  readonly metrics?: ConstructorParameters<typeof Metrics>[0];
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

export class RunningTelemetry {
  /** Log lines that are not about a call. */
  readonly log: Log;
  /** Labels of workspaces, and which of them are shown under a label of their own. */
  readonly labels: Labels;
  readonly #live = new ShortLived<string, RunningCallRecord>();
  readonly #metrics: Metrics;
  readonly #logger: CallLogger;
  readonly #reporters: CallReporters;
  /** Upstreams whose pressure is shown; calls on others go on. */
  #shown: readonly UpstreamSettings[] = [];
  /** What only the gateway knows; given once it exists. */
  #source = nothingKnown;
  #health: LimiterHealth = { mode: null, modeSince: 0, redisMs: null };
  #configuration: ConfigurationState = { inForceSince: 0, refused: null };
  #isFailureReported = false;

  constructor(settings: TelemetrySettings, parts: TelemetryParts) {
    const { clock, tracing = null, activity = null } = parts;
    const metrics = new Metrics(parts.metrics);
    const logger = new CallLogger(settings.log, parts);
    const onRelease = (label: string) => metrics.release(label);
    this.labels = createLabels(settings.privacy.labelKey, clock, { onRelease });
    this.#metrics = metrics;
    this.#logger = logger;
    this.log = logger.log;
    const failed = (cause: unknown): void => this.#failed(cause);
    const common = { labels: this.labels, live: this.#live, failed };
    this.#reporters = { clock, metrics, logger, tracing, activity, ...common };
    this.reload(settings);
    this.configurationRead('in use');
  }

  /** A configuration was read now and is in use, or was refused for problems in these lines. */
  configurationRead(result: 'in use' | 'refused', lines: readonly number[] = []): void {
    const at = this.#reporters.clock.now();
    this.#configuration =
      result === 'in use'
        ? { inForceSince: at, refused: null }
        : { ...this.#configuration, refused: { at, lines } };
  }

  /** Since when the settings in use hold, and what was refused since then. */
  configuration(): ConfigurationState {
    return this.#configuration;
  }

  begin(call: Call): CallRecord {
    return new RunningCallRecord(call, this.#reporters);
  }

  /** It is known what limits would have done with a call that was only observed. */
  reckoned(workspaceId: string, upstream: string, reckoned: Reckoned): void {
    this.#guard(() => {
      const by = { workspace: this.labels.of(workspaceId), upstream };
      const refusedFor = reckoned.kind === 'refuse' ? reckoned.code : null;
      // All begin with the first call, so that the first increase of each is seen.
      for (const reason of limitRefusals)
        this.#metrics.count('sluice_would_refuse_total', { ...by, reason }, reason === refusedFor ? 1 : 0);
      if (refusedFor === null)
        this.#metrics.observe('sluice_would_wait_seconds', { upstream }, reckoned.waitMs);
    });
  }

  /** Its response names a request id, so it has a log line like a call of a stranger. */
  requestRefused({ requestId, method, status, code }: RefusedRequest): void {
    const receivedAt = this.#reporters.clock.monotonic();
    const call = { id: requestId, method, receivedAt, form: 'proxy', rawFields: [] } as const;
    const { signal: clientGone } = new AbortController();
    new RunningCallRecord({ ...call, clientGone }, { ...this.#reporters, tracing: null }).ended({
      outcome: refusals[code].family,
      status,
      code,
    });
  }

  limiterMode(mode: LimiterMode): void {
    if (mode !== this.#health.mode)
      this.#health = { ...this.#health, mode, modeSince: this.#reporters.clock.now() };
  }

  redisCommand(command: RedisCommand, durationMs: number): void {
    const { redisMs } = this.#health;
    const smoothed = redisMs === null ? durationMs : redisMs * 0.95 + durationMs * 0.05;
    this.#health = { ...this.#health, redisMs: smoothed };
    this.#guard(() => this.#metrics.observe('sluice_redis_command_seconds', { command }, durationMs));
  }

  /** What has no other name than its counter. */
  count(name: CounterName, labels: Readonly<Record<string, string>> = {}): void {
    this.#guard(() => this.#metrics.count(name, labels));
  }

  /** Where gauges read from; the last one given counts. */
  observe(source: typeof nothingKnown): void {
    this.#source = source;
  }

  /** Pressure per configured upstream, this replica. */
  live(): readonly LivePressure[] {
    const now = this.#reporters.clock.monotonic();
    const shown = this.#shown.map(({ name, kind, mode }) => {
      const none = { waiting: 0, oldestMs: 0, inFlight: 0 };
      return { upstream: name, mode, dimensions: dimensionsOfKind[kind], ...none };
    });
    const byName = new Map(shown.map((pressure) => [pressure.upstream, pressure]));
    for (const { upstream, call, isWaiting } of this.#live.values()) {
      const pressure = byName.get(upstream);
      if (pressure === undefined) continue;
      pressure[isWaiting ? 'waiting' : 'inFlight'] += 1;
      if (isWaiting) pressure.oldestMs = Math.max(pressure.oldestMs, now - call.receivedAt);
    }
    return shown;
  }

  limiterHealth(): LimiterHealth {
    return this.#health;
  }

  /** Workspaces and upstreams with calls now, how many wait and how many are in flight: this replica. Ids stay in memory. */
  lanes(): Iterable<LiveLane> {
    const lanes = new Map<string, { -readonly [Key in keyof LiveLane]: LiveLane[Key] }>();
    for (const { workspaceId, upstream, isWaiting } of this.#live.values()) {
      if (workspaceId === null) continue;
      const name = `${upstream} ${workspaceId}`;
      const lane = lanes.get(name) ?? { workspaceId, upstream, waiting: 0, inFlight: 0 };
      lane[isWaiting ? 'waiting' : 'inFlight'] += 1;
      lanes.set(name, lane);
    }
    return lanes.values();
  }

  /** A scrape, in the plain form by default. */
  async metrics(format: MetricsFormat = 'prometheus') {
    const source = this.#source;
    const [health, configuration] = [this.#health, this.#configuration];
    const headrooms = await source.headrooms();
    return this.#metrics.page(format, { source, live: this.live(), health, configuration, headrooms });
  }

  /** Takes over new settings: how much is logged, and the upstreams that have gauges. */
  reload({ log, upstreams }: Pick<TelemetrySettings, 'log' | 'upstreams'>): void {
    this.#logger.reload(log);
    this.#shown = [...upstreams.values()];
  }

  /** Exports buffered spans. Called once, last. */
  async close(): Promise<void> {
    try {
      await this.#reporters.tracing?.close();
    } catch (cause) {
      this.log.bug('the last traces could not be exported', cause);
    }
  }

  /** Nothing that goes wrong here may touch a call. */
  #guard(run: () => void): void {
    try {
      run();
    } catch (cause) {
      this.#failed(cause);
    }
  }

  #failed(cause: unknown): void {
    // A bug here would repeat for every call: one line is enough to find it.
    if (!this.#isFailureReported) this.log.bug('telemetry failed; reported once', cause);
    this.#isFailureReported = true;
  }
}
