/**
 * Answers on a bare socket, where Node has no response object: broken requests and CONNECT.
 *
 * Owns: their bytes and the orderly end of the connection. Does not own: when they may be sent (`broken.ts`).
 * Invariant: exactly one well-framed answer, then the end; never throws.
 */
import { STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Clock } from '../clock.ts';
import type { ProblemAnswer } from './problem.ts';

/** The bytes of an answer, with `Date` and `Connection: close`. */
function rawBytes(answer: ProblemAnswer, nowMs: number): Buffer {
  const lines = [`HTTP/1.1 ${answer.status} ${STATUS_CODES[answer.status] ?? ''}`];
  for (let at = 0; at < answer.fields.length; at += 2)
    lines.push(`${answer.fields[at] ?? ''}: ${answer.fields[at + 1] ?? ''}`);
  lines.push(`Date: ${new Date(nowMs).toUTCString()}`, 'Connection: close', '', '');
  return Buffer.concat([Buffer.from(lines.join('\r\n'), 'latin1'), answer.body]);
}

/** Sends the answer, reads what still comes for `lingerMs` so that no reset overtakes it, and ends the connection. */
export function answerRaw(socket: Duplex, answer: ProblemAnswer, clock: Clock, lingerMs: number): void {
  socket.on('error', () => socket.destroy());
  const cancel = clock.after(lingerMs, () => socket.destroy());
  socket.once('close', cancel);
  socket.end(rawBytes(answer, clock.now()));
  socket.resume();
}
