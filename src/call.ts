/**
 * Shared vocabulary of a call's journey: types, and names of meters. ARCHITECTURE.md describes the journey that uses these words.
 */
import type { Readable } from 'node:stream';
import type { HeldBy, LimitRefusal, ProviderError } from './errors.ts';
import type { BucketKey } from './ids.ts';
import type {
  UpstreamCredential,
  UpstreamSettings,
  WorkspaceKey,
  WorkspaceSettings,
} from './config/settings.ts';
import { namesIn } from './words.policy.ts';

export type { UpstreamKind } from './config/settings.ts';

/** One client request on its way through Sluice. Built by `ingress/connections.ts`, never changed afterwards. */
export interface Call {
  /** `Sluice-Request-Id`: 32 hex digits. */
  readonly id: string;
  /** Monotonic milliseconds at which the request's head was complete. */
  readonly receivedAt: number;
  readonly method: string;
  /** Which route: `/proxy?target=`, `/via/{upstream}/…`, or the workspace's own `/activity`, which has no target. */
  readonly form: 'proxy' | 'via' | 'activity';
  /** The request target exactly as received (`/proxy?target=…`). */
  readonly rawUrl: string;
  /** Field lines as received, name and value alternating (Node's `rawHeaders`). */
  readonly rawFields: readonly string[];
  /** Aborted when the client's connection is gone. */
  readonly clientGone: AbortSignal;
  /**
   * The whole request body, to be read once (only then is `100 Continue` sent); at once where there is none.
   * The bytes count for `owner`, the id of the calling workspace: one may hold half of what the process may.
   * Throws, or rejects with, a `Refusal` (`body_too_large`, `overloaded`), or `clientGone.reason` when the client left.
   */
  readonly readBody: (owner: string) => CallBody | Promise<CallBody>;
  /** The call has a valid API key. */
  readonly authenticated: () => void;
  /** Reports what is known so far, so that a refusal thrown later can carry it too. A later report replaces an earlier one. */
  readonly report: (known: CallFacts) => void;
  /**
   * Head and body stay counted, and the call among those that are open, until the returned function is called, also when the client has left:
   * the call goes on for its repeats.
   */
  readonly retain: () => () => void;
}

/** Who calls: the workspace, and where its key was found (those fields are never sent upstream). */
export interface Caller {
  readonly workspace: WorkspaceSettings;
  readonly key: WorkspaceKey;
  /**
   * Lower-case names of every field that carries an API key, the one used first, then any other (also
   * `sluice-upstream-authorization` or a cookie). None of them may be sent upstream.
   */
  readonly keyFields: readonly string[];
  /** False once the key was removed from configuration or expired. Asked again before every sending. */
  readonly stillValid: () => boolean;
}

/** Where a call goes: decided once, from bytes; nothing re-parses the target later. */
export interface Route {
  readonly upstream: UpstreamSettings;
  /** `https://host[:port]`, never with a path. */
  readonly origin: string;
  /** Host as sent in `Host` (with a non-default port). */
  readonly host: string;
  /**
   * Raw path and query, byte for byte as the client wrote them, without query members that carry a credential where one is injected;
   * starts with `/`.
   */
  readonly pathAndQuery: string;
  /**
   * Injected credential as configured when the call came, or `null` when the client brings its own. It decides whose quota
   * the call takes; the value that is sent is chosen anew with each sending.
   */
  readonly credential: UpstreamCredential | null;
}

/** What one sending carries of the injected credential. `field` is lower case. */
export interface InjectedField {
  readonly field: string;
  readonly value: string;
}

/** Bytes of a request body, complete before the call is admitted. */
export interface CallBody {
  readonly bytes: Buffer;
  /** False when the body is larger than what may be kept for another sending. */
  readonly replayable: boolean;
  /** Monotonic milliseconds at which it was complete; `null` = there is none. */
  readonly completeAt: number | null;
}

/**
 * Dimension of a bucket. `requests` and `tokens` count per minute (or the window the upstream reported), `*_day` per day, `cost`
 * commerce GraphQL points. An upstream that has several windows of requests at once has its shortest as `requests_burst` and
 * one of half an hour or more as `requests_hour`, beside `requests`. Where input and output tokens are counted apart, each has a
 * meter of its own, per minute; `tokens` counts both.
 */
export type MeterName = (typeof meterNames)[number];
/** All meters, in the order in which they are visited. */
export const meterNames = namesIn(
  'requests tokens requests_day tokens_day cost images requests_burst requests_hour input_tokens output_tokens',
);

/** What one call takes from each meter; absent = 0. */
export type Costs = Readonly<Partial<Record<MeterName, number>>>;

/** What a response stated about one meter, at the instant its call was admitted by the upstream. */
export interface MeterReport {
  readonly meter: MeterName;
  /** Capacity: units per window. */
  readonly limit: number;
  /** Length of the window in which `limit` units drain, milliseconds; `null` = not stated, keep the known one. */
  readonly windowMs: number | null;
  /**
   * Time until the window ends, milliseconds. `null` or absent = not reported. Where `windowMs` is `null`, at most: the window is
   * no shorter. Where it is not, it matters for a window that is described as one of the clock.
   */
  readonly resetMs?: number | null;
  /** Level (used units) including this call, as an interval because of rounding. `lowest <= highest`; `null` = not stated. */
  readonly level: { readonly lowest: number; readonly highest: number } | null;
}

/** Everything a response taught. All durations are relative to the arrival of the response's head. */
export interface Feedback {
  readonly meters: readonly MeterReport[];
  /** Set when the response was a throttle: what the upstream said about waiting. */
  readonly throttle: Throttle | null;
  /** What the provider's own error says of a permanent refusal; absent = no known word. */
  readonly said?: ProviderError;
  /** Status that an error inside a response of success means; absent = there is none. The response counts as one of this status. */
  readonly errorStatus?: number;
  /** The response says that the upstream credential is not valid, or not any more: it ran nothing. Absent = it does not. */
  readonly refusesCredential?: boolean;
  /** The refusal says that too many calls are in flight at once. Absent = it does not. */
  readonly refusesConcurrency?: boolean;
  /** GraphQL cost points this document asks for (`requestedQueryCost`); to be learned per document. */
  readonly requestedCost?: number;
  /** GraphQL cost points it really took; absent when it was not executed. */
  readonly actualCost?: number;
  /** Tokens that the response's `usage` counts; absent = it states none. */
  readonly usage?: TokenUsage;
  /** Tokens the limiter charged or asked for, as a refusal states it (`Requested R`). */
  readonly requestedTokens?: number;
  /** The account whose quota the response states, if it names one. Provider ids: never logged. */
  readonly scope?: QuotaScope;
}

/**
 * Tokens of a call as its provider counts them. `null` = not stated. An endpoint without output (embeddings) states input alone.
 */
export interface TokenUsage {
  /** The whole prompt, also what of it was cached. */
  readonly prompt: number | null;
  /** How much of the prompt lies in the provider's cache behind the call and is not counted when it is read from there. */
  readonly kept: number;
  /** What a meter of input tokens counts. */
  readonly input: number | null;
  /** What a meter of output tokens counts. */
  readonly output: number | null;
  /** What a meter of all tokens counts. */
  readonly total: number | null;
}

/** Owner of a quota in the upstream's own words; two credentials with the same scope share a quota. */
export interface QuotaScope {
  readonly organization?: string;
  readonly project?: string;
  /** Name of the limit that several models share. */
  readonly family?: string;
  /** App whose tokens share the bucket of a shop. */
  readonly app?: string;
  /** The quota's own name. */
  readonly name?: string;
}

/** Whom a refusal concerns: its call alone, the calls of its bucket, or all calls with its upstream credential. */
export type RefusalScope = 'call' | 'bucket' | 'credential';

/**
 * A throttled response, classified. `rate`: absorb; `waitMs` is the time the upstream named (`null` = no hint). `secondary`: a
 * limit that is not the bucket's own (dev-store order limit); concerns calls of the same path only, and is asked again after 60 s
 * at the earliest. `permanent`: never resend; `reason` is a class, not upstream text: `unclear` asks for payment, perhaps for this call
 * alone. `overload`: upstream short of capacity
 * (503/529/slow_down), longer back-off.
 */
export type Throttle =
  | {
      readonly kind: 'rate';
      readonly waitMs: number | null;
      readonly meter: MeterName | null;
      /** Absent: the bucket. */
      readonly scope?: RefusalScope;
    }
  | { readonly kind: 'secondary' | 'overload'; readonly waitMs: number | null }
  | {
      readonly kind: 'permanent';
      readonly reason: 'quota' | 'unclear' | 'too_large' | 'daily' | 'max_cost' | 'store_state';
      /** Time after which trying may make sense, or `null`. */
      readonly waitMs: number | null;
      /** Absent: what the reason concerns. */
      readonly scope?: RefusalScope;
    };

/** The parts of a call that a permanent refusal may concern, for this process only: none of them is shown or shared as it is. */
export interface BreakerSubject {
  readonly upstream: string;
  /** Identity of the upstream credential. */
  readonly credential: string;
  readonly bucket: BucketKey;
  readonly host: string;
  readonly model: string | null;
  /** Method and path without query. */
  readonly operation: string;
}

/** Head of an upstream response, before cleaning. `rawFields` alternates name and value. */
export interface ResponseHead {
  readonly status: number;
  readonly rawFields: readonly string[];
}

/** An upstream response whose head has arrived. The body is read once, by whoever owns the outcome. */
export interface UpstreamResponse {
  readonly head: ResponseHead;
  readonly body: Readable;
}

/** What a call waits for. The line alone is no cause: calls in it wait for what its first call waits for. */
export type WaitCause = Exclude<HeldBy, 'queue'>;

/** What held a call, and for how many milliseconds. */
export interface HeldTime {
  readonly cause: WaitCause;
  readonly ms: number;
}

/** What limits would have done with a call that was only observed. `waitMs`: milliseconds until it would have left. */
export type Reckoned =
  | { readonly kind: 'send' | 'wait'; readonly waitMs: number }
  /** It would have been told to come back after `waitMs`. */
  | { readonly kind: 'refuse'; readonly waitMs: number; readonly code: LimitRefusal };

/** What the client gets in `Sluice-Admission`. */
export interface AdmissionRecord {
  readonly waitedMs: number;
  readonly attempts: number;
  readonly absorbed: number;
  /** What held the call in its lane, longest first; empty = nothing did. Their sum is `waitedMs`, but for parts of milliseconds. */
  readonly held: readonly HeldTime[];
  /** Absent: limits hold calls, or it is not known what they would have done. */
  readonly would?: Reckoned;
}

/** The workspace ceiling as the client gets it (`RateLimit-Policy`, `RateLimit`). */
export interface RateLimitState {
  /** Calls per 60 s. */
  readonly limit: number;
  /** Calls that may still leave now. */
  readonly remaining: number;
  /** Milliseconds until more slots are free. */
  readonly nextSlotMs: number;
}

/** What the journey knows of a call before it ends. */
export interface CallFacts {
  readonly rateLimit?: RateLimitState | null;
  readonly record?: AdmissionRecord;
}

/** How the response to the client ended: all of it sent, the client left, or the upstream broke off in the middle. */
export type ResponseEnd = 'complete' | 'client_gone' | 'upstream_cut';

/** All clients that wait for a call's response. */
export interface Audience {
  /** Aborts when none is left, which ends the call. */
  readonly signal: AbortSignal;
  /** False once no client's API key is valid any more. Absent: the key of the call itself is asked. */
  stillValid?(): boolean;
  /** The call is about to be sent, or goes back into its lane. Absent where nobody needs to know. */
  moved?(to: 'upstream' | 'lane'): void;
}

/** What a call came to: the response that goes to the client. Made by the gateway, written by `ingress/respond.ts`. */
export interface Outcome {
  readonly status: number;
  /** The upstream refused the call for want of quota (also in a 200, as GraphQL does). */
  readonly throttled: boolean;
  /** Status that an error inside a response of success means, as far as it has been read; `null` or absent = there is none. */
  readonly errorStatus?: () => number | null;
  /** The upstream's fields after cleaning, name and value alternating; repeats kept. */
  readonly fields: readonly string[];
  /** The upstream's fields before cleaning; absent where no other call may get the response. */
  readonly upstreamFields?: readonly string[];
  /** Read by whoever writes the response, and destroyed by it when the client leaves. `null` = no body. */
  readonly body: Readable | Buffer | null;
  /** A client that reads nothing of a waiting body for this long counts as gone, milliseconds; absent = five minutes. */
  readonly maxUnreadMs?: number;
  /** A silent event stream gets a comment so often, milliseconds; absent or `null` = it gets none. */
  readonly commentMs?: number | null;
  /** True when the response was kept from an earlier call with the same idempotency key (`Sluice-Replayed`). */
  readonly isReplayed?: boolean;
  readonly record: AdmissionRecord;
  readonly rateLimit: RateLimitState | null;
  /** Adds `x-should-retry`; `null` = say nothing. */
  readonly shouldRetry: boolean | null;
  /** Called exactly once, after the last byte was handed to the client's socket or will never be. */
  readonly onEnd: (how: ResponseEnd) => void;
}
