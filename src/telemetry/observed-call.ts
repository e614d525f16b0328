/**
 * Follows one call: fans the facts of its journey out to metrics, log, spans and listeners. Owns the order-independent clean-up (a call
 * that ends anywhere leaves no gauge raised and no span open). No method throws, because a fault of telemetry must not end a call. Each
 * step has its own `catch`: a shared wrapper would create an object per step on the path of every call.
 */
import type { Call, Caller, Throttle } from '../call.ts';
import type { FailureReason, RefusalCode } from '../errors.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { LaneKey } from '../ids.ts';
import type { Clock } from '../clock.ts';
import type { CallEnd, CallTelemetry } from './events.ts';
import type { CallSpans, Tracing } from './spans.ts';
import type { CallLogger } from './logger.ts';
import { CallSeries, type SeriesOwners } from './call-series.ts';
import { CallTimes } from './call-times.ts';
import type { Live } from './live.ts';
import { LiveCall } from './live-call.ts';

/** Everything a followed call reports to, shared by all calls. */
export interface CallReporters extends SeriesOwners {
  readonly clock: Clock;
  readonly logger: CallLogger;
  readonly live: Live;
  /** `null` = no call is traced. */
  readonly tracing: Tracing | null;
  /** Called with a bug in telemetry itself. */
  readonly failed: (cause: unknown) => void;
}

/** Ids of absorbed attempts that a log line names at most. */
const maxIds = 32;
const none: readonly string[] = [];

export class ObservedCall implements CallTelemetry {
  readonly #to: CallReporters;
  readonly #call: Call;
  /** They begin when it is known whose call it is, because that decides whether the call is traced. */
  #spans: CallSpans | null = null;
  #isAuthenticated = false;
  readonly #times: CallTimes;
  readonly #live: LiveCall;
  readonly #series: CallSeries;
  #attempts = 0;
  #absorbed = 0;
  /** The id that the upstream gave the attempt in flight, where that was throttled. */
  #throttledId: string | null = null;
  #absorbedIds = none;
  #reason: FailureReason | null = null;
  #over = false;

  constructor(call: Call, reporters: CallReporters) {
    this.#to = reporters;
    this.#call = call;
    this.#times = new CallTimes(call.receivedAt);
    this.#live = new LiveCall(call, reporters.live);
    this.#series = new CallSeries(reporters);
  }

  get traceId(): string | null {
    return this.#spans?.traceId ?? null;
  }

  identified(caller: Caller): void {
    try {
      this.#series.identified(caller.workspace.id);
      this.#isAuthenticated = true;
      this.#beginSpans();
      this.#spans?.identified(this.#series.label);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  routed(upstream: UpstreamSettings): void {
    try {
      this.#series.routed(upstream);
      this.#live.route(upstream.name);
      const { workspaceId } = this.#series;
      if (workspaceId !== null && !this.#over) this.#live.enterLane(workspaceId, upstream.name);
      this.#times.routed(this.#now());
      this.#spans?.routed(upstream);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  admitting(lane?: LaneKey): void {
    try {
      if (lane !== undefined) this.#spans?.entered(lane);
      const now = this.#now();
      this.#times.admission(now);
      this.#series.arrived(now);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  queued(lane: LaneKey): void {
    try {
      if (this.#over || this.#times.waiting) return;
      this.#times.queued(this.#now());
      this.#live.enterLine();
      this.#spans?.waiting(lane);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  granted(): void {
    try {
      this.#leaveLine();
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  sent(): void {
    try {
      if (this.#over) return;
      this.#leaveLine();
      this.#attemptEnded();
      if (this.#call.clientGone.aborted) this.#to.metrics.instruments.sentAfterGone.inc();
      this.#attempts += 1;
      this.#times.sent(this.#now());
      this.#live.attemptStarted();
      this.#spans?.sent(this.#attempts - 1);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  traceparent(): string | null {
    try {
      return this.#spans?.traceparent() ?? null;
    } catch (cause) {
      this.#to.failed(cause);
      return null;
    }
  }

  answered(status: number, throttle: Throttle | null, upstreamId: string | null = null): void {
    try {
      this.#headTime();
      this.#throttledId = throttle === null ? null : upstreamId;
      this.#spans?.answered(status, throttle?.kind ?? null, this.#throttledId);
      if (throttle === null) return;
      this.#series.throttled(throttle.kind === 'permanent' ? 'permanent' : 'rate');
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  absorbed(): void {
    try {
      this.#attemptEnded();
      this.#absorbed += 1;
      if (this.#throttledId !== null && this.#absorbedIds.length < maxIds) {
        this.#absorbedIds = [...this.#absorbedIds, this.#throttledId];
      }
      this.#series.absorbed();
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  attemptFailed(error: RefusalCode | 'client_gone' | 'reset', reason: FailureReason | null): void {
    try {
      this.#headTime();
      if (reason !== null) {
        this.#reason = reason;
        this.#to.metrics.instruments.failures.inc({ upstream: this.#series.upstream, reason });
      }
      this.#spans?.attemptFailed(error, reason);
      this.#attemptEnded();
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  ended(end: CallEnd): void {
    if (this.#over) return;
    this.#over = true;
    try {
      this.#headTime();
      this.#leaveLine();
      this.#attemptEnded();
      this.#live.leaveLane();
      if (!this.#isAuthenticated) this.#beginSpans();
      this.#report(end);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  #report(end: CallEnd): void {
    const now = this.#now();
    const durationMs = now - this.#times.receivedAt;
    const waitedMs = end.admission?.waitedMs ?? this.#times.heldMs;
    const overheadMs = this.#times.overhead(now);
    const { upstream } = this.#series;
    const { heldRefusals, queueWait, overhead } = this.#to.metrics.instruments;
    this.#to.metrics.callEnded(this.#series.by, end.outcome, end.code);
    const heldBy = end.heldBy ?? null;
    if (heldBy !== null) heldRefusals.inc({ upstream, held_by: heldBy });
    if (this.#times.admitting) {
      queueWait.observe({
        labels: { upstream, outcome: end.outcome },
        value: waitedMs / 1000,
        ...this.#exemplar(),
      });
      overhead.observe({ labels: { upstream }, value: overheadMs / 1000, ...this.#exemplar() });
    }
    const attempts = end.admission?.attempts ?? this.#attempts;
    const absorbed = end.admission?.absorbed ?? this.#absorbed;
    this.#spans?.ended(end, { waitedMs, attempts, absorbed });
    const { outcome, status, code } = end;
    if (this.#to.logger.wants(outcome)) {
      const line = this.#isAuthenticated ? { leftOut: 0 } : this.#to.logger.lineOfStranger();
      if (line === null) this.#to.metrics.instruments.logLinesLeftOut.inc();
      else
        this.#to.logger.call({
          leftOut: line.leftOut,
          requestId: this.#call.id,
          workspace: this.#series.label,
          upstream: this.#series.upstream,
          method: this.#call.method,
          outcome,
          status,
          code,
          heldBy,
          reason: this.#reason,
          waitedMs,
          attempts,
          absorbed,
          absorbedIds: this.#absorbedIds,
          upstreamMs: this.#times.upstreamMs,
          overheadMs,
          durationMs,
          traceId: this.traceId,
        });
    }
    this.#series.ended({ outcome, code, heldBy, waitedMs, attempts, absorbed, durationMs });
  }

  #exemplar(): { readonly exemplarLabels?: { readonly trace_id: string } } {
    return this.traceId === null ? {} : { exemplarLabels: { trace_id: this.traceId } };
  }

  #beginSpans(): void {
    const { tracing, clock } = this.#to;
    if (tracing === null) return;
    const startedAt = clock.now() - (clock.monotonic() - this.#call.receivedAt);
    this.#spans = tracing.begin(this.#call, { isAuthenticated: this.#isAuthenticated, startedAt });
  }

  #now(): number {
    return this.#to.clock.monotonic();
  }

  /** Closes the time of the attempt in flight, once. */
  #headTime(): void {
    if (!this.#times.sending) return;
    const ms = this.#times.head(this.#now());
    if (ms === null) return;
    const { upstream } = this.#series;
    this.#to.metrics.instruments.upstreamTime.observe({
      labels: { upstream },
      value: ms / 1000,
      ...this.#exemplar(),
    });
  }

  #leaveLine(): void {
    if (!this.#times.waiting) return;
    this.#times.left(this.#now());
    this.#live.leaveLine();
    this.#spans?.waitEnded();
  }

  /** The attempt in flight has ended, if there was one. */
  #attemptEnded(): void {
    if (this.#live.attemptEnded()) this.#spans?.attemptEnded();
  }
}
