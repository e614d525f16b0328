/**
 * Notices a client that stopped reading its response.
 *
 * Owns: the judgement that bytes for a client have not moved for too long. Does not own: what is done about it.
 * Invariants: a client that takes anything at all within the limit is only slow; a response behind another one on its connection
 * waits for that one, not for the client; no timer runs while nothing waits.
 */
import type { ServerResponse } from 'node:http';
import type { CancelTimer, Clock } from '../clock.ts';

export interface StalledReaderParts {
  /** The response has a socket while it is its turn on the connection. */
  readonly response: Pick<ServerResponse, 'writableLength' | 'socket'>;
  readonly clock: Clock;
  /** How long the client may take nothing of what waits for it, milliseconds. */
  readonly maxMs: number;
  /** Called once when the client has read nothing for the whole time. */
  readonly onStalled: () => void;
}

export class StalledReader {
  readonly #parts: StalledReaderParts;
  #cancel: CancelTimer | null = null;
  #since = 0;

  constructor(parts: StalledReaderParts) {
    this.#parts = parts;
  }

  /** Bytes wait for the client from now on; later calls change nothing until {@link moved}. */
  waiting(): void {
    if (this.#cancel !== null) return;
    this.#since = this.#parts.clock.monotonic();
    this.#check(this.#parts.response.writableLength);
  }

  /** How long bytes have waited for the client, milliseconds; 0 = none wait, or it is not their turn. */
  get waitedMs(): number {
    const { response, clock } = this.#parts;
    return this.#cancel === null || response.socket === null ? 0 : clock.monotonic() - this.#since;
  }

  /** Nothing waits any more. */
  moved(): void {
    this.#cancel?.();
    this.#cancel = null;
  }

  #check(waitedBefore: number): void {
    const { response, clock, maxMs, onStalled } = this.#parts;
    this.#cancel = clock.after(maxMs, () => {
      // `drain` reports an empty buffer only; a slow client empties it bit by bit.
      const waits = response.writableLength;
      if (waits < waitedBefore || response.socket === null) this.#check(waits);
      else onStalled();
    });
  }
}
