/**
 * Responses made by Sluice itself: `application/problem+json` (RFC 9457) with the `error` member that the
 * language-model SDKs read.
 *
 * Owns: the document and its fields. Does not own: sending them (`respond.ts`, `raw-errors.ts`).
 * Invariant: nothing but the code, our own sentences and our own numbers: no URL, credential or upstream text.
 */
import type { AdmissionRecord, CallFacts, RateLimitState } from '../call.ts';
import { refusals, type RefusalCode, type RefusalDetails } from '../errors.ts';
import { honouredWaitMs } from '../honoured-wait.policy.ts';

/** A whole response, ready to be written. */
export interface ProblemResponse {
  readonly status: number;
  /** Name and value alternating, `Content-Length` included, connection handling not. */
  readonly fields: string[];
  readonly body: Buffer;
}

/** A refusal on its way out. */
export interface RefusedCall {
  readonly code: RefusalCode;
  readonly details: RefusalDetails;
  readonly requestId: string;
  /** Status other than the code's own (408, 417). */
  readonly status?: number;
  /** Value of `Allow`, on 405. */
  readonly allow?: string;
  readonly known?: CallFacts;
  /** Fields of the call, name and value alternating: they show how long its client waits. */
  readonly rawFields?: readonly string[];
}

/** Largest integer a structured field may hold (RFC 9651 §3.3.1). */
const maxInteger = 999_999_999_999_999;

const whole = (value: number): number => (Number.isNaN(value) ? 0 : Math.min(maxInteger, Math.max(0, value)));
const rounded = (value: number): number => Math.round(whole(value));

/**
 * `Sluice-Admission`: `waited=<ms>, attempts=<n>, absorbed=<n>`; where something held the call, `held=(<cause>;ms=<n> …), ahead=<n>`; where
 * it was only observed, `would=send|wait|refuse, would-wait=<ms>`.
 */
function admissionField({ waitedMs, attempts, absorbed, held, ahead, would }: AdmissionRecord): string {
  const causes = held.map(({ cause, ms }) => `${cause};ms=${rounded(ms)}`);
  return [
    `waited=${rounded(waitedMs)}`,
    `attempts=${rounded(attempts)}`,
    `absorbed=${rounded(absorbed)}`,
    ...(causes.length === 0 ? [] : [`held=(${causes.join(' ')})`]),
    ...(ahead === undefined ? [] : [`ahead=${rounded(ahead)}`]),
    ...(would === undefined ? [] : [`would=${would.kind}`, `would-wait=${rounded(would.waitMs)}`]),
  ].join(', ');
}

/**
 * The structured fields (RFC 9651) that a known record and ceiling add, name and value alternating; those of the ceiling as in
 * draft-ietf-httpapi-ratelimit-headers. Every value is rounded so that never more room is stated than there is.
 */
export function knownFields(
  record: AdmissionRecord | null | undefined,
  rateLimit: RateLimitState | null | undefined,
): string[] {
  const fields: string[] = [];
  if (record) fields.push('Sluice-Admission', admissionField(record));
  if (rateLimit) {
    const { limit, remaining, resetSeconds } = rateLimit;
    const q = Math.floor(whole(limit));
    const [r, t] = [Math.floor(whole(remaining)), Math.ceil(whole(resetSeconds))];
    fields.push('RateLimit-Policy', `"workspace";q=${q};w=60`, 'RateLimit', `"workspace";r=${r};t=${t}`);
  }
  return fields;
}

/** `error.type` as the language-model SDKs know it. */
function errorType(status: number): string {
  if (status === 429) return 'rate_limit_error';
  if (status === 401) return 'authentication_error';
  return status < 500 ? 'invalid_request_error' : 'server_error';
}

function problemResponse(
  kind: { readonly status: number; readonly code: RefusalCode | 'internal'; readonly title: string },
  requestId: string,
  { detail = `${kind.title}.`, param, heldBy, said }: RefusalDetails,
  extra: readonly string[] = [],
): ProblemResponse {
  const { status, code, title } = kind;
  const type = `urn:sluice:error:${code}`;
  const error = {
    message: detail,
    type: said?.type ?? errorType(status),
    // A provider without codes has none here either; its clients look at the type.
    code: said === undefined ? code : said.code,
    param: param ?? null,
  };
  // `heldBy` is left out where it is not known.
  const body = Buffer.from(JSON.stringify({ type, title, status, detail, code, requestId, heldBy, error }));
  const fields = [
    'Content-Type',
    'application/problem+json',
    'Content-Length',
    String(body.length),
    // 404, 405 and 414 may otherwise be cached by default (RFC 9110 §15.1).
    'Cache-Control',
    'no-store',
    'Sluice-Error',
    code,
    'Sluice-Request-Id',
    requestId,
    ...extra,
  ];
  return { status, fields, body };
}

/** Above 2^31 − 1 ms client timers fire at once, so the exact spelling is left out. */
const maxTimerMs = 2_147_483_647;
/** The time given where no better one is known. */
const defaultRetryMs = 1_000;

/**
 * The true time to try again, in the spellings that client libraries really read; none is earlier than the truth. `Retry-After` has
 * whole seconds, at least 1: some clients fail on a fraction, and retry at once on 0 (openai from 6.27, urllib3).
 */
function retryLines(status: number, { code, details, rawFields = [] }: RefusedCall): string[] {
  const lines: string[] = [];
  const isRejected = refusals[code].family === 'rejected' && status !== 408;
  let shouldRetry = details.shouldRetry ?? (isRejected ? false : undefined);
  if (status === 429 || status === 503 || details.status !== undefined) {
    const { retryInMs = NaN } = details;
    const ms = Math.max(1, Math.ceil(Number.isFinite(retryInMs) ? retryInMs : defaultRetryMs));
    const seconds = Math.ceil(ms / 1_000);
    lines.push('Retry-After', String(seconds));
    if (ms <= maxTimerMs) lines.push('retry-after-ms', String(ms));
    // Nobody is to sleep for the rest of a day, also not who would.
    const honouredMs = honouredWaitMs(code === 'day_quota_exhausted' ? [] : rawFields);
    if (seconds * 1_000 > honouredMs) shouldRetry = false;
  }
  if (shouldRetry !== undefined) lines.push('x-should-retry', String(shouldRetry));
  return lines;
}

/** The response to a refused call. */
export function refusalResponse(refused: RefusedCall): ProblemResponse {
  const { code, details, requestId, known } = refused;
  const { title } = refusals[code];
  const status = refused.status ?? details.status ?? refusals[code].status;
  const extra = [...knownFields(known?.record, known?.rateLimit), ...retryLines(status, refused)];
  if (details.ticket !== undefined) extra.push('Sluice-Ticket', details.ticket);
  if (status === 401) extra.push('WWW-Authenticate', 'Bearer');
  // Required (RFC 9110 §15.5.22); clients of websockets that read it go on with plain requests at once.
  if (status === 426) extra.push('Upgrade', 'HTTP/1.1');
  if (refused.allow !== undefined) extra.push('Allow', refused.allow);
  return problemResponse({ status, code, title }, requestId, details, extra);
}

/** The response when Sluice itself is at fault. Says nothing about why: that is in the log, under the same request id. */
export const bugResponse = (requestId: string): ProblemResponse =>
  problemResponse({ status: 500, code: 'internal', title: 'Internal error' }, requestId, {
    detail: 'Sluice failed to handle this call.',
  });
