/**
 * What is done about requests that Node's parser gave up on, and about CONNECT.
 *
 * Owns: which problem is answered, and whether the connection can still carry a response.
 * Does not own: heads that parsed (`guard.policy.ts`).
 * Invariants: a response meant for one request never stands in another one's place; the responses of earlier requests
 * on the connection are still sent; never throws.
 */
import type { Socket } from 'node:net';
import type { RefusalCode } from '../errors.ts';
import type { Connection, Connections, OpenCall } from './connections.ts';

/** How a broken request is answered; `null`: not at all, the connection just ends. */
export interface Breakage {
  readonly code: Extract<RefusalCode, 'request_invalid' | 'headers_too_large'>;
  readonly status: number;
  readonly detail: string;
}

/** Reads the parser's error. */
export function breakageOf(code: string | undefined): Breakage {
  if (code === 'HPE_HEADER_OVERFLOW')
    return { code: 'headers_too_large', status: 431, detail: 'The request head is too large.' };
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT')
    return { code: 'request_invalid', status: 408, detail: 'The request did not arrive in time.' };
  return { code: 'request_invalid', status: 400, detail: 'The request is not valid HTTP/1.1.' };
}

/** The call whose body was being received when the parser gave up. */
function receiving(connection: Connection): OpenCall | null {
  const { newest } = connection;
  return newest !== null && connection.calls.includes(newest) && !newest.request.complete ? newest : null;
}

/**
 * Takes a connection out of service after a parser error.
 * @returns true when the connection is free for one last response about it.
 */
export function retire(connections: Connections, socket: Socket): boolean {
  const connection = connections.on(socket);
  if (connection.failed) return false;
  connection.failed = true;
  const announced = connection.closing;
  connection.end();
  const broken = receiving(connection);
  const begun = broken?.response.headersSent ?? false;
  broken?.gone.abort();
  if (!socket.writable || socket.bytesRead === 0) {
    socket.destroy();
    return false;
  }
  // Whatever is still open is complete and will be answered; the connection ends behind the last of it.
  const others = connection.calls.length - (broken !== null && connection.calls.includes(broken) ? 1 : 0);
  if (others > 0) return false;
  if (announced || begun) {
    socket.destroySoon();
    return false;
  }
  return true;
}
