/**
 * Listens to what never reaches a route: requests that do not parse, and CONNECT.
 *
 * Owns: the two events of Node's server that hand over bare sockets. Does not own: what is answered (`broken.ts`).
 * Invariant: a listener never throws, and every socket handed over is answered or ended.
 */
import type { IncomingMessage, Server } from 'node:http';
import type { Socket } from 'node:net';
import { breakageOf, retire } from './broken.ts';
import { refusalAnswer } from './problem.ts';
import { answerRaw } from './raw-answer.ts';
import { newRequestId } from './read-call.ts';
import type { EarlyRefusal, ServeParts } from './serve-call.ts';

/** Value of `Allow` where a method is served nowhere. */
export const proxyMethods = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS';

/** Listens to what never reaches the application: requests that do not parse, and CONNECT. */
export function watchRawErrors(server: Server, parts: ServeParts): void {
  const { connections, random, clock, lingerMs } = parts;
  const refuseRaw = (
    socket: Socket,
    why: Pick<EarlyRefusal, 'code' | 'detail' | 'status' | 'allow'>,
  ): boolean => {
    if (!retire(connections, socket)) return false;
    parts.onEarlyRefusal(why.code);
    const { code, detail, status, allow } = why;
    const answer = refusalAnswer({
      code,
      details: detail === undefined ? {} : { detail },
      requestId: newRequestId(random),
      ...(status === undefined ? {} : { status }),
      ...(allow === undefined ? {} : { allow }),
    });
    answerRaw(socket, answer, clock, lingerMs);
    return true;
  };
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    refuseRaw(socket as Socket, breakageOf(error.code));
  });
  server.on('connect', (request: IncomingMessage) => {
    // Node has let go of this socket: an error nobody listens to would end the process.
    request.socket.on('error', () => request.socket.destroy());
    const isAnswered = refuseRaw(request.socket, { code: 'method_not_allowed', allow: proxyMethods });
    // Nobody reads this socket any more, so nobody would notice a client that leaves.
    if (!isAnswered) request.socket.destroy();
  });
}
