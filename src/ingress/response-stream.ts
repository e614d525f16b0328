/**
 * Moves an upstream's body to the client.
 *
 * Owns: backpressure from the client to the upstream, and telling a whole body from a cut one.
 * Does not own: heads, and what a cut means for the connection (`respond.ts`).
 * Invariants: no more than one stream buffer of each side is held; a body shorter or longer than its declared
 * length counts as cut; afterwards the body is either ended or destroyed.
 */
import type { ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import type { ResponseEnd } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import { StalledReader } from './stalled-reader.ts';

export interface Pumping {
  readonly body: Readable;
  readonly response: ServerResponse;
  /** Length promised in the head, bytes; `null` = none. */
  readonly declaredBytes: number | null;
  readonly clientGone: CallSignal;
  readonly clock: Clock;
  /** A client that reads nothing of the waiting bytes for this long counts as gone, milliseconds. */
  readonly maxUnreadMs: number;
}

/**
 * A client for which bytes have waited so long holds its response back. When the response breaks, its connection is reset: closed
 * with the rest in the system's buffer, it would stay for as long as the client takes to read that. Milliseconds.
 */
const heldBackMs = 1_000;

/** Lets go of a body nobody will read. */
export function discard(body: Readable): void {
  body.on('error', () => {});
  body.destroy();
}

/** Writes the whole body, but does not end the response. */
export const pump = (pumping: Pumping): Promise<ResponseEnd> =>
  new Promise((resolve) => {
    const { body, response, declaredBytes, clientGone, clock, maxUnreadMs } = pumping;
    let written = 0;
    const settle = (end: ResponseEnd): void => {
      reader.moved();
      body.off('data', onData).off('end', onEnd).off('close', onCut);
      response.off('drain', onDrain);
      clientGone.removeEventListener('abort', onGone);
      if (end !== 'complete') body.destroy();
      resolve(end);
    };
    const onData = (chunk: Buffer): void => {
      written += chunk.length;
      if (declaredBytes !== null && written > declaredBytes) settle('upstream_cut');
      else if (!response.write(chunk)) {
        body.pause();
        reader.waiting();
      }
    };
    const onDrain = (): void => {
      reader.moved();
      body.resume();
    };
    const onEnd = (): void =>
      settle(declaredBytes === null || written === declaredBytes ? 'complete' : 'upstream_cut');
    const onCut = (): void => {
      const isHeldBack = reader.waitedMs >= heldBackMs;
      settle('upstream_cut');
      if (isHeldBack) response.req.socket.resetAndDestroy();
    };
    const onGone = (): void => settle('client_gone');
    // A client that does not read would otherwise occupy a connection of the upstream's shared pool for as long as it likes.
    const onStalled = (): void => {
      settle('client_gone');
      response.req.socket.resetAndDestroy();
    };
    const reader = new StalledReader({ response, clock, maxMs: maxUnreadMs, onStalled });
    // Stays: an error after the end must not become an uncaught one. A cut shows as `close` without `end`.
    body.on('error', () => {});
    if (clientGone.aborted) onGone();
    else if (body.readableEnded) onEnd();
    else if (body.destroyed) onCut();
    else {
      clientGone.addEventListener('abort', onGone);
      response.on('drain', onDrain);
      body.on('close', onCut).on('end', onEnd).on('data', onData);
      // A reader of the body before this left it paused, and a paused stream does not flow by being listened to.
      body.resume();
    }
  });
