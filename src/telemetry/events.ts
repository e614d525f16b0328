/** What the parts report and read, in closed sets and plain values. Types and constants only. */
import type { AdmissionRecord, Costs, MeterName, MeterReport } from '../call.ts';
import { credentialFaults, type HeldBy, type RefusalCode } from '../errors.ts';
import type { BucketSnapshot } from '../bucket.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import { namesIn } from '../words.policy.ts';

/**
 * How a call ended: `ok` the upstream answered below 400 · `upstream_error` it answered 400 or above, passed through · `throttled` its
 * throttle was passed through · `shed` refused by Sluice for lack of room or time · `rejected` refused because the
 * client must change something · `client_gone` the client left first · `failed` the upstream's side broke.
 */
export const outcomes = namesIn('ok upstream_error throttled shed rejected client_gone failed');
export type CallOutcome = (typeof outcomes)[number];

export const limiterModes = ['redis', 'local', 'memory', 'deny'] as const;
export type LimiterMode = (typeof limiterModes)[number];

/** `expired` not renewed in time · `stalled` this process noticed too late (self-fence) · `epoch` Redis lost its data · `unavailable` Redis could not be asked. */
export const leaseLostReasons = ['expired', 'stalled', 'epoch', 'unavailable'] as const;
export type LeaseLostReason = (typeof leaseLostReasons)[number];

/** `timeout` no reply in time · `connection` refused, reset or not ready · `reply` Redis answered with an error · `other` anything else. */
export const redisErrorKinds = ['timeout', 'connection', 'reply', 'other'] as const;
export type RedisErrorKind = (typeof redisErrorKinds)[number];

/** How one renewal of an upstream credential ended. `shared`: another replica had renewed it. */
export const renewalOutcomes = ['renewed', 'shared', ...credentialFaults] as const;
export type RenewalOutcome = (typeof renewalOutcomes)[number];

/** Commands with their own series in `sluice_redis_command_seconds`; anything else counts as `other`. */
export type RedisCommand =
  /** A batch of a log. */
  'append' | 'consume' | 'reward' | 'publish' | 'other';

/** Methods shown as they are; anything else that a client invents is shown as one. */
export const knownMethods = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'QUERY']);

/** How a call ended. */
export interface CallEnd {
  readonly outcome: CallOutcome;
  /** Status the client was sent; 0 when it was gone before one was sent. */
  readonly status: number;
  /** Code of our own refusal, or `null` when the response is the upstream's. */
  readonly code: RefusalCode | null;
  /** What held the call back, where a refusal names it. */
  readonly heldBy?: HeldBy;
  /** A refusal that keeps the call's position. */
  readonly isReserved?: boolean;
  /** What `Sluice-Admission` said; absent when the call never reached admission. */
  readonly admission?: AdmissionRecord;
}

/** A request that was refused before it became a call: for its form or its route, or because too many came at once. */
export interface RefusedRequest {
  readonly requestId: string;
  /** Empty when it could not be read. */
  readonly method: string;
  /** Status the client was sent. */
  readonly status: number;
  readonly code: RefusalCode;
}

/** State that gauges read when they are scraped. */
export interface PressureSource {
  /** What the process holds, and how loaded it is. */
  process(): ProcessPressure;
  /** Buckets this replica has touched, with the upstream each belongs to. */
  buckets(): readonly ObservedBucket[];
  ceilingsUsed(): readonly ObservedCeiling[];
  /** Breakers of an upstream that are not closed, as far as this replica knows; the one that is asked first comes first. */
  breakers(upstream: string): readonly ObservedBreaker[];
  /** An operator's pause of the upstream: how long it holds yet, milliseconds, and when it began, Unix milliseconds; `null` = there is none. */
  pauseOf(upstream: string): { readonly ms: number; readonly since: number } | null;
  /** Credentials in use whose end is known. */
  credentials(): readonly ObservedCredential[];
  /** How many times the last hour's traffic fits, by upstream, where it is known. */
  headrooms(): Promise<ReadonlyMap<string, number>>;
}

/** What a replica holds, and how loaded it is, beside its upstreams. */
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

/** How full a workspace's ceiling on an upstream is: used shares of the minute and of the day, 0 to 1. */
export interface ObservedCeiling {
  readonly upstream: string;
  readonly minute: number;
  readonly day: number;
}

/** An upstream refuses calls for a reason that waiting does not cure. */
export interface ObservedBreaker {
  /** Status with which it refuses, and with which calls are answered in its stead. */
  readonly status: number;
  /** When it first refused, Unix milliseconds. */
  readonly since: number;
  /** Until the next call is let through to ask, milliseconds. */
  readonly retryInMs: number;
  /** What the provider's own error said, a word of a closed vocabulary; `null` = no known word. */
  readonly said: string | null;
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
  /** Whether limits hold its calls, or are only reckoned. */
  readonly mode: UpstreamSettings['mode'];
  /** Meters that this kind of upstream has; their gauges exist from the start. */
  readonly dimensions: readonly MeterName[];
  readonly waiting: number;
  /** Age of the call that has waited longest, milliseconds; 0 when none waits. */
  readonly oldestMs: number;
  readonly inFlight: number;
}

/** How many calls of one workspace wait and are in flight on one upstream, this replica. Ids stay in memory. */
export interface LiveLane {
  readonly workspaceId: string;
  readonly upstream: string;
  readonly waiting: number;
  readonly inFlight: number;
}

/** The state of the limiter on this replica. */
export interface LimiterHealth {
  /** When the mode began, Unix milliseconds. */
  readonly modeSince: number;
  /** The mode in force; `null` until the limiter has reported one. */
  readonly mode: LimiterMode | null;
  /** Time of the latest Redis commands, smoothed, milliseconds; `null` before the first one. */
  readonly redisMs: number | null;
}

/** Which configuration holds. Unix milliseconds. */
export interface ConfigurationState {
  readonly inForceSince: number;
  /** When the latest configuration was refused; `null` = it is in force. */
  readonly refusedAt: number | null;
}

/** A value that may stand in a log line. Never a URL, host, header, key, or workspace id. */
export type LogValue = string | number | boolean | null;
export type LogFields = Readonly<Record<string, LogValue>>;

/** Log lines that are not about a call. Messages are constants; what varies goes into `fields`. */
export interface Log {
  debug(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
  /** Something that should not have been thrown: logs its name, code and stack frames, never its message. */
  bug(message: string, cause: unknown, fields?: LogFields): void;
}

export type CountedFact = 'throttledRate' | 'throttledPermanent' | 'absorbed';

/** Hears of facts for other uses than metric, log and span (the activity recorder). Ids stay in memory. */
export interface FactSink {
  /** A call asks for admission; `costs`: what it is expected to take from meters. */
  arrived(workspaceId: string, upstream: string, costs: Costs): void;
  counted(workspaceId: string, upstream: string, fact: CountedFact): void;
  ended(workspaceId: string, upstream: string, fact: EndedFact): void;
}

/** A call that arrived while somebody records, and is written down when it ends (`recording/`). Monotonic milliseconds. */
export interface CallInRecording {
  sent(atMs: number): void;
  /** The upstream refused it, and takes no call for `forMs` milliseconds. */
  closed(atMs: number, forMs: number): void;
  /** What the upstream says it took, beside or instead of the estimate, and how much of its quotas was used then. */
  charged(spent: Costs | null, stated: readonly MeterReport[]): void;
  ended(outcome: CallOutcome, waitedMs: number, atMs: number): void;
}

/** A finished call in numbers. */
export interface EndedFact {
  readonly outcome: CallOutcome;
  readonly code: RefusalCode | null;
  /** What held a refused call back. */
  readonly heldBy: HeldBy | null;
  /** Its client comes back: no call was lost by the refusal. */
  readonly isReserved?: boolean;
  readonly waitedMs: number;
  readonly attempts: number;
  readonly durationMs: number;
}
