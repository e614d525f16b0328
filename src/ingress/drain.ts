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
/** Looks after which a connection that never completed a request's head is closed: 1 s, so that a head under way may arrive. */
const maxQuietChecks = 10;

/** @returns how many connections were cut at the limit. */
export async function drainServer(
  server: Server,
  connections: Connections,
  clock: Clock,
  options: DrainOptions,
): Promise<{ readonly cut: number }> {
  const signal = options.signal ?? new AbortController().signal;
  const endsAt = clock.monotonic() + options.limitMs;
  await delay(clock, Math.min(options.delayMs, options.limitMs), signal);
  // Closes idle connections too; not listening any more is not an error.
  server.close();
  const quietChecks = new Map<unknown, number>();
  while (connections.count > 0 && clock.monotonic() < endsAt && !signal.aborted) {
    server.closeIdleConnections();
    for (const connection of connections.all) {
      const quiet = connection.calls.length > 0 ? 0 : (quietChecks.get(connection) ?? 0) + 1;
      quietChecks.set(connection, quiet);
      if (quiet > maxQuietChecks) connection.socket.destroySoon();
    }
    await delay(clock, Math.min(checkEveryMs, endsAt - clock.monotonic()), signal);
  }
  const cut = connections.count;
  server.closeAllConnections();
  return { cut };
}
