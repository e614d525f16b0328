/**
 * Responses made by Sluice itself: `application/problem+json` (RFC 9457) with the `error` member that the
 * language-model SDKs read.
 *
 * Owns: the document and its fields. Does not own: sending them (`respond.ts`, `data-server.ts`).
 * Invariant: nothing but the code, our own sentences and our own numbers: no URL, credential or upstream text.
 */
import type { AdmissionRecord, CallFacts } from '../call.ts';
import { refusals, type Refusal, type RefusalDetails } from '../errors.ts';
import { honouredWaitMs } from '../honoured-wait.policy.ts';

/** A whole response, ready to be written. */
export interface ProblemResponse {
  readonly status: number;
  /** Name and value alternating, `Content-Length` included, connection handling not. */
  readonly fields: string[];
  readonly body: Buffer;
}

/** Value of `Allow` where no route has another one: the methods that Sluice passes on. */
export const proxyMethods = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS';

/** Largest integer a structured field may hold (RFC 9651 §3.3.1). */
const maxInteger = 999_999_999_999_999;

const whole = (value: number): number => (Number.isNaN(value) ? 0 : Math.min(maxInteger, Math.max(0, value)));
const rounded = (value: number): number => Math.round(whole(value));

/**
 * `Sluice-Admission`: `waited=<ms>, attempts=<n>, absorbed=<n>`; where something held the call, `held=(<cause>;ms=<n> …), ahead=<n>`; where
 * it was only observed, `would=send|wait|refuse, would-wait=<ms>`.
 */
function admissionField({ waitedMs, attempts, absorbed, held, ahead, would }: AdmissionRecord): string {
  let field = `waited=${rounded(waitedMs)}, attempts=${rounded(attempts)}, absorbed=${rounded(absorbed)}`;
  if (held.length > 0)
    field += `, held=(${held.map(({ cause, ms }) => `${cause};ms=${rounded(ms)}`).join(' ')})`;
  if (ahead !== undefined) field += `, ahead=${rounded(ahead)}`;
  if (would !== undefined) field += `, would=${would.kind}, would-wait=${rounded(would.waitMs)}`;
  return field;
}

/**
 * The structured fields (RFC 9651) that a known record and ceiling add, name and value alternating; those of the ceiling as in
 * draft-ietf-httpapi-ratelimit-headers. Every value is rounded so that never more room is stated than there is.
 */
export function knownFields({ record, rateLimit }: CallFacts): string[] {
  const fields: string[] = [];
  if (record !== undefined) fields.push('Sluice-Admission', admissionField(record));
  if (rateLimit) {
    const q = Math.floor(whole(rateLimit.limit));
    const r = Math.floor(whole(rateLimit.remaining));
    const t = Math.ceil(whole(rateLimit.resetSeconds));
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
  { status, code, title }: { readonly status: number; readonly code: string; readonly title: string },
  requestId: string,
  { detail = `${title}.`, param, heldBy, said }: RefusalDetails,
  extra: readonly string[],
): ProblemResponse {
  // A provider without codes has none here either; its clients look at the type.
  const type = said?.type ?? errorType(status);
  const word = said === undefined ? code : said.code;
  const error = { message: detail, type, code: word, param: param ?? null };
  const problem = { type: `urn:sluice:error:${code}`, title, status, detail, code, requestId, heldBy, error };
  // `heldBy` is left out where it is not known.
  const body = Buffer.from(JSON.stringify(problem));
  const fields = ['Content-Type', 'application/problem+json', 'Content-Length', String(body.length)];
  // 404, 405 and 414 may otherwise be cached by default (RFC 9110 §15.1).
  fields.push('Cache-Control', 'no-store', 'Sluice-Error', code, 'Sluice-Request-Id', requestId, ...extra);
  return { status, fields, body };
}

/** Above 2^31 − 1 ms client timers fire at once, so the exact spelling is left out. */
const maxTimerMs = 2_147_483_647;
/** The time given where no better one is known. */
const defaultRetryMs = 1_000;

/**
 * The response to a refused call.
 * @param known what the journey has reported of the call
 * @param rawFields fields of the call, name and value alternating: they show how long its client waits
 */
export function refusalResponse(
  { code, details }: Pick<Refusal, 'code' | 'details'>,
  requestId: string,
  known: CallFacts = {},
  rawFields: readonly string[] = [],
): ProblemResponse {
  const { family, title, status: usual } = refusals[code];
  const { status = usual, allow = proxyMethods, retryInMs = NaN, ticket } = details;
  const fields = knownFields(known);
  let shouldRetry = details.shouldRetry ?? (family === 'rejected' && status !== 408 ? false : undefined);
  if (status === 429 || status === 503 || code === 'upstream_refused') {
    // The true time to try again, in the spellings that client libraries really read; none is earlier than the truth. `Retry-After` has
    // whole seconds, at least 1: some clients fail on a fraction, and retry at once on 0 (openai from 6.27, urllib3).
    const ms = Math.max(1, Math.ceil(Number.isFinite(retryInMs) ? retryInMs : defaultRetryMs));
    const seconds = Math.ceil(ms / 1_000);
    fields.push('Retry-After', String(seconds));
    if (ms <= maxTimerMs) fields.push('retry-after-ms', String(ms));
    // Nobody is to sleep for the rest of a day, also not who would.
    const honouredMs = honouredWaitMs(code === 'day_quota_exhausted' ? [] : rawFields);
    if (seconds * 1_000 > honouredMs) shouldRetry = false;
  }
  if (shouldRetry !== undefined) fields.push('x-should-retry', String(shouldRetry));
  if (ticket !== undefined) fields.push('Sluice-Ticket', ticket);
  if (status === 401) fields.push('WWW-Authenticate', 'Bearer');
  // Required (RFC 9110 §15.5.6, §15.5.22); clients of websockets that read the second go on with plain requests at once.
  if (status === 405) fields.push('Allow', allow);
  if (status === 426) fields.push('Upgrade', 'HTTP/1.1');
  return problemResponse({ status, code, title }, requestId, details, fields);
}

/** The response when Sluice itself is at fault. Says nothing about why: that is in the log, under the same request id. */
export const bugResponse = (requestId: string): ProblemResponse =>
  problemResponse(
    { status: 500, code: 'internal', title: 'Internal error' },
    requestId,
    { detail: 'Sluice failed to handle this call.' },
    [],
  );
