/**
 * Responses on a bare socket, where Node has no response object: broken requests and CONNECT.
 *
 * Owns: their bytes and the orderly end of the connection. Does not own: when they may be sent (`broken.ts`).
 * Invariant: exactly one well-framed response, then the end; never throws.
 */
import { STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Clock } from '../clock.ts';
import type { ProblemResponse } from './problem.ts';

/** The bytes of a response, with `Date` and `Connection: close`. */
function rawBytes(response: ProblemResponse, nowMs: number): Buffer {
  const lines = [`HTTP/1.1 ${response.status} ${STATUS_CODES[response.status] ?? ''}`];
  for (let at = 0; at < response.fields.length; at += 2)
    lines.push(`${response.fields[at] ?? ''}: ${response.fields[at + 1] ?? ''}`);
  lines.push(`Date: ${new Date(nowMs).toUTCString()}`, 'Connection: close', '', '');
  return Buffer.concat([Buffer.from(lines.join('\r\n'), 'latin1'), response.body]);
}

/** Sends the response, reads what still comes for `lingerMs` so that no reset overtakes it, and ends the connection. */
export function respondRaw(socket: Duplex, response: ProblemResponse, clock: Clock, lingerMs: number): void {
  socket.on('error', () => socket.destroy());
  const cancel = clock.after(lingerMs, () => socket.destroy());
  socket.once('close', cancel);
  socket.end(rawBytes(response, clock.now()));
  socket.resume();
}
