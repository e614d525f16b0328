/**
 * Follows one call: turns the facts of its journey into times, and fans them out. Owns the order-independent clean-up
 * (a call that ends anywhere leaves no gauge raised and no span open). Never throws: telemetry is not worth a call.
 *
 * Durations: overhead = (route decided − received) + (head answered − admission began) − held − upstream. Reading the
 * request body lies between the two and counts as nobody's.
 */
import type { Call, Caller, Throttle } from '../call.ts';
import type { RefusalCode } from '../errors.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { LaneKey } from '../limiter/limiter.ts';
import type { Clock } from '../clock.ts';
import type { CallEnd, CallTelemetry, FactSink } from './events.ts';
import type { CallSpans } from './spans.ts';
import type { CallLogger } from './logger.ts';
import type { Metrics } from './metrics.ts';
import { noneLabel, type Labels } from './labels.ts';
import type { LaneLive, Live, LiveUpstream } from './live.ts';

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
    this.#safely(() => {
      this.#workspaceId = caller.workspace.id;
      this.#spans?.identified(this.#label());
    });
  }

  routed(upstream: UpstreamSettings): void {
    this.#safely(() => {
      this.#upstream = upstream.name;
      this.#live = this.#to.live.of(upstream.name);
      this.#routedAt = this.#to.clock.monotonic();
      this.#spans?.routed(upstream);
    });
  }

  admitting(lane?: LaneKey): void {
    this.#safely(() => {
      if (lane !== undefined) this.#spans?.entered(lane);
      this.#admittingAt = this.#to.clock.monotonic();
      this.#tell((sink, id) => sink.arrived(id, this.#upstream, this.#admittingAt ?? 0));
    });
  }

  queued(lane: LaneKey): void {
    this.#safely(() => {
      if (this.#over || this.#queuedAt !== null) return;
      this.#queuedAt = this.#to.clock.monotonic();
      this.#live?.waiting.set(this.#call.id, this.#call.receivedAt);
      this.#lane({ waiting: 1 });
      this.#spans?.waiting(lane);
    });
  }

  granted(): void {
    this.#safely(() => this.#leaveLine());
  }

  sent(): void {
    this.#safely(() => {
      if (this.#over) return;
      this.#leaveLine();
      this.#landed();
      if (this.#call.clientGone.aborted) this.#to.metrics.sentAfterClientGone();
      this.#attempts += 1;
      this.#sentAt = this.#to.clock.monotonic();
      this.#inFlight = true;
      if (this.#live !== null) this.#live.inFlight += 1;
      this.#lane({ inFlight: 1 });
      this.#spans?.sent(this.#attempts - 1);
    });
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
    this.#safely(() => {
      this.#headTime();
      this.#spans?.answered(status, throttle?.kind ?? null);
      if (throttle === null) return;
      const kind = throttle.kind === 'permanent' ? 'permanent' : 'rate';
      this.#series().throttled(kind);
      this.#tell((sink, id) => sink.throttled(id, this.#upstream, kind));
    });
  }

  absorbed(): void {
    this.#safely(() => {
      this.#landed();
      this.#absorbed += 1;
      this.#series().absorbed();
      this.#tell((sink, id) => sink.absorbed(id, this.#upstream));
    });
  }

  attemptFailed(error: RefusalCode | 'client_gone' | 'reset'): void {
    this.#safely(() => {
      this.#headTime();
      this.#spans?.attemptFailed(error);
      this.#landed();
    });
  }

  ended(end: CallEnd): void {
    if (this.#over) return;
    this.#over = true;
    this.#safely(() => {
      this.#headTime();
      this.#leaveLine();
      this.#landed();
      this.#report(end);
    });
  }

  #report(end: CallEnd): void {
    const { metrics, logger, clock } = this.#to;
    const now = clock.monotonic();
    const durationMs = now - this.#call.receivedAt;
    const waitedMs = end.admission?.waitedMs ?? this.#waitedMs;
    const overheadMs = this.#overhead(now);
    const series = this.#series();
    series.ended(end.outcome);
    if (end.outcome === 'shed' && end.code !== null) series.shed(end.code);
    if (this.#admittingAt !== null) {
      const upstream = metrics.upstream(this.#upstream);
      upstream.waited(end.outcome, waitedMs / 1000, this.traceId);
      upstream.overhead(overheadMs / 1000, this.traceId);
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
    this.#tell((sink, id) =>
      sink.ended(id, this.#upstream, { outcome, code, waitedMs, attempts, absorbed, durationMs }),
    );
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
    this.#to.metrics.upstream(this.#upstream).upstream(ms / 1000, this.traceId);
  }

  #leaveLine(): void {
    if (this.#queuedAt === null) return;
    this.#waitedMs += this.#to.clock.monotonic() - this.#queuedAt;
    this.#queuedAt = null;
    this.#live?.waiting.delete(this.#call.id);
    this.#lane({ waiting: -1 });
    this.#spans?.left();
  }

  /** The attempt in flight is over. */
  #landed(): void {
    if (!this.#inFlight) return;
    this.#inFlight = false;
    if (this.#live !== null) this.#live.inFlight -= 1;
    this.#lane({ inFlight: -1 });
    this.#spans?.landed();
  }

  #lane(change: Partial<LaneLive>): void {
    if (this.#workspaceId !== null) this.#to.live.lane(this.#workspaceId, this.#upstream, change);
  }

  #label(): string {
    return this.#workspaceId === null ? noneLabel : this.#to.labels.of(this.#workspaceId);
  }

  /** Looked up per fact, not kept: a label may have been taken back while the call waited. */
  #series() {
    return this.#to.metrics.workspace(this.#label(), this.#upstream);
  }

  #tell(fact: (sink: FactSink, workspaceId: string) => void): void {
    const id = this.#workspaceId;
    if (id === null || this.#live === null) return;
    for (const sink of this.#to.sinks) fact(sink, id);
  }

  #safely(run: () => void): void {
    try {
      run();
    } catch (cause) {
      this.#to.failed(cause);
    }
  }
}
