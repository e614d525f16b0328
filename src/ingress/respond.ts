/**
 * Writes responses: an {@link Outcome} of the journey, or a problem of our own.
 *
 * Owns: the fields Sluice adds, the framing of what is sent, backpressure from the client to the upstream, how slowly a client may read,
 * and how a broken response ends. Does not own: cleaning the upstream's fields (`dispatch/`), deciding anything about the call.
 * Invariants: one well-framed response or a closed connection; a cut body, or one that is not of its declared length, is never ended
 * cleanly; the end of the connection is announced when the request's body was not read to its end; afterwards the upstream's body is
 * either ended or destroyed.
 */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import type { ResponseEnd, Outcome, AdmissionRecord, CallFacts } from '../call.ts';
import { delay, every, type CancelTimer, type Clock } from '../clock.ts';
import { Refusal, refusals, type RefusalDetails } from '../errors.ts';
import { codingsIn, valuesOf } from '../field-lines.policy.ts';
import { type OpenCall, announcesBody, type ServeParts } from './connections.ts';
import { honouredWaitMs } from '../client-waits.policy.ts';

/** Set here or by the server, never copied. */
const framingFields: ReadonlySet<string> = new Set(['connection', 'content-length', 'transfer-encoding']);

/**
 * How an upstream's response is framed on the client's connection: the length announced is the length sent, or the transfer is chunked, or
 * there is no body (RFC 9110 §8.6, RFC 9112 §6). `bodiless`: no body is sent, whatever the upstream's is; `declaredBytes`: the length
 * promised by the head, `null` = none is. Returns `null` when the status cannot be answered with.
 */
function framingOf(
  method: string | undefined,
  { status, fields, body, shouldRetry }: Pick<Outcome, 'status' | 'fields' | 'body' | 'shouldRetry'>,
) {
  if (!Number.isInteger(status) || status < 200 || status > 599) return null;
  const kept: string[] = [];
  let declared: string | null = null;
  for (let at = 0; at < fields.length; at += 2) {
    const name = fields[at] ?? '';
    const value = fields[at + 1] ?? '';
    const lower = name.toLowerCase();
    if (lower === 'content-length') declared = /^[0-9]{1,15}$/.test(value) ? value : null;
    const isReplaced = framingFields.has(lower) || (lower === 'x-should-retry' && shouldRetry !== null);
    if (!isReplaced) kept.push(name, value);
  }
  const asHead = method === 'HEAD' || status === 304;
  if (status === 204) declared = null;
  else if (status === 205) declared = '0';
  // The length of a response to HEAD, or of 304, is that of the body which is not sent.
  else if (!asHead && !(body instanceof Readable)) declared = String(body?.length ?? 0);
  if (declared !== null) kept.push('Content-Length', declared);
  const bodiless = asHead || status === 204 || status === 205;
  return { fields: kept, bodiless, declaredBytes: declared === null ? null : Number(declared) };
}

const bodyUnread = ({ request }: OpenCall): boolean => announcesBody(request) && !request.complete;

/** Adds `Connection: close` where the connection ends with this response. */
function endLines(call: OpenCall, { isDraining }: ServeParts, mustEnd: boolean): string[] {
  const wanted = mustEnd || isDraining || bodyUnread(call);
  return call.connection.endsWith(call, wanted) ? ['Connection', 'close'] : [];
}

/** Up to this many bytes are copied rather than written beside the head. */
const smallBytes = 8 * 1024;

/**
 * Ends the response with its last bytes; `null` = nothing more. Resolves when all of it was handed to the socket, or never will be. Node
 * puts a string of one byte per character behind the head and writes both as one; a buffer becomes a write of two parts, which takes longer.
 */
async function finish(call: OpenCall, last: Buffer | null, parts: ServeParts): Promise<ResponseEnd> {
  const { response } = call;
  if (bodyUnread(call)) {
    if (last === null) response.flushHeaders();
    else response.write(last);
    await linger(call, parts);
    response.end();
  } else if (last === null) response.end();
  else if (last.length > smallBytes) response.end(last);
  else response.end(last.toString('latin1'), 'latin1');
  return written(call);
}

/** The end of a response of which nothing is left to be written but what waits in this process. */
function written({ response, gone, maxUnreadMs }: OpenCall): ResponseEnd | Promise<ResponseEnd> {
  if (gone.aborted) return 'client_gone';
  // Nothing waits in this process of almost all responses.
  if (response.writableLength === 0) return 'complete';
  // Node's timer begins anew with whatever the client takes.
  response.setTimeout(maxUnreadMs, () => response.req.socket.resetAndDestroy());
  return once(response, 'finish', { signal: gone }).then(
    (): ResponseEnd => 'complete',
    (): ResponseEnd => 'client_gone',
  );
}

/**
 * Throws away what still comes of an unread request body, for a moment. Closing at once would reset the connection
 * under a client that is still sending, and the reset can overtake our response (RFC 9112 §9.6).
 */
async function linger(
  { request, gone, connection }: OpenCall,
  { clock, connections, lingerMs }: ServeParts,
): Promise<void> {
  if (gone.aborted) return;
  connections.lingers(connection);
  const read = new AbortController();
  request.once('end', () => read.abort()).resume();
  await delay(clock, lingerMs, AbortSignal.any([gone, read.signal]));
}

/**
 * Ends a connection whose response broke in the middle, so that the client cannot take it for whole. Without framing the end of the
 * connection is the end of the body: only a reset shows the difference. One that the client holds back is reset, too: closed with the
 * rest in the system's buffer, it would stay for as long as the client takes to read that.
 */
function breakOff(response: ServerResponse, framed: boolean): void {
  const end = (): void => {
    if (framed && !response.writableNeedDrain) response.socket?.destroy();
    else response.socket?.resetAndDestroy();
  };
  if (response.socket === null) response.once('socket', end);
  else end();
}

/**
 * Moves an upstream's body to the client, at the client's pace, but does not end the response.
 * @param declaredBytes length promised in the head; `null` = none
 * @param commentMs a body of events gets a comment after so long a silence, milliseconds; `null` = it is passed on as it comes
 */
async function pump(
  call: OpenCall,
  body: Readable,
  declaredBytes: number | null,
  commentMs: number | null,
  clock: Clock,
): Promise<ResponseEnd> {
  const { response, gone } = call;
  let written = 0;
  const onGone = (): unknown => body.destroy();
  if (gone.aborted) onGone();
  else gone.addEventListener('abort', onGone);
  const comments = commentMs === null ? null : startComments(commentMs, response, clock);
  try {
    for await (const chunk of body as AsyncIterable<Buffer>) {
      written += chunk.length;
      comments?.passed(chunk);
      if (declaredBytes !== null && written > declaredBytes) return 'upstream_cut';
      if (!response.write(chunk)) await drained(call, body, clock);
    }
    return declaredBytes === null || written === declaredBytes ? 'complete' : 'upstream_cut';
  } catch {
    return gone.aborted ? 'client_gone' : 'upstream_cut';
  } finally {
    comments?.end();
    gone.removeEventListener('abort', onGone);
  }
}

/** Resolves when the client has taken what waits for it, or the body broke. */
async function drained({ response, maxUnreadMs }: OpenCall, body: Readable, clock: Clock): Promise<void> {
  const over = new AbortController();
  const onOver = (): void => over.abort();
  response.once('drain', onOver);
  body.once('close', onOver);
  while (!over.signal.aborted) {
    await delay(clock, maxUnreadMs, over.signal);
    // Behind another response nothing of it can be read yet.
    if (!over.signal.aborted) response.socket?.resetAndDestroy();
  }
  response.off('drain', onOver);
  body.off('close', onOver);
}

/** A comment may stand before the first event and after an empty line, which ends one; within an event it would be part of a line. */
const endsEvent = /(?:^|\n\n|\r\r|\r\n\r\n)$/;

/** Writes a comment whenever the stream was silent for `everyMs` milliseconds, unless it stopped within an event or bytes wait. */
function startComments(everyMs: number, response: ServerResponse, clock: Pick<Clock, 'after'>) {
  let tail = '';
  const start = (): CancelTimer =>
    every(clock, everyMs, () => {
      if (endsEvent.test(tail) && !response.writableNeedDrain) response.write(': waiting\n\n');
    });
  let cancel = start();
  return {
    passed(bytes: Buffer): void {
      tail = (tail + bytes.toString('latin1', Math.max(0, bytes.length - 4))).slice(-4);
      cancel();
      cancel = start();
    },
    end: (): void => cancel(),
  };
}

/** True for an event stream that anybody can read as it passes. `rawFields`: name and value alternating. */
const isPlainEventStream = (rawFields: readonly string[]): boolean =>
  valuesOf(rawFields, 'content-type').some((type) => /^\s*text\/event-stream\b/i.test(type)) &&
  codingsIn(valuesOf(rawFields, 'content-encoding').join()).length === 0;

/**
 * Writes a response of the journey. Resolves when it has ended, one way or the other.
 * @throws Refusal `upstream_invalid` when the head cannot be sent; nothing was written then.
 */
export async function writeOutcome(
  call: OpenCall,
  outcome: Outcome,
  parts: ServeParts,
): Promise<ResponseEnd> {
  const { body, commentMs = null, status, shouldRetry } = outcome;
  const { request, response } = call;
  call.maxUnreadMs = outcome.maxUnreadMs ?? call.maxUnreadMs;
  const stream = body instanceof Readable ? body : null;
  // Stays: an error after the end must not become an uncaught one.
  stream?.on('error', () => {});
  if (call.gone.aborted) {
    stream?.destroy();
    return 'client_gone';
  }
  const framing = framingOf(request.method, outcome);
  const { fields = [], bodiless = false, declaredBytes = null } = framing ?? {};
  fields.push('Sluice-Request-Id', call.id, ...knownFields(outcome));
  if (outcome.isReplayed === true) fields.push('Sluice-Replayed', 'true');
  if (shouldRetry !== null) fields.push('x-should-retry', String(shouldRetry));
  // HTTP/1.0 has no chunks: without a length the end of the connection is the end of the body.
  const unframed = request.httpVersion === '1.0' && !bodiless && declaredBytes === null;
  try {
    if (framing === null) throw new Refusal('upstream_invalid');
    fields.push(...endLines(call, parts, unframed));
    response.writeHead(status, fields);
  } catch {
    // Node refuses values it will not put on the wire, before any byte of them is there.
    stream?.destroy();
    throw new Refusal('upstream_invalid');
  }
  if (bodiless) {
    // Read, so that the upstream's connection can be used again; whatever is not at its end by then is let go.
    stream?.resume();
    const end = await finish(call, null, parts);
    stream?.destroy();
    return end;
  }
  if (!(body instanceof Readable)) return finish(call, body, parts);
  const mayComment = declaredBytes === null && commentMs !== null && isPlainEventStream(outcome.fields);
  // With bytes at hand the head is sent together with them; otherwise it does not wait for them.
  if (body.readableLength === 0) response.flushHeaders();
  const end = await pump(call, body, declaredBytes, mayComment ? commentMs : null, parts.clock);
  if (end === 'complete') return finish(call, null, parts);
  if (end === 'upstream_cut') breakOff(response, declaredBytes !== null || response.chunkedEncoding);
  return end;
}

/** Writes a problem of our own. `mustEnd`: what follows on this connection cannot be trusted. */
export async function writeProblem(
  call: OpenCall,
  { status, fields, body }: ProblemResponse,
  parts: ServeParts,
  mustEnd = false,
): Promise<ResponseEnd> {
  const { request, response, gone } = call;
  if (gone.aborted) return 'client_gone';
  if (response.headersSent) {
    breakOff(response, response.chunkedEncoding);
    return 'upstream_cut';
  }
  for (const name of response.getHeaderNames()) response.removeHeader(name);
  response.writeHead(status, [...fields, ...endLines(call, parts, mustEnd)]);
  return finish(call, request.method === 'HEAD' ? null : body, parts);
}

// Responses made by Sluice itself: `application/problem+json` (RFC 9457) with the `error` member that the
// language-model SDKs read.
//
// Nothing but the code, our own sentences and our own numbers: no URL, credential or upstream text.

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
 * `Sluice-Admission`: `waited=<ms>, attempts=<n>, absorbed=<n>`; where something held the call, `held=(<cause>;ms=<n> …)`; where
 * it was only observed, `would=send|wait|refuse, would-wait=<ms>`.
 */
function admissionField({ waitedMs, attempts, absorbed, held, would }: AdmissionRecord): string {
  let field = `waited=${rounded(waitedMs)}, attempts=${rounded(attempts)}, absorbed=${rounded(absorbed)}`;
  if (held.length > 0)
    field += `, held=(${held.map(({ cause, ms }) => `${cause};ms=${rounded(ms)}`).join(' ')})`;
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
    // Up to 61: the log's window is a little longer than what is promised, and the slot is free after the log's.
    const t = Math.ceil(whole(rateLimit.nextSlotMs) / 1_000);
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
