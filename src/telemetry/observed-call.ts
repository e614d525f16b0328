/**
 * Follows one call: turns the facts of its journey into times, and fans them out. Owns the order-independent clean-up
 * (a call that ends anywhere leaves no gauge raised and no span open). Never throws: telemetry is not worth a call; each
 * step catches for itself, because this is on every call's path and a shared wrapper would make an object per step.
 *
 * Durations: overhead = (route decided − received) + (head answered − admission began) − held − upstream. Reading the
 * request body lies between the two and counts as nobody's.
 */
import type { Call, Caller, Throttle } from '../call.ts';
import type { RefusalCode } from '../errors.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { LaneKey } from '../limiter/limiter.ts';
import type { Clock } from '../clock.ts';
import type { CallEnd, CallTelemetry, EndedFact, FactSink } from './events.ts';
import type { CallSpans } from './spans.ts';
import type { CallLogger } from './logger.ts';
import type { Metrics, UpstreamSeries } from './metrics.ts';
import { noneLabel, type Labels } from './labels.ts';
import type { FollowedLane, Live, LiveUpstream } from './live.ts';

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
  #workspaceId: string | null = null;
  #upstream: string = noneLabel;
  #live: LiveUpstream | null = null;
  #lane: FollowedLane | null = null;
  #times: UpstreamSeries | null = null;
  #routedAt: number;
  #admittingAt: number | null = null;
  #queuedAt: number | null = null;
  #sentAt: number | null = null;
  #firstHeadAt: number | null = null;
  #inFlight = false;
  #waitedMs = 0;
  #upstreamMs = 0;
  #attempts = 0;
  #absorbed = 0;
  #over = false;

  constructor(call: Call, reporters: CallReporters, spans: CallSpans | null) {
    this.#to = reporters;
    this.#call = call;
    this.#spans = spans;
    this.#routedAt = call.receivedAt;
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
      this.#live = this.#to.live.of(upstream.name);
      this.#times = this.#to.metrics.upstream(upstream.name);
      if (this.#workspaceId !== null && !this.#over) this.#enterLane(this.#workspaceId);
      this.#routedAt = this.#to.clock.monotonic();
      this.#spans?.routed(upstream);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  admitting(lane?: LaneKey): void {
    try {
      if (lane !== undefined) this.#spans?.entered(lane);
      const now = this.#to.clock.monotonic();
      this.#admittingAt = now;
      const heard = this.#heardAs();
      if (heard !== null) for (const sink of this.#to.sinks) sink.arrived(heard, this.#upstream, now);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  queued(lane: LaneKey): void {
    try {
      if (this.#over || this.#queuedAt !== null) return;
      this.#queuedAt = this.#to.clock.monotonic();
      this.#live?.waiting.set(this.#call.id, this.#call.receivedAt);
      if (this.#lane !== null) this.#lane.waiting += 1;
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
      this.#sentAt = this.#to.clock.monotonic();
      this.#inFlight = true;
      if (this.#live !== null) this.#live.inFlight += 1;
      if (this.#lane !== null) this.#lane.inFlight += 1;
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
      this.#leaveLane();
      this.#report(end);
    } catch (cause) {
      this.#to.failed(cause);
    }
  }

  #report(end: CallEnd): void {
    const { logger, clock } = this.#to;
    const now = clock.monotonic();
    const durationMs = now - this.#call.receivedAt;
    const waitedMs = end.admission?.waitedMs ?? this.#waitedMs;
    const overheadMs = this.#overhead(now);
    const series = this.#series();
    series.ended(end.outcome);
    if (end.outcome === 'shed' && end.code !== null) series.shed(end.code);
    if (this.#admittingAt !== null) {
      const times = this.#ofUpstream();
      times.waited(end.outcome, waitedMs / 1000, this.traceId);
      times.overhead(overheadMs / 1000, this.traceId);
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
        waitedMs,
        attempts,
        absorbed,
        upstreamMs: this.#upstreamMs,
        overheadMs,
        durationMs,
        traceId: this.traceId,
      });
    const heard = this.#heardAs();
    if (heard === null) return;
    const fact: EndedFact = { outcome, code, waitedMs, attempts, absorbed, durationMs };
    for (const sink of this.#to.sinks) sink.ended(heard, this.#upstream, fact);
  }

  /** Our own share of the time until the final head (or the end, when there was none). */
  #overhead(now: number): number {
    const before = this.#routedAt - this.#call.receivedAt;
    if (this.#admittingAt === null) return Math.max(0, before);
    const until = this.#firstHeadAt ?? now;
    return Math.max(0, before + until - this.#admittingAt - this.#waitedMs - this.#upstreamMs);
  }

  /** Closes the time of the attempt in flight, once. */
  #headTime(): void {
    if (this.#sentAt === null) return;
    const now = this.#to.clock.monotonic();
    const ms = now - this.#sentAt;
    this.#sentAt = null;
    this.#upstreamMs += ms;
    this.#firstHeadAt = now;
    this.#ofUpstream().upstream(ms / 1000, this.traceId);
  }

  #leaveLine(): void {
    if (this.#queuedAt === null) return;
    this.#waitedMs += this.#to.clock.monotonic() - this.#queuedAt;
    this.#queuedAt = null;
    this.#live?.waiting.delete(this.#call.id);
    if (this.#lane !== null) this.#lane.waiting -= 1;
    this.#spans?.left();
  }

  /** The attempt in flight is over. */
  #landed(): void {
    if (!this.#inFlight) return;
    this.#inFlight = false;
    if (this.#live !== null) this.#live.inFlight -= 1;
    if (this.#lane !== null) this.#lane.inFlight -= 1;
    this.#spans?.landed();
  }

  #enterLane(workspaceId: string): void {
    this.#leaveLane();
    this.#lane = this.#to.live.enter(workspaceId, this.#upstream);
  }

  #leaveLane(): void {
    if (this.#lane === null) return;
    this.#to.live.leave(this.#lane);
    this.#lane = null;
  }

  #label(): string {
    return this.#workspaceId === null ? noneLabel : this.#to.labels.of(this.#workspaceId);
  }

  /** Histograms of an upstream stay; they may be kept. */
  #ofUpstream(): UpstreamSeries {
    return this.#times ?? this.#to.metrics.upstream(this.#upstream);
  }

  /** Looked up per fact, not kept: a label may have been taken back while the call waited. */
  #series() {
    return this.#to.metrics.workspace(this.#label(), this.#upstream);
  }

  /** Workspace under which listeners hear of this call, or `null` while it has none or no route. */
  #heardAs(): string | null {
    return this.#live === null ? null : this.#workspaceId;
  }
}
