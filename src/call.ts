/**
 * Shared vocabulary of a call's journey, types only. ARCHITECTURE.md tells the story these words belong to.
 */
import type { Readable } from 'node:stream';
import type { UpstreamCredential, UpstreamSettings, WorkspaceSettings } from './config/settings.ts';

/** One client request on its way through Sluice. Built by `ingress/read-call.ts`, never changed afterwards. */
export interface Call {
  /** `Sluice-Request-Id`: 32 hex digits. */
  readonly id: string;
  /** Monotonic milliseconds at which the request's head was complete. */
  readonly receivedAt: number;
  readonly method: string;
  /** Which route: `/proxy?target=` or `/via/{upstream}/…`. */
  readonly form: 'proxy' | 'via';
  /** The request target exactly as received (`/proxy?target=…`). */
  readonly rawUrl: string;
  /** Field lines as received, name and value alternating (Node's `rawHeaders`). */
  readonly rawFields: readonly string[];
  /** Address of the peer, for limiting failed authentications only; never logged. */
  readonly source: string;
  /** Aborted when the client's connection is gone. */
  readonly clientGone: AbortSignal;
}

/** Who calls: the workspace, and where its key was found (that field never travels upstream). */
export interface Caller {
  readonly workspace: WorkspaceSettings;
  /** Lower-case name of the field that carried the API key. */
  readonly keyField: string;
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
  /** Raw path and query, byte for byte as the client wrote them; starts with `/`. */
  readonly pathAndQuery: string;
  /** Injected credential, or `null` when the client brings its own. */
  readonly credential: UpstreamCredential | null;
}

/** Bytes of a request body, complete before the call is admitted. */
export interface CallBody {
  readonly bytes: Buffer;
  /** False when the body is larger than what may be kept for another sending. */
  readonly replayable: boolean;
}

/** Dimension of a bucket. `requests` and `tokens` count per minute (or the window the upstream reported), `*_day` per day, `cost` commerce GraphQL points. */
export type MeterName = 'requests' | 'tokens' | 'requests_day' | 'tokens_day' | 'cost' | 'images';

/** What one call takes from each meter; absent = 0. */
export type Costs = Readonly<Partial<Record<MeterName, number>>>;

/** What an answer told about one meter, at the instant its call was admitted by the upstream. */
export interface MeterReport {
  readonly meter: MeterName;
  /** Capacity: units per window. */
  readonly limit: number;
  /** Length of the window in which `limit` units drain, milliseconds; `null` = the answer does not tell, keep the known one. */
  readonly windowMs: number | null;
  /** Level (used units) including this call, as an interval because of rounding. `lowest <= highest`; `null` = not told. */
  readonly level: { readonly lowest: number; readonly highest: number } | null;
}

/** Everything an answer taught. All durations are relative to the arrival of the answer's head. */
export interface Feedback {
  readonly meters: readonly MeterReport[];
  /** Set when the answer was a throttle: what the upstream said about waiting. */
  readonly throttle: Throttle | null;
}

/**
 * A throttled answer, classified.
 * `rate`: absorb; `waitMs` is the time the upstream named (`null` = no hint).
 * `secondary`: a limit that is not the bucket's own (dev-store order limit); close only this call's path, at least 60 s.
 * `permanent`: never resend; `reason` is a class, not upstream text.
 * `overload`: upstream short of capacity (503/529/slow_down), longer back-off.
 */
export type Throttle =
  | { readonly kind: 'rate'; readonly waitMs: number | null; readonly meter: MeterName | null }
  | { readonly kind: 'secondary'; readonly waitMs: number | null }
  | { readonly kind: 'overload'; readonly waitMs: number | null }
  | {
      readonly kind: 'permanent';
      readonly reason: 'quota' | 'too_large' | 'daily' | 'max_cost' | 'store_state';
      /** Time after which trying may make sense, or `null`. */
      readonly waitMs: number | null;
    };

/** Head of an upstream answer, before cleaning. `rawFields` alternates name and value. */
export interface AnswerHead {
  readonly status: number;
  readonly rawFields: readonly string[];
}

/** An upstream answer whose head has arrived. The body is read once, by whoever owns the outcome. */
export interface UpstreamAnswer {
  readonly head: AnswerHead;
  readonly body: Readable;
}

/** Counters the caller is told in `Sluice-Admission`. */
export interface AdmissionRecord {
  readonly waitedMs: number;
  readonly attempts: number;
  readonly absorbed: number;
}
