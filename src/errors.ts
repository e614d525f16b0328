/**
 * The closed set of refusals Sluice itself makes, one row each. Everything that a client can be answered by us, and not by
 * the upstream, is in this table; anything thrown that is not a {@link Refusal} is a bug.
 */

import { namesIn } from './words.policy.ts';

/** `shed`: counted in `sluice_shed_total`, carries `Retry-After`. `rejected`: the caller must change something, so that repeating cannot succeed. `failed`: the upstream's side broke. */
type Family = 'shed' | 'rejected' | 'failed';

const kind = (status: number, family: Family, title: string) => ({ status, family, title });

/** Code → status, family and title. Codes are final: clients and dashboards depend on them. */
export const refusals = {
  target_missing: kind(400, 'rejected', 'No target was given'),
  target_invalid: kind(400, 'rejected', 'The target is not a usable URL'),
  request_invalid: kind(400, 'rejected', 'The request is malformed'),
  unauthenticated: kind(401, 'rejected', 'A valid API key is required'),
  target_forbidden: kind(403, 'rejected', 'The target is not allowed'),
  not_found: kind(404, 'rejected', 'No such route'),
  method_not_allowed: kind(405, 'rejected', 'Method not allowed'),
  idempotency_conflict: kind(409, 'rejected', 'The response for the idempotency key is not available'),
  body_too_large: kind(413, 'rejected', 'The request body is too large'),
  target_too_long: kind(414, 'rejected', 'The target is too long'),
  idempotency_mismatch: kind(422, 'rejected', 'The idempotency key was used with another request'),
  queue_full: kind(429, 'shed', 'Too many calls are waiting'),
  wait_too_long: kind(429, 'shed', 'The call cannot leave within its wait'),
  wait_expired: kind(429, 'shed', 'The call waited, and cannot leave in time'),
  day_quota_exhausted: kind(429, 'shed', 'The daily quota is used up'),
  headers_too_large: kind(431, 'rejected', 'The request header is too large'),
  /** Answered with the status of the upstream's own refusal (`RefusalDetails.status`). */
  upstream_refused: kind(429, 'rejected', 'The upstream refuses such calls'),
  upgrade_unsupported: kind(426, 'rejected', 'Protocol upgrades are not supported'),
  upstream_unreachable: kind(502, 'failed', 'The upstream could not be reached'),
  upstream_invalid: kind(502, 'failed', 'The upstream sent an invalid response'),
  credential_unavailable: kind(502, 'failed', 'The upstream credential is not available'),
  target_address_denied: kind(502, 'failed', 'The target address is not allowed'),
  draining: kind(503, 'shed', 'This replica is shutting down'),
  limiter_unavailable: kind(503, 'shed', 'The limiter is unavailable'),
  overloaded: kind(503, 'shed', 'Sluice has too much to do'),
  upstream_timeout: kind(504, 'failed', 'The upstream did not answer in time'),
  loop_detected: kind(508, 'rejected', 'The call came back to Sluice'),
};

export type RefusalCode = keyof typeof refusals;

/** Codes of refusals for lack of room or time. */
export const roomRefusals = namesIn('queue_full wait_too_long wait_expired day_quota_exhausted');
/** Codes of the refusals whose outcome is `shed`. Counts of them are published by index: new ones go to the end. */
export const shedReasons = [...roomRefusals, 'draining', 'limiter_unavailable', 'overloaded'] as const;
/** Codes with which limits refuse a call, and those with which they would have. */
export const limitRefusals = [...roomRefusals, 'limiter_unavailable'] as const;
export type LimitRefusal = (typeof limitRefusals)[number];

/**
 * What can hold a call back, as a 429 and its log line name it (`heldBy`). Names are final.
 *
 * `ceiling_*`: the workspace's own ceiling · `closed`: the upstream named a time before which nobody may send ·
 * `requests` `tokens` `cost`: a quota of the upstream · `upstream_day`: its quota of the day · `serialized`: as many
 * calls are in flight as may be, of the same workspace or of all · `queue`: as many calls wait as may wait · `paused`: an operator's pause · `credential`: the
 * upstream credential has ended, and the next one is awaited.
 */
export const heldByReasons = namesIn(
  'ceiling_minute ceiling_day closed requests tokens cost upstream_day serialized queue paused credential',
);
export type HeldBy = (typeof heldByReasons)[number];

/**
 * Why an attempt to reach the upstream failed, as log, trace and metric name it (`reason`). Names are final.
 *
 * `refused`: no connection could be begun · `dns`: its name could not be resolved · `certificate`: its certificate is not
 * trusted · `reset`: the connection broke · `timeout`: one of the upstream's time limits · `protocol`: no valid TLS or HTTP.
 */
export const failureReasons = namesIn('refused dns certificate reset timeout protocol');
export type FailureReason = (typeof failureReasons)[number];

/**
 * What a call was refused for with `overloaded`, as a metric names it (`bound`). Names are final.
 *
 * `connections` open in the process · `connection_calls`: calls open on one connection · `calls` open in the process ·
 * `bytes` of heads and bodies · `event_loop` `memory`: the process is short of time, or of memory.
 */
export const overloadBounds = namesIn('connections connection_calls calls bytes event_loop memory');
export type OverloadBound = (typeof overloadBounds)[number];

/**
 * Why there is no upstream credential to send, as a refusal, a log line and a metric name it (names are final), and what each says of a
 * credential, as the end of a sentence that names no file, host or response.
 *
 * `missing`: no file, or none that may be read · `invalid`: what the file or the token endpoint gave cannot be sent ·
 * `unreachable` `address_denied` `timeout`: the way to the token endpoint · `throttled`: it is asked too often, or cannot answer
 * now · `refused`: it does not accept this client · `grant_ended`: it does not accept the refresh token, so that a person has to authorize the
 * client again · `unwritable`: the refresh token's file could not be replaced.
 */
export const credentialFaultWords = {
  missing: 'its file is missing (missing)',
  invalid: 'what its source gave cannot be sent (invalid)',
  unreachable: 'its token endpoint cannot be reached (unreachable)',
  address_denied: 'the address of its token endpoint is not allowed (address_denied)',
  timeout: 'its token endpoint does not answer in time (timeout)',
  throttled: 'its token endpoint cannot answer now (throttled)',
  refused: 'its token endpoint does not accept this client (refused)',
  grant_ended:
    'its refresh token is not valid any more, an operator has to authorize the client again and write the new token to its file (grant_ended)',
  unwritable: 'the file of its refresh token cannot be replaced (unwritable)',
};
export type CredentialFault = keyof typeof credentialFaultWords;
export const credentialFaults = Object.keys(credentialFaultWords) as readonly CredentialFault[];

/** What a provider's own error says, in a closed vocabulary; `null` = nothing, or no known word. `code` may be an HTTP status. */
export interface ProviderError {
  readonly type: string | null;
  readonly code: string | number | null;
}

/** What a refusal may carry beside its code. */
export interface RefusalDetails {
  /** One sentence for the caller: what to do. Never contains a URL, a credential or upstream text. */
  readonly detail?: string;
  /** True time until trying again can succeed, in milliseconds; becomes `Retry-After` and `retry-after-ms`. */
  readonly retryInMs?: number;
  /** Status of the response where it is not the code's own. */
  readonly status?: number;
  /** Value of `Allow` on 405; absent = what Sluice passes on. */
  readonly allow?: string;
  /** What the client sends with the call when it comes back: its position is kept. */
  readonly ticket?: string;
  /** What held the call back; every 429 of ours has it. */
  readonly heldBy?: HeldBy;
  /** What the upstream's own error said, for `error.type` and `error.code`: known words only. */
  readonly said?: ProviderError;
  /** Parameter at fault, for the `error.param` member. */
  readonly param?: string;
  /** `false` adds `x-should-retry: false`, as every `rejected` code does: repeating this call could run it twice or cannot succeed. */
  readonly shouldRetry?: boolean;
}

/** A refusal made by Sluice. Thrown anywhere in the journey, turned into a response in one place (`ingress/respond.ts`). */
export class Refusal extends Error {
  readonly code: RefusalCode;
  readonly details: RefusalDetails;

  constructor(code: RefusalCode, details: RefusalDetails = {}) {
    super(code);
    this.name = 'Refusal';
    this.code = code;
    this.details = details;
  }

  /** HTTP status of the response. */
  get status(): number {
    return this.details.status ?? refusals[this.code].status;
  }
}

/** The API key of a call that was admitted has ended. */
export const keyEnded = (): Refusal =>
  new Refusal('unauthenticated', {
    detail: 'The API key expired or was removed while the call waited: send it again with a valid one.',
  });
