/**
 * Answers what Node's server never passes to the application: requests that do not parse (`clientError`), and CONNECT.
 *
 * Owns: the listeners of these two events, which receive sockets without a response. Does not own: which refusal fits a broken request
 * (`broken.ts`), how its text is written (`raw-response.ts`).
 * Keeps: a listener never throws, and every socket that one receives is answered or ended.
 */
import type { IncomingMessage, Server } from 'node:http';
import type { Socket } from 'node:net';
import { breakageOf, retire } from './broken.ts';
import { refusalResponse } from './problem.ts';
import { respondRaw } from './raw-response.ts';
import { newRequestId } from './read-call.ts';
import type { RequestRefusal, ServeParts } from './serve-call.ts';

/** Value of `Allow` when a method is refused on every route: the methods that Sluice passes on. */
export const proxyMethods = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS';

/** Listens to `clientError` and `connect` for as long as the server lives. */
export function watchRawErrors(server: Server, parts: ServeParts): void {
  const { connections, random, clock, lingerMs } = parts;
  /** False when the connection is not free for a last response (`retire`): then nothing is written. */
  const refuseRaw = (
    socket: Socket,
    why: Pick<RequestRefusal, 'code' | 'detail' | 'status' | 'allow'>,
  ): boolean => {
    if (!retire(connections, socket)) return false;
    parts.onRequestRefused(why.code);
    const { code, detail, status, allow } = why;
    const response = refusalResponse({
      code,
      details: detail === undefined ? {} : { detail },
      requestId: newRequestId(random),
      ...(status === undefined ? {} : { status }),
      ...(allow === undefined ? {} : { allow }),
    });
    respondRaw(socket, response, clock, lingerMs);
    return true;
  };
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    refuseRaw(socket as Socket, breakageOf(error.code));
  });
  server.on('connect', (request: IncomingMessage) => {
    // Node has detached this socket: an error without a listener would end the process.
    request.socket.on('error', () => request.socket.destroy());
    const isAnswered = refuseRaw(request.socket, { code: 'method_not_allowed', allow: proxyMethods });
    // The socket is not read any more, so that its end would not be noticed when the client leaves.
    if (!isAnswered) request.socket.destroy();
  });
}
