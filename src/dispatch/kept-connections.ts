/**
 * The unused connections of a pool, of which the next request may find one.
 *
 * Owns: taking those out that have been unused for longer than they may be. Does not own: how long that is (`agents.ts`).
 * Keeps: no request is written into a connection that was unused for longer.
 *
 * Node closes an unused connection by a timer, and leaves it in its pool until the close is through. A process that was kept from
 * running handles requests before its timers, and before it reads that the upstream has closed a connection meanwhile: a POST was
 * written into such a one, and answered 502, because it must not be written twice.
 */
import type { Agent } from 'node:http';
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Clock } from '../clock.ts';

/**
 * How long before Node's own timer idle connections are removed: those that it closes stay in the pool for a moment.
 * Milliseconds.
 */
const marginMs = 100;

type Lists = Record<string, Socket[] | undefined>;

export class KeptConnections {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #free: Lists;
  /** Monotonic milliseconds. */
  readonly #unusedUntil = new WeakMap<Socket, number>();
  /** Before this time no connection has been unused for too long; `null` = there is none. */
  #nextUntil: number | null = null;

  constructor(pool: Agent, clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock;
    // The one list that Node takes from. Its types know it as read-only.
    this.#free = pool.freeSockets as Lists;
  }

  /**
   * Nobody uses the connection from now on, for at most its own time-out. Returns what Node's method said, which its types leave
   * out: whether the connection is kept.
   */
  keep(socket: Duplex, isKept: unknown): boolean {
    if (isKept !== true || !(socket instanceof Socket)) return isKept === true;
    const until = this.#clock.monotonic() + (socket.timeout ?? 0) - marginMs;
    this.#unusedUntil.set(socket, until);
    if (this.#nextUntil === null || until < this.#nextUntil) this.#nextUntil = until;
    return true;
  }

  /** Takes out and closes what has been unused for too long. To be called before each request. */
  dropOverdue(): void {
    if (this.#nextUntil === null) return;
    const now = this.#clock.monotonic();
    if (now < this.#nextUntil) return;
    this.#nextUntil = null;
    for (const [name, sockets = []] of Object.entries(this.#free)) {
      const [usable, overdue] = [[] as Socket[], [] as Socket[]];
      for (const socket of sockets) {
        const until = this.#unusedUntil.get(socket) ?? now;
        if (until > now && (this.#nextUntil === null || until < this.#nextUntil)) this.#nextUntil = until;
        (until > now ? usable : overdue).push(socket);
      }
      if (overdue.length === 0) continue;
      if (usable.length === 0) delete this.#free[name];
      else this.#free[name] = usable;
      for (const socket of overdue) socket.destroy();
    }
  }
}
