/**
 * Follows one call: fans the facts of its journey out to metrics, log, spans and listeners. Owns the order-independent
 * clean-up (a call that ends anywhere leaves no gauge raised and no span open); its times are in `call-times.ts`, its
 * part of the gauges in `live-call.ts`. Never throws: telemetry is not worth a call; each step catches for itself,
 * because this is on every call's path and a shared wrapper would make an object per step.
 */
import type { Call, Caller, Throttle } from '../call.ts';
import type { RefusalCode } from '../errors.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { LaneKey } from '../ids.ts';
import type { Clock } from '../clock.ts';
import type { CallEnd, CallTelemetry, EndedFact, FactSink } from './events.ts';
import type { CallSpans } from './spans.ts';
import type { CallLogger } from './logger.ts';
import type { Metrics, UpstreamSeries } from './metrics.ts';
import { noneLabel, type Labels } from './labels.ts';
import { CallTimes } from './call-times.ts';
import type { Live } from './live.ts';
import { LiveCall } from './live-call.ts';

/** Everything a followed call reports to, shared by all calls. */
export interface CallReporters {
  readonly clock: Clock;
  readonly metrics: Metrics;
  readonly logger: CallLogger;
  readonly labels: Labels;
  readonly live: Live;
  readonly sinks: readonly FactSink[];
  /** Told about a bug in telemetry itself. */
  readonly failed: (cause: unknown) => void;
}

export class ObservedCall implements CallTelemetry {
  readonly traceId: string | null;
  readonly #to: CallReporters;
  readonly #call: Call;
  readonly #spans: CallSpans | null;
  readonly #times: CallTimes;
  readonly #live: LiveCall;
  #workspaceId: string | null = null;
  #upstream: string = noneLabel;
  #histograms: UpstreamSeries | null = null;
  #attempts = 0;
  #absorbed = 0;
  #over = false;

  constructor(call: Call, reporters: CallReporters, spans: CallSpans | null) {
    this.#to = reporters;
    this.#call = call;
    this.#spans = spans;
    this.#times = new CallTimes(call.receivedAt);
    this.#live = new LiveCall(call, reporters.live);
    this.traceId = spans?.traceId ?? null;
  }

  identified(caller: Caller): void {
    try {
      this.#workspaceId = caller.workspace.id;
      this.#spans?.identified(this.#label());
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  routed(upstream: UpstreamSettings): void {
    try {
      this.#upstream = upstream.name;
      this.#live.route(upstream.name);
      this.#histograms = this.#to.metrics.upstream(upstream.name);
      if (this.#workspaceId !== null && !this.#over) this.#live.enterLane(this.#workspaceId, upstream.name);
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
      const heard = this.#heardAs();
      if (heard !== null) for (const sink of this.#to.sinks) sink.arrived(heard, this.#upstream, now);
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
      this.#landed();
      if (this.#call.clientGone.aborted) this.#to.metrics.sentAfterClientGone();
      this.#attempts += 1;
      this.#times.sent(this.#now());
      this.#live.takeOff();
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

  answered(status: number, throttle: Throttle | null): void {
    try {
      this.#headTime();
      this.#spans?.answered(status, throttle?.kind ?? null);
      if (throttle === null) return;
      const kind = throttle.kind === 'permanent' ? 'permanent' : 'rate';
      this.#series().throttled(kind);
      const heard = this.#heardAs();
      if (heard !== null) for (const sink of this.#to.sinks) sink.throttled(heard, this.#upstream, kind);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  absorbed(): void {
    try {
      this.#landed();
      this.#absorbed += 1;
      this.#series().absorbed();
      const heard = this.#heardAs();
      if (heard !== null) for (const sink of this.#to.sinks) sink.absorbed(heard, this.#upstream);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  attemptFailed(error: RefusalCode | 'client_gone' | 'reset'): void {
    try {
      this.#headTime();
      this.#spans?.attemptFailed(error);
      this.#landed();
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
      this.#landed();
      this.#live.leaveLane();
      this.#report(end);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  #report(end: CallEnd): void {
    const { logger } = this.#to;
    const now = this.#now();
    const durationMs = now - this.#times.receivedAt;
    const waitedMs = end.admission?.waitedMs ?? this.#times.heldMs;
    const overheadMs = this.#times.overhead(now);
    const series = this.#series();
    series.ended(end.outcome);
    if (end.outcome === 'shed' && end.code !== null) series.shed(end.code);
    if (this.#times.admitting) {
      const histograms = this.#ofUpstream();
      histograms.waited(end.outcome, waitedMs / 1000, this.traceId);
      histograms.overhead(overheadMs / 1000, this.traceId);
    }
    const attempts = end.admission?.attempts ?? this.#attempts;
    const absorbed = end.admission?.absorbed ?? this.#absorbed;
    this.#spans?.ended(end, { waitedMs, attempts, absorbed });
    const { outcome, status, code } = end;
    if (logger.wants(outcome))
      logger.call({
        requestId: this.#call.id,
        workspace: this.#label(),
        upstream: this.#upstream,
        method: this.#call.method,
        outcome,
        status,
        code,
        heldBy: end.heldBy ?? null,
        waitedMs,
        attempts,
        absorbed,
        upstreamMs: this.#times.upstreamMs,
        overheadMs,
        durationMs,
        traceId: this.traceId,
      });
    const heard = this.#heardAs();
    if (heard === null) return;
    const fact: EndedFact = { outcome, code, waitedMs, attempts, absorbed, durationMs };
    for (const sink of this.#to.sinks) sink.ended(heard, this.#upstream, fact);
  }

  #now(): number {
    return this.#to.clock.monotonic();
  }

  /** Closes the time of the attempt in flight, once. */
  #headTime(): void {
    const ms = this.#times.head(this.#now());
    if (ms !== null) this.#ofUpstream().upstream(ms / 1000, this.traceId);
  }

  #leaveLine(): void {
    if (!this.#times.waiting) return;
    this.#times.left(this.#now());
    this.#live.leaveLine();
    this.#spans?.left();
  }

  /** The attempt in flight is over. */
  #landed(): void {
    if (this.#live.land()) this.#spans?.landed();
  }

  #label(): string {
    return this.#workspaceId === null ? noneLabel : this.#to.labels.of(this.#workspaceId);
  }

  /** Histograms of an upstream stay; they may be kept. */
  #ofUpstream(): UpstreamSeries {
    return this.#histograms ?? this.#to.metrics.upstream(this.#upstream);
  }

  /** Looked up per fact, not kept: a label may have been taken back while the call waited. */
  #series() {
    return this.#to.metrics.workspace(this.#label(), this.#upstream);
  }

  /** Workspace under which listeners hear of this call, or `null` while it has none or no route. */
  #heardAs(): string | null {
    return this.#live.routed ? this.#workspaceId : null;
  }
}
