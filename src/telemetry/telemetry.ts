/**
 * The one place where metrics, log, spans and listeners meet: everything that the rest of the product reports, and what it asks of it.
 * No method throws or blocks, and none takes a value that must not be seen outside (a workspace is shown under its label only).
 */
import type { DestinationStream } from 'pino';
import type { Call, Reckoned } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import { refusals, type OverloadBound } from '../errors.ts';
import { RunningCallRecord, type CallRecord, type CallReporters } from './call-record.ts';
import {
  knownMethods,
  nothingKnown,
  type ConfigurationState,
  type FactSink,
  type LeaseLostReason,
  type LimiterHealth,
  type LimiterMode,
  type LivePressure,
  type Log,
  type PressureSource,
  type RedisCommand,
  type RedisErrorKind,
  type RefusedRequest,
  type RenewalOutcome,
} from './events.ts';
import { createLabels, noneLabel, type Labels } from './labels.ts';
import { Live, type LiveLane } from './live.ts';
import { CallLogger, type LoggerParts } from './logger.ts';
import {
  Metrics,
  type CounterName,
  type MetricsFormat,
  type MetricsOptions,
  type MetricsPage,
} from './metrics.ts';
import type { Tracing } from './spans.ts';

/** What the parts of the gateway report to. */
export type Telemetry = Omit<RunningTelemetry, 'labels' | 'lanes' | 'metrics' | 'close'>;

export interface TelemetryParts {
  readonly clock: Clock;
  readonly random: Random;
  /** Where log lines go, one JSON object per `write`. */
  readonly destination: DestinationStream;
  /** Spans, when an exporter is configured (`startTracing`). */
  readonly tracing?: Tracing | null;
  /** Hears of calls as they go; `null` = nobody does. */
  readonly activity?: FactSink | null;
  /** As in {@link LoggerParts}. */
  readonly listeners?: NonNullable<LoggerParts['listeners']>;
  readonly metrics?: MetricsOptions;
}

/** Parts of the settings that telemetry reads; the label key holds for the life of the process. */
export interface TelemetrySettings extends Pick<Settings, 'log' | 'upstreams'> {
  readonly privacy: Pick<Settings['privacy'], 'labelKey'>;
}

export class RunningTelemetry {
  /** Log lines that are not about a call. */
  readonly log: Log;
  /** Labels of workspaces, and which of them are shown under a label of their own. */
  readonly labels: Labels;
  readonly #live = new Live();
  readonly #metrics: Metrics;
  readonly #logger: CallLogger;
  readonly #reporters: CallReporters;
  /** What only the gateway knows; given once it exists. */
  #source = nothingKnown;
  #health: LimiterHealth = { mode: null, modeSince: 0, redisMs: null };
  #configuration: ConfigurationState = { inForceSince: 0, refused: null };
  #isFailureReported = false;

  constructor(settings: TelemetrySettings, parts: TelemetryParts) {
    const { clock, tracing = null, activity = null } = parts;
    const live = this.#live;
    const metrics = new Metrics(parts.metrics);
    const labels = createLabels(settings.privacy.labelKey, clock, {
      onRelease: (label) => metrics.release(label),
    });
    const logger = new CallLogger(settings.log, parts);
    this.#metrics = metrics;
    this.labels = labels;
    this.#logger = logger;
    this.log = logger.log;
    const failed = (cause: unknown): void => this.#failed(cause);
    this.#reporters = { clock, metrics, labels, live, logger, tracing, activity, failed };
    live.reload(settings);
    this.configurationRead('in use');
  }

  /** A configuration was read now and is in use, or was refused for problems in these lines. */
  configurationRead(result: 'in use' | 'refused', lines: readonly number[] = []): void {
    const now = this.#reporters.clock.now();
    const { inForceSince } = this.#configuration;
    this.#configuration =
      result === 'in use'
        ? { inForceSince: now, refused: null }
        : { inForceSince, refused: { at: now, lines } };
  }

  /** Since when the settings in use hold, and what was refused since then. */
  configuration(): ConfigurationState {
    return this.#configuration;
  }

  begin(call: Call): CallRecord {
    return new RunningCallRecord(call, this.#reporters);
  }

  /** It is known what limits would have done with a call that was only observed. `told`: the forecast in its line; `null` = it has none. */
  reckoned(
    call: { readonly requestId: string; readonly workspaceId: string; readonly upstream: string },
    reckoned: Reckoned,
    told: Reckoned | null = null,
  ): void {
    this.#guard(() => {
      const by = { workspace: this.labels.of(call.workspaceId), upstream: call.upstream };
      this.#metrics.begin(by, 'sluice_would_refuse_total');
      if (reckoned.kind === 'refuse')
        this.count('sluice_would_refuse_total', { ...by, reason: reckoned.code });
      else this.#metrics.observe('sluice_would_wait_seconds', { upstream: call.upstream }, reckoned.waitMs);
      if (told === null || !differs(told, reckoned)) return;
      const would = { would: reckoned.kind, wouldWaitMs: Math.round(reckoned.waitMs) };
      this.#logger.forecastMissed({ requestId: call.requestId, ...by, ...would });
    });
  }

  /** Its response names a request id, so it has a log line like a call of a stranger. */
  requestRefused({ requestId, method, status, code }: RefusedRequest): void {
    const by = { workspace: noneLabel, upstream: noneLabel };
    const outcome = refusals[code].family;
    this.#guard(() => {
      this.#metrics.callEnded(by, outcome, code);
      const isWritten = this.#logger.callEnded(outcome, false, () => ({
        requestId,
        ...by,
        method: knownMethods.has(method) ? method : 'other',
        outcome,
        status,
        code,
        heldBy: null,
        reason: null,
        waitedMs: 0,
        attempts: 0,
        absorbed: 0,
        upstreamMs: 0,
        overheadMs: 0,
        durationMs: 0,
        traceId: null,
      }));
      if (!isWritten) this.#metrics.count('sluice_log_lines_left_out_total');
    });
  }

  /** A call, or a connection, was refused because of this bound. */
  overloaded(bound: OverloadBound): void {
    this.count('sluice_overload_total', { bound });
  }

  /** Calls are refused for this load from now on; `null`: no longer. */
  shedding(cause: OverloadBound | null): void {
    if (cause === null) this.log.info('new calls are let in again');
    else this.log.warn('new calls are refused in part: the process is overloaded', { bound: cause });
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

  redisError(kind: RedisErrorKind): void {
    this.count('sluice_redis_errors_total', { kind });
  }

  leaseLost(reason: LeaseLostReason): void {
    this.count('sluice_leases_lost_total', { reason });
  }

  /** A call was made again for its repeat: the replica that had made it is gone, or Redis had lost its claim. */
  madeAgain(upstream: string): void {
    this.count('sluice_repeats_made_again_total', { upstream });
  }

  /** A client waits for the response of an equal call under way, or has got it from another replica. */
  joined(upstream: string): void {
    this.count('sluice_repeats_joined_total', { upstream });
  }

  /** A client got a response that had been kept from an earlier call with the same key. */
  replayed(upstream: string): void {
    this.count('sluice_idempotent_replays_total', { upstream });
  }

  /** A credential of the upstream that can change was renewed, or could not be. */
  credentialRenewal(upstream: string, outcome: RenewalOutcome): void {
    this.count('sluice_credential_renewals_total', { upstream, outcome });
  }

  /** Where gauges read from; the last one given counts. */
  observe(source: PressureSource): void {
    this.#source = source;
  }

  /** Pressure per configured upstream, this replica. */
  live(): readonly LivePressure[] {
    return this.#live.read(this.#reporters.clock.monotonic());
  }

  limiterHealth(): LimiterHealth {
    return this.#health;
  }

  /** Workspaces and upstreams with calls now, how many wait and how many are in flight: this replica. Ids stay in memory. */
  lanes(): Iterable<LiveLane> {
    return this.#live.lanes();
  }

  /** A scrape, in the plain form by default. */
  async metrics(format: MetricsFormat = 'prometheus'): Promise<MetricsPage> {
    const headrooms = await this.#source.headrooms();
    return this.#metrics.page(format, {
      source: this.#source,
      live: this.live(),
      health: this.#health,
      configuration: this.#configuration,
      headrooms,
    });
  }

  /** Takes over new settings: how much is logged, and the upstreams that have gauges. */
  reload(settings: Pick<TelemetrySettings, 'log' | 'upstreams'>): void {
    this.#logger.reload(settings.log);
    this.#live.reload(settings);
  }

  /** Exports buffered spans. Called once, last. */
  async close(): Promise<void> {
    try {
      await this.#reporters.tracing?.close();
    } catch (cause) {
      this.log.bug('the last traces could not be exported', cause);
    }
  }

  count(name: CounterName, labels: Readonly<Record<string, string>> = {}): void {
    this.#guard(() => this.#metrics.count(name, labels));
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

/** A tenth and 150 ms apart, or one of them a refusal. */
const differs = (told: Reckoned, reckoned: Reckoned): boolean =>
  (told.kind === 'refuse') !== (reckoned.kind === 'refuse') ||
  Math.abs(told.waitMs - reckoned.waitMs) > Math.max(150, reckoned.waitMs / 10);
