/**
 * Ends a server's life without cutting calls off.
 *
 * Owns: the order of the steps and their times. Does not own: readiness, and what held calls are answered.
 * Invariants: connections are accepted until `delayMs` is over, because load balancers learn late; nothing lives
 * longer than `limitMs`; a connection with an open call is not closed before that.
 */
import type { Server } from 'node:http';
import { delay, type Clock } from '../clock.ts';
import type { Connections } from './connections.ts';

export interface DrainOptions {
  /** Still accepting, milliseconds. */
  readonly delayMs: number;
  /** Time from the start of the drain until the calls that are left are cut, milliseconds. */
  readonly limitMs: number;
  /** Ends the drain at once (second SIGTERM). */
  readonly signal?: AbortSignal;
}

/** How often idle connections are searched for, milliseconds. */
const checkEveryMs = 100;
/** For so long after the last connection was accepted a first head may arrive, milliseconds. */
const firstHeadMs = 1_000;

/** @returns how many connections were cut at the limit. */
export async function drainServer(
  server: Server,
  connections: Connections,
  clock: Clock,
  { delayMs, limitMs, signal = new AbortController().signal }: DrainOptions,
): Promise<{ readonly cut: number }> {
  const endsAt = clock.monotonic() + limitMs;
  await delay(clock, Math.min(delayMs, limitMs), signal);
  // Closes idle connections too; not listening any more is not an error.
  server.close();
  const headsUntil = clock.monotonic() + firstHeadMs;
  while (connections.count > 0 && clock.monotonic() < endsAt && !signal.aborted) {
    server.closeIdleConnections();
    if (clock.monotonic() >= headsUntil)
      for (const { calls, socket } of connections.all) if (calls.length === 0) socket.destroySoon();
    await delay(clock, Math.min(checkEveryMs, endsAt - clock.monotonic()), signal);
  }
  const cut = connections.count;
  server.closeAllConnections();
  return { cut };
}
