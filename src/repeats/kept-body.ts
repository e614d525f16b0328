/**
 * The bytes of one response body, kept while it passes, so that a client that joins later can have it from its first byte.
 *
 * Invariants: the memory that it takes is counted before it is taken, at its real size; above its bound nothing is kept.
 */

/** What may be kept beside what is kept already. */
export interface Room {
  /** Counts `bytes` as kept. False, and nothing counted, when they do not fit. */
  take(bytes: number): boolean;
  give(bytes: number): void;
}

/** Size of the first piece of memory, bytes; it doubles from there. */
const firstBytes = 1_024;

export class KeptBody {
  readonly #maxBytes: number;
  readonly #room: Room;
  /** `null` = the body is larger than what may be kept of it. */
  #memory: Buffer | null = Buffer.alloc(0);
  #length = 0;

  constructor(maxBytes: number, room: Room) {
    this.#maxBytes = maxBytes;
    this.#room = room;
  }

  /** All bytes so far; `null` when they were too many to be kept. */
  get whole(): Buffer | null {
    return this.#memory?.subarray(0, this.#length) ?? null;
  }

  append(chunk: Buffer): void {
    const memory = this.#withRoomFor(this.#length + chunk.length);
    if (memory === null) return this.drop();
    chunk.copy(memory, this.#length);
    this.#length += chunk.length;
  }

  /** Gives the memory up; from here on there is no whole body. */
  drop(): void {
    this.#room.give(this.#memory?.length ?? 0);
    this.#memory = null;
  }

  #withRoomFor(bytes: number): Buffer | null {
    const known = this.#memory;
    if (known === null || bytes > this.#maxBytes) return null;
    if (bytes <= known.length) return known;
    const size = Math.min(this.#maxBytes, Math.max(firstBytes, bytes, known.length * 2));
    if (!this.#room.take(size - known.length)) return null;
    // Memory of its own: a piece of a pool would keep the whole pool in memory.
    const grown = Buffer.allocUnsafeSlow(size);
    known.copy(grown, 0, 0, this.#length);
    this.#memory = grown;
    return grown;
  }
}
