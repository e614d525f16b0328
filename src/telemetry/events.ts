/**
 * What the journey reports about itself: one function per business fact. Types only; `telemetry.ts` fans every fact out
 * to metric, log line, span and activity. No function here throws, none blocks, none takes a value that must not be
 * seen outside (it takes the call and the workspace, and shows only their label).
 *
 * A call is followed by one object: `begin` → `identified` → `routed` → `admitting` → (`queued` → `granted` → `sent` →
 * `answered` → `absorbed`)* → `ended`. Skipped steps are allowed at any point; `ended` closes whatever is open.
 */
import type { AdmissionRecord, Call, Caller, MeterName, Throttle } from '../call.ts';
import {
  credentialFaults,
  type FailureReason,
  type HeldBy,
  type OverloadBound,
  type RefusalCode,
} from '../errors.ts';
import type { BucketSnapshot } from '../bucket.ts';
import type { LaneKey } from '../ids.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { CallOutcome } from './outcome.policy.ts';

export const limiterModes = ['redis', 'local', 'memory', 'deny'] as const;
export type LimiterMode = (typeof limiterModes)[number];

/** `expired` not renewed in time · `stalled` this process noticed too late (self-fence) · `epoch` Redis lost its data · `unavailable` Redis could not be asked. */
export const leaseLostReasons = ['expired', 'stalled', 'epoch', 'unavailable'] as const;
export type LeaseLostReason = (typeof leaseLostReasons)[number];

/** `timeout` no reply in time · `connection` refused, reset or not ready · `reply` Redis answered with an error · `subscribe` the grant channel broke · `other` anything else. */
export const redisErrorKinds = ['timeout', 'connection', 'reply', 'subscribe', 'other'] as const;
export type RedisErrorKind = (typeof redisErrorKinds)[number];

/** How one renewal of an upstream credential ended. `shared`: another replica had renewed it. */
export const renewalOutcomes = ['renewed', 'shared', ...credentialFaults] as const;
export type RenewalOutcome = (typeof renewalOutcomes)[number];

/** Commands with their own series in `sluice_redis_command_seconds`; anything else counts as `other`. */
export type RedisCommand =
  /** Events of one bucket: admissions, settlements, ticks and all others, as many as came together. */
  | 'apply'
  /** A batch of a log. */
  | 'append'
  | 'consume'
  | 'reward'
  | 'publish'
  | 'other';

/** How a call ended. */
export interface CallEnd {
  readonly outcome: CallOutcome;
  /** Status the client was sent; 0 when it was gone before one was sent. */
  readonly status: number;
  /** Code of our own refusal, or `null` when the response is the upstream's. */
  readonly code: RefusalCode | null;
  /** What held the call back, where a refusal names it. */
  readonly heldBy?: HeldBy;
  /** What `Sluice-Admission` said; absent when the call never reached admission. */
  readonly admission?: AdmissionRecord;
}

/** Follows one call. Created by {@link Telemetry.begin}; every method is safe to call at any time. */
export interface CallTelemetry {
  /** Trace of this call as 32 hex digits, or `null` when it is not traced. */
  readonly traceId: string | null;
  /** The API key named a workspace. */
  identified(caller: Caller): void;
  /** The target belongs to this upstream. */
  routed(upstream: UpstreamSettings): void;
  /** The body is complete; admission starts. What came before counts as overhead, reading the body does not. `lane` lets a later wait link to this call. */
  admitting(lane?: LaneKey): void;
  /** The call waits in its lane. Repeated for a call that goes back to its lane. */
  queued(lane: LaneKey): void;
  /** The call leaves its lane, about to be sent. A second call, or one without `queued` before it, does nothing. */
  granted(): void;
  /** The attempt's bytes go to the transport. Also counts `sluice_dispatched_after_client_gone_total` where the client has left. */
  sent(): void;
  /** Value for `traceparent` of the attempt in flight, or `null` when tracing is off. */
  traceparent(): string | null;
  /**
   * The head of the attempt's response arrived. `throttle`: how it was classified. `upstreamId`: the id that the upstream gave
   * the attempt; shown for throttled ones.
   */
  answered(status: number, throttle: Throttle | null, upstreamId?: string | null): void;
  /** The throttled response is kept from the client; the call is admitted again. Ends the attempt. */
  absorbed(): void;
  /**
   * The attempt broke without a usable response. `error` is a code of ours, never a message; `reason` why it broke, `null`
   * where nothing is wrong on the way to the upstream. Ends the attempt.
   */
  attemptFailed(error: RefusalCode | 'client_gone' | 'reset', reason: FailureReason | null): void;
  /** The call is over: its response is written, or its client is gone. Only the first one counts. */
  ended(end: CallEnd): void;
}

/** State that gauges read when they are scraped. */
export interface PressureSource {
  /** What the process holds, and how loaded it is. */
  process(): ProcessPressure;
  /** Buckets this replica has touched, with the upstream each belongs to. */
  buckets(): readonly ObservedBucket[];
  /** Breakers of an upstream that are not closed, as far as this replica knows; the one that is asked first comes first. */
  breakers(upstream: string): readonly ObservedBreaker[];
  /** Credentials in use whose end is known. */
  credentials(): readonly ObservedCredential[];
}

/** What one replica holds and how loaded it is, beside its upstreams. */
export interface ProcessPressure {
  /** Bytes of request bodies, and of responses under way that a repeat may join, held in memory. */
  readonly heldBytes: number;
  /** Bytes of responses that have ended and are kept in memory for repeats. */
  readonly keptBytes: number;
  /** Bytes of the heads of open calls. */
  readonly headBytes: number;
  readonly connections: number;
  readonly openCalls: number;
  /** Sustained delay of the event loop, milliseconds. */
  readonly eventLoopDelayMs: number;
  /** Used share of the memory that the process may have. */
  readonly memoryRatio: number;
  /** Share of new calls that is refused for load, 0 to 1. */
  readonly sheddingShare: number;
  /** Calls and connections refused since the start because a bound of the process was reached. */
  readonly overloadRefusals: number;
}

/** A process that does nothing yet. */
export const idleProcess: ProcessPressure = {
  heldBytes: 0,
  keptBytes: 0,
  headBytes: 0,
  connections: 0,
  openCalls: 0,
  eventLoopDelayMs: 0,
  memoryRatio: 0,
  sheddingShare: 0,
  overloadRefusals: 0,
};

/** An upstream refuses calls for a reason that waiting does not cure. */
export interface ObservedBreaker {
  /** Status with which it refuses, and with which calls are answered in its stead. */
  readonly status: number;
  /** Until the next call is let through to ask, milliseconds. */
  readonly retryInMs: number;
}

export interface ObservedCredential {
  readonly upstream: string;
  /** Time until the credential ends, milliseconds; negative when it has ended. */
  readonly expiresInMs: number;
}

export interface ObservedBucket {
  readonly upstream: string;
  readonly snapshot: BucketSnapshot;
}

/** Pressure of one upstream on this replica, now. */
export interface LivePressure {
  readonly upstream: string;
  /** Meters that this kind of upstream has; their gauges exist from the start. */
  readonly dimensions: readonly MeterName[];
  readonly waiting: number;
  /** Age of the call that has waited longest, milliseconds; 0 when none waits. */
  readonly oldestMs: number;
  readonly inFlight: number;
}

/** The state of the limiter on this replica. Counts are totals since the start. */
export interface LimiterHealth {
  /** The mode in force; `null` until the limiter has reported one. */
  readonly mode: LimiterMode | null;
  readonly redisErrors: number;
  readonly leasesLost: number;
  /** Time of the latest Redis commands, smoothed, milliseconds; `null` before the first one. */
  readonly redisMs: number | null;
}

/** A value that may stand in a log line. Never a URL, host, header, key, or workspace id. */
export type LogValue = string | number | boolean | null;

/** Log lines that are not about a call. Messages are constants; what varies goes into `fields`. */
export interface Log {
  debug(message: string, fields?: Readonly<Record<string, LogValue>>): void;
  info(message: string, fields?: Readonly<Record<string, LogValue>>): void;
  warn(message: string, fields?: Readonly<Record<string, LogValue>>): void;
  error(message: string, fields?: Readonly<Record<string, LogValue>>): void;
  /** Something that should not have been thrown: logs its name, code and stack frames, never its message. */
  bug(message: string, cause: unknown, fields?: Readonly<Record<string, LogValue>>): void;
}

/** Everything the rest of the product knows about telemetry. */
export interface Telemetry {
  begin(call: Call): CallTelemetry;
  /** A request was refused before it became a call: its form, its route, or too many at once. */
  requestRefused(code: RefusalCode): void;
  /** A call, or a connection, was refused because of this bound. */
  overloaded(bound: OverloadBound): void;
  /** Calls are refused for this load from now on; `null`: no longer. */
  shedding(cause: OverloadBound | null): void;
  limiterMode(mode: LimiterMode): void;
  redisCommand(command: RedisCommand, durationMs: number): void;
  redisError(kind: RedisErrorKind): void;
  leaseLost(reason: LeaseLostReason): void;
  /** A credential of the upstream that can change was renewed, or could not be. */
  credentialRenewal(upstream: string, outcome: RenewalOutcome): void;
  /** A client got a response that had been kept from an earlier call with the same key. */
  replayed(upstream: string): void;
  /** A client waits for the response of an equal call under way, or has got it from another replica. */
  joined(upstream: string): void;
  /** A call was refused without asking the limiter, because another call of its lane was refused a moment ago. */
  refusedAgain(upstream: string): void;
  /** A call was made again for its repeat: the replica that had made it is gone, or Redis had lost its claim. */
  madeAgain(upstream: string): void;
  /** Upstreams configured now; called at start and after a reload. Their gauges exist from here on. */
  configured(upstreams: Iterable<UpstreamSettings>): void;
  /** Where gauges read from; the last one given counts. */
  observe(source: PressureSource): void;
  /** Pressure per configured upstream, this replica. */
  live(): readonly LivePressure[];
  limiterHealth(): LimiterHealth;
  /** Label under which a workspace may be shown: its own or `other`. */
  labelOf(workspaceId: string): string;
  readonly log: Log;
}

/** Listens to facts for other uses than metric, log and span (the activity recorder). Ids stay in memory. */
export interface FactSink {
  /** A call asks for admission. Monotonic milliseconds. */
  arrived(workspaceId: string, upstream: string, atMs: number): void;
  throttled(workspaceId: string, upstream: string, kind: 'rate' | 'permanent'): void;
  absorbed(workspaceId: string, upstream: string): void;
  ended(workspaceId: string, upstream: string, fact: EndedFact): void;
}

/** A finished call in numbers. */
export interface EndedFact {
  readonly outcome: CallOutcome;
  readonly code: RefusalCode | null;
  /** What held a refused call back. */
  readonly heldBy: HeldBy | null;
  readonly waitedMs: number;
  readonly attempts: number;
  readonly absorbed: number;
  readonly durationMs: number;
}
