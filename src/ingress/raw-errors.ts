/**
 * Answers what Node's server never passes to the application, on bare sockets: requests that do not parse (`clientError`), and CONNECT.
 *
 * Does not own: heads that parsed (`guard.policy.ts`).
 * Invariants: a response meant for one request never stands in another one's place; the responses of earlier requests on the
 * connection are still sent; every socket is answered or ended; a listener never throws.
 */
import { STATUS_CODES, type IncomingMessage, type Server } from 'node:http';
import type { Socket } from 'node:net';
import type { Clock } from '../clock.ts';
import type { Connections } from './connections.ts';
import { refusalResponse, type ProblemResponse } from './problem.ts';
import { newRequestId, type ServeParts } from './read-call.ts';
import type { RequestRefusal } from './routes.ts';

/** Value of `Allow` when a method is refused on every route: the methods that Sluice passes on. */
export const proxyMethods = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS';

/** Listens to `clientError` and `connect` for as long as the server lives. */
export function watchRawErrors(server: Server, parts: ServeParts): void {
  const { connections, random, clock, lingerMs } = parts;
  /** False when the connection is not free for a last response: then nothing is written. */
  const refuse = (socket: Socket, why: RequestRefusal, method = ''): boolean => {
    if (!retire(connections, socket)) return false;
    const requestId = newRequestId(random);
    const problem = refusalResponse({ ...why, requestId });
    parts.onRequestRefused({ requestId, method, status: problem.status, code: why.code });
    respond(socket, problem, clock, lingerMs);
    return true;
  };
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    refuse(socket as Socket, refusalOf(error.code));
  });
  server.on('connect', ({ socket }: IncomingMessage) => {
    // Node has detached this socket: an error without a listener would end the process.
    socket.on('error', () => socket.destroy());
    const isAnswered = refuse(
      socket,
      { code: 'method_not_allowed', allow: proxyMethods, details: {} },
      'CONNECT',
    );
    // The socket is not read any more, so that its end would not be noticed when the client leaves.
    if (!isAnswered) socket.destroy();
  });
}

/** What the parser's error means for the client. */
function refusalOf(code: string | undefined): RequestRefusal {
  if (code === 'HPE_HEADER_OVERFLOW')
    return { code: 'headers_too_large', status: 431, details: { detail: 'The request head is too large.' } };
  const [status, detail] =
    code === 'ERR_HTTP_REQUEST_TIMEOUT'
      ? [408, 'The request did not arrive in time.']
      : [400, 'The request is not valid HTTP/1.1.'];
  return { code: 'request_invalid', status, details: { detail } };
}

/**
 * Takes a connection out of service after a parser error.
 * @returns true when the connection is free for one last response about it.
 */
function retire(connections: Connections, socket: Socket): boolean {
  const connection = connections.on(socket);
  const { state, calls, newest } = connection;
  if (state === 'failed') return false;
  connection.state = 'failed';
  // The call whose body was being received when the parser gave up.
  const broken = newest?.request.complete === false ? newest : null;
  const begun = broken?.response.headersSent ?? false;
  broken?.leave();
  if (!socket.writable || socket.bytesRead === 0) {
    socket.destroy();
    return false;
  }
  // Whatever is still open is complete and will be answered; the connection ends behind the last of it.
  if (calls.some((call) => call !== broken)) return false;
  if (state !== 'open' || begun) {
    socket.destroySoon();
    return false;
  }
  return true;
}

/** Sends one response, reads what still comes for `lingerMs` so that no reset overtakes it, and ends the connection. */
function respond(
  socket: Socket,
  { status, fields, body }: ProblemResponse,
  clock: Clock,
  lingerMs: number,
): void {
  const lines = [`HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}`];
  for (let at = 0; at < fields.length; at += 2) lines.push(`${fields[at] ?? ''}: ${fields[at + 1] ?? ''}`);
  lines.push(`Date: ${new Date(clock.now()).toUTCString()}`, 'Connection: close', '', '');
  socket.on('error', () => socket.destroy());
  socket.once(
    'close',
    clock.after(lingerMs, () => socket.destroy()),
  );
  socket.end(Buffer.concat([Buffer.from(lines.join('\r\n'), 'latin1'), body]));
  socket.resume();
}
