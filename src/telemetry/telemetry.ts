/**
 * Telemetry as it runs: the one place where metrics, log, spans and listeners meet. Owns no fact and no number.
 */
import type { DestinationStream } from 'pino';
import type { Call } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import type { OverloadBound, RefusalCode } from '../errors.ts';
import {
  idleProcess,
  type CallTelemetry,
  type FactSink,
  type LeaseLostReason,
  type LimiterHealth,
  type LimiterMode,
  type LivePressure,
  type PressureSource,
  type RedisCommand,
  type RedisErrorKind,
  type RenewalOutcome,
  type Telemetry,
} from './events.ts';
import { createLabels, noneLabel, type Labels } from './labels.ts';
import { Live, type FollowedLane } from './live.ts';
import { createLogger, type CallLogger } from './logger.ts';
import { Metrics, type MetricsFormat, type MetricsOptions, type MetricsPage } from './metrics.ts';
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

/** Parts of the settings that telemetry reads; the label key holds for the life of the process. */
export interface TelemetrySettings extends Pick<Settings, 'log' | 'upstreams'> {
  readonly privacy: Pick<Settings['privacy'], 'labelKey'>;
}

const nothingKnown: PressureSource = {
  process: () => idleProcess,
  buckets: () => [],
  breakers: () => [],
  credentials: () => [],
};

export class RunningTelemetry implements Telemetry {
  readonly #clock: Clock;
  readonly #live = new Live();
  readonly #metrics: Metrics;
  readonly #labels: Labels;
  readonly #logger: CallLogger;
  readonly #tracing: Tracing | null;
  readonly #reporters: CallReporters;
  /** What only the gateway knows; given once it exists. */
  #source = nothingKnown;
  readonly #health: { -readonly [K in keyof LimiterHealth]: LimiterHealth[K] } = {
    mode: null,
    redisErrors: 0,
    leasesLost: 0,
    redisMs: null,
  };
  #isFailureReported = false;

  constructor(settings: TelemetrySettings, parts: TelemetryParts) {
    const { clock } = parts;
    this.#clock = clock;
    this.#metrics = new Metrics(
      {
        process: () => this.#source.process(),
        buckets: () => this.#source.buckets(),
        breakers: (upstream) => this.#source.breakers(upstream),
        live: () => this.live(),
        credentials: () => this.#source.credentials(),
      },
      parts.metrics,
    );
    this.#labels = createLabels(settings.privacy.labelKey, clock, {
      onRelease: (label) => this.#metrics.release(label),
    });
    this.#logger = createLogger(settings.log, parts);
    this.#tracing = parts.tracing ?? null;
    this.#reporters = {
      clock,
      metrics: this.#metrics,
      logger: this.#logger,
      labels: this.#labels,
      live: this.#live,
      tracing: parts.tracing ?? null,
      sinks: parts.sinks ?? [],
      failed: (cause) => this.#failed(cause),
    };
    this.configured(settings.upstreams.values());
  }

  get log(): Telemetry['log'] {
    return this.#logger.log;
  }

  begin(call: Call): CallTelemetry {
    return new ObservedCall(call, this.#reporters);
  }

  requestRefused(code: RefusalCode): void {
    this.#guard(() => {
      const by = { workspace: noneLabel, upstream: noneLabel };
      this.#metrics.callEnded(by, outcomeOfRefusal(code), code);
    });
  }

  overloaded(bound: OverloadBound): void {
    this.#guard(() => this.#metrics.instruments.overloads.inc({ bound }));
  }

  shedding(cause: OverloadBound | null): void {
    if (cause === null) this.log.info('new calls are let in again');
    else this.log.warn('new calls are refused in part: the process is overloaded', { bound: cause });
  }

  limiterMode(mode: LimiterMode): void {
    this.#health.mode = mode;
    this.#guard(() => this.#metrics.limiterMode(mode));
  }

  redisCommand(command: RedisCommand, durationMs: number): void {
    const { redisMs } = this.#health;
    this.#health.redisMs = redisMs === null ? durationMs : redisMs * 0.95 + durationMs * 0.05;
    this.#guard(() =>
      this.#metrics.instruments.redisTime.observe({ labels: { command }, value: durationMs / 1000 }),
    );
  }

  redisError(kind: RedisErrorKind): void {
    this.#health.redisErrors += 1;
    this.#guard(() => this.#metrics.instruments.redisErrors.inc({ kind }));
  }

  leaseLost(reason: LeaseLostReason): void {
    this.#health.leasesLost += 1;
    this.#guard(() => this.#metrics.instruments.leasesLost.inc({ reason }));
  }

  refusedAgain(upstream: string): void {
    this.#guard(() => this.#metrics.instruments.refusedAgain.inc({ upstream }));
  }

  madeAgain(upstream: string): void {
    this.#guard(() => this.#metrics.instruments.madeAgain.inc({ upstream }));
  }

  joined(upstream: string): void {
    this.#guard(() => this.#metrics.instruments.joins.inc({ upstream }));
  }

  replayed(upstream: string): void {
    this.#guard(() => this.#metrics.instruments.replays.inc({ upstream }));
  }

  credentialRenewal(upstream: string, outcome: RenewalOutcome): void {
    this.#guard(() => this.#metrics.credentialRenewal(upstream, outcome));
  }

  configured(upstreams: Iterable<UpstreamSettings>): void {
    this.#live.configured(upstreams);
  }

  observe(source: PressureSource): void {
    this.#source = source;
  }

  live(): readonly LivePressure[] {
    return this.#live.read(this.#clock.monotonic());
  }

  limiterHealth(): LimiterHealth {
    return { ...this.#health };
  }

  labelOf(workspaceId: string): string {
    return this.#labels.peek(workspaceId);
  }

  /** Gives labels to workspaces that are clearly busier than some that hold one; see `labels.ts`. */
  preferLabels(busy: ReadonlyMap<string, number>): void {
    this.#labels.prefer(busy);
  }

  /** Workspaces that are shown under a label of their own now. Ids stay in memory. */
  labelled(): Iterable<string> {
    return this.#labels.holders();
  }

  isLabelled(workspaceId: string): boolean {
    return this.#labels.holds(workspaceId);
  }

  /** Workspaces and upstreams with calls now, how many wait and how many are in flight: this replica. Ids stay in memory. */
  lanes(): Iterable<FollowedLane> {
    return this.#live.lanes();
  }

  /** A scrape, in the plain form by default. */
  metrics(format: MetricsFormat = 'prometheus'): Promise<MetricsPage> {
    return this.#metrics.page(format);
  }

  /** Takes over new log settings. */
  reconfigure({ log }: Pick<TelemetrySettings, 'log'>): void {
    this.#logger.configure(log);
  }

  /** Exports buffered spans. Called once, last. */
  async close(): Promise<void> {
    await this.#tracing?.close();
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
