/**
 * Writes the requests of one turn of the event loop one right after the other, at the end of the turn.
 *
 * Owns: when a request that may be written is written. Does not own: which request comes first (`send-order.ts`); requests are
 * written in the order in which they are added. Keeps: a request waits for callbacks of its own turn only; a turn in which nothing
 * else happens ends at once. Why: each write to an upstream that sleeps wakes it up, which costs more than the write. Of writes that
 * follow each other only the first one does.
 */

/** A request on an open connection. */
export interface ReadyRequest {
  /** Must not throw. */
  write(): void;
}

export class WriteBatch {
  #ready: ReadyRequest[] = [];
  readonly #writeAll = (): void => {
    const ready = this.#ready;
    this.#ready = [];
    for (const request of ready) request.write();
  };

  add(request: ReadyRequest): void {
    if (this.#ready.push(request) === 1) setImmediate(this.#writeAll);
  }
}
