/**
 * Moves an upstream's body to the client.
 *
 * Owns: backpressure from the client to the upstream, how slowly a client may read, and telling a whole body from a cut one.
 * Does not own: heads, and what a cut means for the connection (`respond.ts`).
 * Invariants: no more than one stream buffer of each side is held; a body shorter or longer than its declared
 * length counts as cut; afterwards the body is either ended or destroyed.
 */
import type { ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import type { ResponseEnd } from '../call.ts';
import type { CancelTimer, Clock } from '../clock.ts';
import { fieldMap } from '../field-lines.policy.ts';
import type { OpenCall } from './connections.ts';

export interface Streamed {
  readonly body: Readable;
  /** Length promised in the head, bytes; `null` = none. */
  readonly declaredBytes: number | null;
  /** A client that reads nothing of the waiting bytes for this long, or not all of them, counts as gone, milliseconds. */
  readonly maxUnreadMs: number;
  /** A body of events gets a comment after so long a silence, milliseconds; `null` = it is passed on as it comes. */
  readonly commentMs: number | null;
}

/**
 * A client for which bytes have waited so long holds its response back. When the response breaks, its connection is reset: closed
 * with the rest in the system's buffer, it would stay for as long as the client takes to read that. Milliseconds.
 */
const heldBackMs = 1_000;
/** For all that waits (some 64 KiB) a client has at least this long, milliseconds. */
const minDrainMs = 30_000;

/** Lets go of a body nobody will read. */
export function discard(body: Readable): void {
  body.on('error', () => {});
  body.destroy();
}

function cutOff(this: ServerResponse): void {
  this.req.socket.resetAndDestroy();
}

/**
 * Bytes wait for the client: it is cut off if it takes none of them for this long. Node's timer of the socket begins anew with whatever
 * the client takes, and with the turn of this response on the connection.
 */
export function limitUnread(response: ServerResponse, ms: number): void {
  if (!response.listeners('timeout').includes(cutOff)) response.on('timeout', cutOff);
  response.setTimeout(ms);
}

/** Writes the whole body, but does not end the response. */
export const pump = (
  { response, gone }: OpenCall,
  { body, declaredBytes, maxUnreadMs, commentMs }: Streamed,
  clock: Pick<Clock, 'monotonic' | 'after'>,
): Promise<ResponseEnd> =>
  new Promise((resolve) => {
    let written = 0;
    let fullSince: number | null = null;
    let cancelDrain: CancelTimer = () => {};
    const limitDrain = (): void => {
      cancelDrain();
      cancelDrain = clock.after(Math.max(maxUnreadMs, minDrainMs), () =>
        // Behind another response nothing of it can be read yet.
        response.socket === null ? limitDrain() : response.socket.resetAndDestroy(),
      );
    };
    // A client for which bytes wait has not run out of them.
    const writeComment = (text: string): void => void (fullSince ?? response.write(text));
    const comments = commentMs === null ? null : startComments(commentMs, writeComment, clock);
    const settle = (end: ResponseEnd): void => {
      comments?.end();
      cancelDrain();
      body.off('data', onData).off('end', onEnd).off('close', onCut);
      response.off('drain', onDrain);
      gone.removeEventListener('abort', onGone);
      if (end !== 'complete') body.destroy();
      resolve(end);
    };
    const onData = (chunk: Buffer): void => {
      written += chunk.length;
      comments?.passed(chunk);
      if (declaredBytes !== null && written > declaredBytes) settle('upstream_cut');
      else if (!response.write(chunk)) {
        body.pause();
        fullSince = clock.monotonic();
        limitUnread(response, maxUnreadMs);
        limitDrain();
      }
    };
    const onDrain = (): void => {
      fullSince = null;
      cancelDrain();
      response.setTimeout(0);
      body.resume();
    };
    const onEnd = (): void =>
      settle(declaredBytes === null || written === declaredBytes ? 'complete' : 'upstream_cut');
    const onCut = (): void => {
      settle('upstream_cut');
      const isHeldBack = fullSince !== null && clock.monotonic() - fullSince >= heldBackMs;
      if (isHeldBack && response.socket !== null) response.req.socket.resetAndDestroy();
    };
    const onGone = (): void => settle('client_gone');
    // Stays: an error after the end must not become an uncaught one. A cut shows as `close` without `end`.
    body.on('error', () => {});
    if (gone.aborted) onGone();
    else if (body.readableEnded) onEnd();
    else if (body.destroyed) onCut();
    else {
      gone.addEventListener('abort', onGone);
      response.on('drain', onDrain);
      body.on('close', onCut).on('end', onEnd).on('data', onData);
      // A reader of the body before this left it paused, and a paused stream does not flow by being listened to.
      body.resume();
    }
  });

const comment = ': waiting\n\n';
/** A comment may stand before the first event and after an empty line, which ends one; within an event it would be part of a line. */
const endsEvent = /(?:\n\n|\r\r|\r\n\r\n)$/;

export interface StreamComments {
  /** These bytes of the stream were written. */
  passed(bytes: Buffer): void;
  end(): void;
}

/** Writes a comment whenever the stream was silent for `everyMs` milliseconds, unless it stopped within an event. */
function startComments(
  everyMs: number,
  write: (text: string) => void,
  clock: Pick<Clock, 'after'>,
): StreamComments {
  let tail = '';
  let cancel: CancelTimer;
  const wait = (): void => {
    cancel = clock.after(everyMs, () => {
      if (tail === '' || endsEvent.test(tail)) write(comment);
      wait();
    });
  };
  wait();
  return {
    passed(bytes) {
      tail = (tail + bytes.toString('latin1', Math.max(0, bytes.length - 4))).slice(-4);
      cancel();
      wait();
    },
    end: () => cancel(),
  };
}

/** True for an event stream that anybody can read as it passes. `rawFields`: name and value alternating. */
export function isPlainEventStream(rawFields: readonly string[]): boolean {
  const fields = fieldMap(rawFields);
  const isEncoded = !/^\s*(?:identity)?\s*$/i.test(fields.get('content-encoding') ?? '');
  return !isEncoded && /^\s*text\/event-stream\b/i.test(fields.get('content-type') ?? '');
}
