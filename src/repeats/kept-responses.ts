/**
 * Responses of calls that may be repeated, in the memory of this process.
 *
 * Owns: how long responses are kept, and how many. Keeps: the bytes of each workspace, and of all together, stay within their
 * bounds, together with those of responses that are under way: the oldest responses of a workspace that is over its own are dropped
 * first, then the oldest of all. An expired response is never returned; a sweep drops it, at the latest after twice the longest
 * lifetime that is in use.
 */
import type { Clock } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import type { Remembered, RepeatKey } from './repeat.ts';

interface KeptEntry extends Remembered {
  readonly key: RepeatKey;
  readonly bytes: number;
  /** Monotonic milliseconds. */
  readonly endsAt: number;
}

/** Memory that an entry takes beside its response, and each text of its fields beside the characters. Bytes. */
const entryBytes = 1_024;
const textBytes = 48;

export class KeptResponses {
  readonly #clock: Clock;
  readonly #bounds: () => IdempotencySettings;
  readonly #onDropped: (key: RepeatKey) => void;
  /** Oldest first. */
  readonly #entries = new Map<string, KeptEntry>();
  readonly #bytesOf = new Map<string, number>();
  #bytes = 0;
  #underWay = 0;
  #cancelSweep: (() => void) | null = null;

  /** `onDropped`: called when a response is not kept any more. */
  constructor(clock: Clock, bounds: () => IdempotencySettings, onDropped: (key: RepeatKey) => void) {
    this.#clock = clock;
    this.#bounds = bounds;
    this.#onDropped = onDropped;
  }

  find(name: string): Remembered | null {
    const entry = this.#entries.get(name);
    if (entry === undefined) return null;
    if (this.#clock.monotonic() < entry.endsAt) return entry;
    this.delete(name);
    return null;
  }

  /** Keeps the result of a call for `lifeMs` milliseconds. False: it is larger than what may be kept. */
  put(key: RepeatKey, remembered: Remembered, lifeMs: number): boolean {
    const { name, owner } = key;
    this.delete(name);
    const bytes = bytesOf(remembered);
    const { maxTotalBytes, maxWorkspaceBytes } = this.#bounds();
    if (bytes > Math.min(maxTotalBytes, maxWorkspaceBytes)) return false;
    const { fingerprint, response } = remembered;
    const own = response === 'too_large' ? response : { ...response, body: ownBytes(response.body) };
    const entry = { fingerprint, response: own, key, bytes, endsAt: this.#clock.monotonic() + lifeMs };
    this.#entries.set(name, entry);
    this.#count(owner, bytes);
    this.#makeRoom(owner);
    this.#sweepLater(lifeMs);
    return true;
  }

  delete(name: string): void {
    const entry = this.#entries.get(name);
    if (entry === undefined) return;
    this.#entries.delete(name);
    this.#count(entry.key.owner, -entry.bytes);
    this.#onDropped(entry.key);
  }

  /** Room for the bytes of a response of this owner that is under way. Kept responses make room only for one with a key. */
  roomFor({ owner, marker }: RepeatKey): Room {
    return {
      take: (bytes) => {
        const { maxTotalBytes, maxWorkspaceBytes } = this.#bounds();
        this.#count(owner, bytes);
        if (marker === 'key') this.#makeRoom(owner);
        if (this.#of(owner) <= maxWorkspaceBytes && this.#bytes <= maxTotalBytes) {
          this.#underWay += bytes;
          return true;
        }
        this.#count(owner, -bytes);
        return false;
      },
      give: (bytes) => {
        this.#underWay -= bytes;
        this.#count(owner, -bytes);
      },
    };
  }

  /** Memory of all responses, kept and under way. Bytes. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Memory of responses that are under way. Bytes. */
  get bytesUnderWay(): number {
    return this.#underWay;
  }

  close(): void {
    this.#cancelSweep?.();
    this.#cancelSweep = null;
    this.#entries.clear();
  }

  #count(owner: string, bytes: number): void {
    this.#bytes += bytes;
    const now = this.#of(owner) + bytes;
    if (now > 0) this.#bytesOf.set(owner, now);
    else this.#bytesOf.delete(owner);
  }

  #of(owner: string): number {
    return this.#bytesOf.get(owner) ?? 0;
  }

  /** Drops the oldest responses of this workspace while it is over its bound, then the oldest of all while the total is. */
  #makeRoom(owner: string): void {
    const { maxTotalBytes, maxWorkspaceBytes } = this.#bounds();
    for (const [name, entry] of this.#entries) {
      if (this.#of(owner) <= maxWorkspaceBytes) break;
      if (entry.key.owner === owner) this.delete(name);
    }
    for (const name of this.#entries.keys()) {
      if (this.#bytes <= maxTotalBytes) return;
      this.delete(name);
    }
  }

  #sweepLater(lifeMs: number): void {
    this.#cancelSweep ??= this.#clock.after(lifeMs, () => {
      this.#cancelSweep = null;
      const now = this.#clock.monotonic();
      for (const [name, { endsAt }] of this.#entries) if (endsAt <= now) this.delete(name);
      if (this.#entries.size > 0) this.#sweepLater(lifeMs);
    });
  }
}

function bytesOf({ response }: Remembered): number {
  if (response === 'too_large') return entryBytes;
  const texts = response.rawFields.reduce((sum, text) => sum + textBytes + text.length, 0);
  return entryBytes + texts + response.body.length;
}

/** The bytes in memory of their own size: a small buffer is a piece of a pool, which it would keep in memory as a whole. */
export function ownBytes(bytes: Buffer): Buffer {
  if (bytes.buffer.byteLength === bytes.length) return bytes;
  const own = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(own);
  return own;
}

// The bytes of one response body, kept while it passes, so that a client that joins later can have it from its first byte. The memory that it
// takes is counted before it is taken, at its real size; above its bound nothing is kept.

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
