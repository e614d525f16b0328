/**
 * Writes responses: an {@link Outcome} of the journey, or a problem of our own.
 *
 * Owns: the fields Sluice adds, the framing of what is sent, and how a broken response ends.
 * Does not own: cleaning the upstream's fields (`dispatch/`), deciding anything about the call.
 * Invariants: one well-framed response or a closed connection; a cut body is never ended cleanly; the end of the
 * connection is announced when the request's body was not read to its end.
 */
import type { ServerResponse } from 'node:http';
import type { ResponseEnd, Outcome } from '../call.ts';
import { Refusal } from '../errors.ts';
import { announcesBody } from './body.ts';
import type { OpenCall } from './connections.ts';
import { outcomeFraming } from './framing.policy.ts';
import type { ProblemResponse } from './problem.ts';
import { knownFields } from './ratelimit-fields.ts';
import type { ServeParts } from './read-call.ts';
import { discard, isPlainEventStream, limitUnread, pump, type Streamed } from './response-stream.ts';

/** The limit of `maxUnreadMs` for responses of our own: what `timeouts.idleSeconds` is where nothing else is configured. Milliseconds. */
const ownUnreadMs = 300_000;

const bodyUnread = ({ request }: OpenCall): boolean => announcesBody(request) && !request.complete;

/** Adds `Connection: close` where the connection ends with this response. */
function endLines(call: OpenCall, { draining }: ServeParts, mustEnd: boolean): string[] {
  const wanted = mustEnd || draining() || bodyUnread(call);
  return call.connection.endsWith(call, wanted) ? ['Connection', 'close'] : [];
}

/** Resolves when the whole response was handed to the socket, or never will be. */
const responseEnd = ({ response, gone }: OpenCall): Promise<ResponseEnd> =>
  new Promise((resolve) => {
    const onGone = (): void => resolve('client_gone');
    response.on('finish', () => {
      gone.removeEventListener('abort', onGone);
      resolve('complete');
    });
    if (gone.aborted) onGone();
    else gone.addEventListener('abort', onGone);
  });

/**
 * Throws away what still comes of an unread request body, for a moment. Closing at once would reset the connection
 * under a client that is still sending, and the reset can overtake our response (RFC 9112 §9.6).
 */
const linger = (
  { request, gone, connection }: OpenCall,
  { clock, connections, lingerMs }: ServeParts,
): Promise<void> =>
  new Promise((resolve) => {
    if (gone.aborted) {
      resolve();
      return;
    }
    connections.lingers(connection);
    const done = (): void => {
      cancel();
      request.off('end', done);
      gone.removeEventListener('abort', done);
      resolve();
    };
    const cancel = clock.after(lingerMs, done);
    request.once('end', done).resume();
    gone.addEventListener('abort', done);
  });

/** What ends a response; `null` = nothing more. */
interface LastBytes {
  readonly last: Buffer | null;
  readonly maxUnreadMs?: number;
}

/** Up to this many bytes are copied rather than written beside the head. */
const smallBytes = 8 * 1024;

/**
 * Ends the response with its last bytes, lingering first where the request was not read. Node puts a string of one byte per
 * character behind the head and writes both as one; a buffer becomes a write of two parts, which takes longer.
 */
async function finish(
  call: OpenCall,
  { last, maxUnreadMs = ownUnreadMs }: LastBytes,
  parts: ServeParts,
): Promise<ResponseEnd> {
  const { response } = call;
  const ended = responseEnd(call);
  if (bodyUnread(call)) {
    if (last === null) response.flushHeaders();
    else response.write(last);
    await linger(call, parts);
    response.end();
  } else if (last === null) response.end();
  else if (last.length > smallBytes) response.end(last);
  else response.end(last.toString('latin1'), 'latin1');
  // Nothing waits in this process of almost all responses.
  if (response.writableLength > 0) limitUnread(response, maxUnreadMs);
  return ended;
}

/** Ends a connection whose response broke in the middle, so that the client cannot take it for whole. */
function breakOff(response: ServerResponse, framed: boolean): void {
  // Without framing the end of the connection is the end of the body: only a reset shows the difference.
  const end = (): void => {
    if (framed) response.socket?.destroy();
    else response.socket?.resetAndDestroy();
  };
  if (response.socket === null) response.once('socket', end);
  else end();
}

async function stream(call: OpenCall, streamed: Streamed, parts: ServeParts): Promise<ResponseEnd> {
  const { body, declaredBytes, maxUnreadMs } = streamed;
  const { response } = call;
  // With bytes at hand the head is sent together with them; otherwise it does not wait for them.
  if (body.readableLength === 0) response.flushHeaders();
  const end = await pump(call, streamed, parts.clock);
  if (end === 'complete') return finish(call, { last: null, maxUnreadMs }, parts);
  if (end === 'upstream_cut') breakOff(response, declaredBytes !== null || response.chunkedEncoding);
  return end;
}

/**
 * Writes a response of the journey. Resolves when it has ended, one way or the other.
 * @throws Refusal `upstream_invalid` when the head cannot be sent; nothing was written then.
 */
export async function writeOutcome(
  call: OpenCall,
  outcome: Outcome,
  parts: ServeParts,
): Promise<ResponseEnd> {
  const { body, maxUnreadMs = ownUnreadMs } = outcome;
  const release = (): void => {
    if (body !== null && !Buffer.isBuffer(body)) discard(body);
  };
  if (call.gone.aborted) {
    release();
    return 'client_gone';
  }
  const framing = outcomeFraming({
    method: call.request.method ?? 'GET',
    status: outcome.status,
    fields: outcome.fields,
    body: body === null ? 0 : Buffer.isBuffer(body) ? body.length : 'stream',
    replaced: outcome.shouldRetry === null ? [] : ['x-should-retry'],
  });
  if (framing === null) {
    release();
    throw new Refusal('upstream_invalid');
  }
  const { fields } = framing;
  fields.push('Sluice-Request-Id', call.id, ...knownFields(outcome.record, outcome.rateLimit));
  if (outcome.isReplayed === true) fields.push('Sluice-Replayed', 'true');
  if (outcome.shouldRetry !== null) fields.push('x-should-retry', String(outcome.shouldRetry));
  // HTTP/1.0 has no chunks: without a length the end of the connection is the end of the body.
  const unframed = call.request.httpVersion === '1.0' && !framing.bodiless && framing.declaredBytes === null;
  try {
    fields.push(...endLines(call, parts, unframed));
    call.response.writeHead(outcome.status, fields);
  } catch {
    // Node refuses values it will not put on the wire, before any byte of them is there.
    release();
    throw new Refusal('upstream_invalid');
  }
  if (framing.bodiless) {
    // Read, so that the upstream's connection can be used again; whatever is not at its end by then is let go.
    if (body !== null && !Buffer.isBuffer(body)) body.on('error', () => {}).resume();
    const end = await finish(call, { last: null, maxUnreadMs }, parts);
    release();
    return end;
  }
  if (body === null || Buffer.isBuffer(body)) return finish(call, { last: body, maxUnreadMs }, parts);
  const { declaredBytes } = framing;
  const { commentMs: wanted = null } = outcome;
  const mayComment = wanted !== null && declaredBytes === null && isPlainEventStream(outcome.fields);
  const commentMs = mayComment ? wanted : null;
  return stream(call, { body, declaredBytes, maxUnreadMs, commentMs }, parts);
}

/** Writes a problem of our own. `mustEnd`: what follows on this connection cannot be trusted. */
export async function writeProblem(
  call: OpenCall,
  problem: ProblemResponse,
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
  response.writeHead(problem.status, [...problem.fields, ...endLines(call, parts, mustEnd)]);
  return finish(call, { last: request.method === 'HEAD' ? null : problem.body }, parts);
}
