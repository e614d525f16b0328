/**
 * What is reported about one call: metrics, its log line, its spans, and what listeners are told. The stages of the journey fill the
 * record as the call goes. What shows a call under way is reported at once (waiting, in flight, throttled, spans of waits and
 * attempts), the rest by `ended`.
 *
 * Any step may be left out, and `ended` closes what is open: a call that ends anywhere leaves no gauge raised and no
 * span open. No method throws, because a fault of telemetry must not end a call.
 */
import type { AdmissionRecord, Call, Costs, HeldTime, Reckoned, Throttle } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { FailureReason, RefusalCode } from '../errors.ts';
import type { CallerKey } from '../ids.ts';
import type { ShortLived } from '../short-lived.ts';
import { knownMethods } from './events.ts';
import type { CallEnd, CallInRecording, CountedFact, FactSink } from './events.ts';
import { noneLabel, type Labels } from './labels.ts';
import type { CallLogger } from './logger.ts';
import type { Metrics } from './metrics.ts';
import { CallSpans, parentOf, traceparentOf, type Tracing } from './tracing.ts';

/** The record of a call as the stages see it. */
export type CallRecord = Omit<RunningCallRecord, 'upstream' | 'call' | 'isWaiting'>;

/** What of a call is reported. */
export type ReportedCall = Pick<Call, 'id' | 'method' | 'form' | 'rawFields' | 'receivedAt' | 'clientGone'>;

/** Where all calls are reported. */
export interface CallReporters {
  readonly clock: Clock;
  readonly metrics: Metrics;
  readonly labels: Labels;
  /** Those that wait or are in flight, by id. They are counted when somebody looks. */
  readonly live: ShortLived<string, RunningCallRecord>;
  readonly logger: CallLogger;
  /** `null` = no call is traced. */
  readonly tracing: Tracing | null;
  /** Hears of calls whose workspace and upstream are known; `null` = nobody does. */
  readonly activity: FactSink | null;
  /** Called with a bug in telemetry itself. */
  readonly failed: (cause: unknown) => void;
}

/** Milliseconds by cause; `undefined` = nothing held the call. */
const heldMsOf = (held: readonly HeldTime[]): Readonly<Record<string, number>> | undefined =>
  held.length === 0 ? undefined : Object.fromEntries(held.map(({ cause, ms }) => [cause, tenth(ms)]));

const none: readonly HeldTime[] = [];

const tenth = (ms: number): number => Math.round(ms * 10) / 10;

export class RunningCallRecord {
  readonly call: ReportedCall;
  /** Whose call it is; set when its API key has named a workspace. Shown under its label only. */
  workspaceId: string | null = null;
  /** The caller with which the call takes turns; `undefined` = its workspace does not tell callers apart, or it names none. */
  caller: CallerKey | undefined = undefined;
  /** What held a call that ends without an admission record of its own (`CallEnd`), as there. */
  held: readonly HeldTime[] = none;
  /** `null` = nobody records the call. */
  recording: CallInRecording | null = null;
  /** The same of what limits would have done with it; `null` = they hold it, or it is not known. */
  would: Reckoned | null = null;
  readonly #to: CallReporters;
  #upstream: UpstreamSettings | null = null;
  /** They begin when it is known whose call it is, because that decides whether the call is traced. */
  #spans: CallSpans | null = null;
  #isOver = false;

  /** Of a call whose arrival is to be counted yet. */
  #arrivingCosts: Costs | null = null;

  // When steps were, monotonic milliseconds; `null`: not yet, or not now.
  #routedAt: number;
  #admittingAt: number | null = null;
  #queuedAt: number | null = null;
  #sentAt: number | null = null;
  #headAt: number | null = null;
  /** Time in the lane, all waits together. */
  #heldMs = 0;
  /** From sending to the head (or to the break), all attempts together. */
  #upstreamMs = 0;

  #attempts = 0;
  #absorbed = 0;
  #reason: FailureReason | null = null;

  constructor(call: ReportedCall, reporters: CallReporters) {
    this.#to = reporters;
    this.call = call;
    this.#routedAt = call.receivedAt;
  }

  /** Name of its upstream, once that is known. */
  get upstream(): string {
    return this.#upstream?.name ?? noneLabel;
  }

  get isWaiting(): boolean {
    return this.#queuedAt !== null;
  }

  /** 32 hex digits; `null` when the call is not traced. */
  get traceId(): string | null {
    return this.#spans?.traceId ?? null;
  }

  /** The target belongs to this upstream. Time until here counts as overhead, and reading the body after it does not. */
  routed(upstream: UpstreamSettings): void {
    this.#guard(() => {
      this.#routedAt = this.#now();
      this.#upstream = upstream;
      this.#to.metrics.begin('', upstream.name);
    });
  }

  /**
   * The body is complete; admission begins. `costs`: what the call is expected to take from meters. `isReserving`: if it is
   * refused, its client comes back. Then it has arrived when it enters.
   */
  admitting(costs: Costs = {}, isReserving = false): void {
    this.#guard(() => {
      this.#admittingAt = this.#now();
      this.#beginSpans();
      this.#arrivingCosts = costs;
      if (!isReserving) this.#arrived();
    });
  }

  #arrived(): void {
    const costs = this.#arrivingCosts;
    if (costs !== null) this.#listener?.arrived(this.workspaceId ?? '', this.upstream, costs);
    this.#arrivingCosts = null;
  }

  /** The call waits in its lane, until it is sent or has ended. Repeated for a call that goes back to its lane. */
  queued(): void {
    this.#guard(() => {
      if (this.#isOver || this.#queuedAt !== null) return;
      this.#queuedAt = this.#now();
      this.#arrived();
      this.#to.live.set(this.call.id, this);
      this.#spans?.waiting();
    });
  }

  /** The attempt's bytes go to the transport. Returns the value of its `traceparent`, or `null` where it has none. */
  sent(): string | null {
    this.#guard(() => {
      if (this.#isOver) return;
      const now = this.#now();
      this.#waitEnded(now);
      this.#spans?.attemptEnded();
      if (this.call.clientGone.aborted) this.#to.metrics.count('sluice_dispatched_after_client_gone_total');
      this.#sentAt = now;
      this.recording?.sent(now);
      this.#spans?.sent(this.#attempts);
      this.#attempts += 1;
    });
    // Where it is not traced here, the call stays in its client's trace.
    const parent = this.#upstream?.propagateTrace === true ? parentOf(this.call.rawFields) : null;
    return this.#spans?.traceparent() ?? (parent === null ? null : traceparentOf(parent));
  }

  /** The head of the attempt's response arrived. `throttle`: how it was classified. */
  answered(status: number, throttle: Throttle | null): void {
    this.#guard(() => {
      this.#headArrived();
      this.#spans?.answered(status, throttle?.kind ?? null);
      if (throttle === null) return;
      const kind = throttle.kind === 'permanent' ? 'permanent' : 'rate';
      this.#to.metrics.count('sluice_upstream_throttles_total', { ...this.#by(), kind });
      this.#counted(kind === 'permanent' ? 'throttledPermanent' : 'throttledRate');
    });
  }

  /** The throttled response is kept from the client; the call is admitted again. Ends the attempt. */
  absorbed(): void {
    this.#guard(() => {
      this.#spans?.attemptEnded();
      this.#absorbed += 1;
      this.#to.metrics.count('sluice_retries_absorbed_total', this.#by());
      this.#counted('absorbed');
    });
  }

  /**
   * The attempt broke without a usable response. `error` is a code of ours, never a message; `reason` why it broke, `null`
   * where nothing is wrong on the way to the upstream. Ends the attempt.
   */
  attemptFailed(error: RefusalCode | 'client_gone' | 'reset', reason: FailureReason | null): void {
    this.#guard(() => {
      this.#headArrived();
      if (reason !== null) {
        this.#reason = reason;
        this.#to.metrics.count('sluice_upstream_failures_total', { upstream: this.upstream, reason });
      }
      this.#spans?.attemptFailed(error, reason);
      this.#spans?.attemptEnded();
    });
  }

  /** The call is over: its response is written, or its client is gone. Only the first one counts. */
  ended(end: CallEnd): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#guard(() => {
      this.#headArrived();
      this.#waitEnded();
      this.#spans?.attemptEnded();
      this.#to.live.delete(this.call.id);
      this.#report(end);
    });
  }

  #report(end: CallEnd): void {
    const { outcome, status, code, heldBy = null, isReserved = false } = end;
    const { metrics, logger } = this.#to;
    const { id, method, receivedAt } = this.call;
    const by = this.#by();
    const { upstream } = by;
    const now = this.#now();
    const durationMs = now - receivedAt;
    const overheadMs = this.#overheadMs(now);
    const admission = end.admission ?? this.#admission();
    const { waitedMs, attempts, absorbed, held, would } = admission;

    this.#beginSpans();
    this.#spans?.ended(end, admission);
    const { traceId } = this;

    metrics.count('sluice_requests_total', { ...by, outcome });
    if (outcome === 'shed' && code !== null) metrics.count('sluice_shed_total', { ...by, reason: code });
    if (heldBy !== null) metrics.count('sluice_held_refusals_total', { upstream, held_by: heldBy });
    if (this.#admittingAt !== null) {
      metrics.observe('sluice_queue_wait_seconds', { upstream, outcome }, waitedMs);
      metrics.observe('sluice_overhead_seconds', { upstream }, overheadMs);
    }

    const isWritten = logger.callEnded(outcome, this.workspaceId === null, () => ({
      requestId: id,
      ...by,
      caller: this.caller,
      method: knownMethods.has(method) ? method : 'other',
      outcome,
      status,
      code,
      heldBy,
      // Why the last failed attempt failed, also where a later attempt succeeded.
      reason: this.#reason,
      waitedMs: tenth(waitedMs),
      heldMs: heldMsOf(held),
      would: would?.kind,
      wouldWaitMs: would === undefined ? undefined : tenth(would.waitMs),
      attempts,
      absorbed,
      upstreamMs: tenth(this.#upstreamMs),
      overheadMs: tenth(overheadMs),
      durationMs: tenth(durationMs),
      traceId,
    }));
    if (!isWritten) metrics.count('sluice_log_lines_left_out_total');

    this.recording?.ended(outcome, waitedMs, now);
    if (!isReserved) this.#arrived();
    const fact = { outcome, code, heldBy, isReserved, waitedMs, attempts, durationMs };
    this.#listener?.ended(this.workspaceId ?? '', upstream, fact);
  }

  /** Of a call that ends without a record of its own. */
  #admission(): AdmissionRecord {
    const would = this.would === null ? {} : { would: this.would };
    const [attempts, absorbed] = [this.#attempts, this.#absorbed];
    return { waitedMs: this.#heldMs, attempts, absorbed, held: this.held, ...would };
  }

  /** Our own share of the time until the latest head, or until `now` when there was none: without waiting, reading the body, the upstream. */
  #overheadMs(now: number): number {
    const before = this.#routedAt - this.call.receivedAt;
    if (this.#admittingAt === null) return before;
    const sinceAdmission = (this.#headAt ?? now) - this.#admittingAt;
    return Math.max(0, before + sinceAdmission - this.#heldMs - this.#upstreamMs);
  }

  #beginSpans(): void {
    const { tracing, clock } = this.#to;
    if (tracing === null || this.#spans !== null) return;
    this.#spans = new CallSpans(tracing.tracer, this.call, {
      startTime: clock.now() - (clock.monotonic() - this.call.receivedAt),
      workspace: this.workspaceId === null ? null : this.#label(),
      upstream: this.#upstream,
    });
  }

  /** The head of the attempt in flight has come, or will not come any more. */
  #headArrived(): void {
    if (this.#sentAt === null) return;
    this.#headAt = this.#now();
    const ms = this.#headAt - this.#sentAt;
    this.#sentAt = null;
    this.#upstreamMs += ms;
    this.#to.metrics.observe('sluice_upstream_seconds', { upstream: this.upstream }, ms);
  }

  #waitEnded(now = this.#now()): void {
    if (this.#queuedAt === null) return;
    this.#heldMs += now - this.#queuedAt;
    this.#queuedAt = null;
    this.#spans?.waitEnded();
  }

  /** Labels of the counters that name a workspace. */
  #by(): Readonly<Record<'workspace' | 'upstream', string>> {
    return { workspace: this.#label(), upstream: this.upstream };
  }

  /** Asked for each fact, not kept: a label may be taken back while the call waits. */
  #label(): string {
    return this.workspaceId === null ? noneLabel : this.#to.labels.of(this.workspaceId);
  }

  #counted(fact: CountedFact): void {
    this.#listener?.counted(this.workspaceId ?? '', this.upstream, fact);
  }

  /** It hears of calls whose workspace and upstream are known. */
  get #listener(): FactSink | null {
    return this.workspaceId === null || this.#upstream === null ? null : this.#to.activity;
  }

  #now(): number {
    return this.#to.clock.monotonic();
  }

  #guard(step: () => void): void {
    try {
      step();
    } catch (cause) {
      this.#to.failed(cause);
    }
  }
}
