/**
 * The spans of one call, as `observed-call.ts` drives them; `traces.ts` makes them with OpenTelemetry. A port, so that
 * a process that exports no traces loads none of it.
 */
import type { AdmissionRecord, Call, Throttle } from '../call.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { FailureReason } from '../errors.ts';
import type { LaneKey } from '../ids.ts';
import type { CallEnd } from './events.ts';

/** Spans of one call, one method for each step. A step whose predecessor was not reported is ignored. */
export interface CallSpans {
  /** 32 hex digits when the call is sampled, else `null`: an exemplar must lead to a trace that exists. */
  readonly traceId: string | null;
  identified(label: string): void;
  routed(upstream: UpstreamSettings): void;
  /** The lane is known, whether or not the call waits. */
  entered(lane: LaneKey): void;
  waiting(lane: LaneKey): void;
  /** The call waits no longer: it was granted, or has ended. */
  waitEnded(): void;
  /** `resends`: attempts before this one. */
  sent(resends: number): void;
  traceparent(): string | null;
  /** `upstreamId`: of a throttled attempt, as the upstream names it. */
  answered(status: number, throttle: Throttle['kind'] | null, upstreamId: string | null): void;
  attemptFailed(error: string, reason: FailureReason | null): void;
  attemptEnded(): void;
  ended(end: CallEnd, admission: AdmissionRecord): void;
}

/** What decides with the call whether and how it is traced. */
export interface TracedCaller {
  /** The call has a valid API key. The `traceparent` of any other counts for nothing: a stranger chooses no trace and forces none. */
  readonly isAuthenticated: boolean;
  /** When the call came, milliseconds since the epoch. */
  readonly startedAt: number;
}

/** Starts the spans of calls; closed once when the process drains. */
export interface Tracing {
  /** `null`: the call is not traced. */
  begin(call: Call, by: TracedCaller): CallSpans | null;
  /** Exports what is buffered and stops. */
  close(): Promise<void>;
}
