/**
 * Responses of calls that may be repeated, in the memory of this process. Keeps: the bytes of each workspace, and of all together, stay
 * within their bounds, together with those of responses that are under way: the oldest responses of a workspace that is over its own
 * are dropped first, then the oldest of all. An expired response is never returned.
 */
import type { Clock } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import type { KeptResponse, RepeatKey } from './repeat.ts';

/** `too_large`: the call has run, but its response is not kept. */
interface Kept {
  readonly key: RepeatKey;
  readonly response: KeptResponse | 'too_large';
  readonly bytes: number;
  /** Monotonic milliseconds. */
  readonly endsAt: number;
}

/** Memory that an entry takes beside its response, and each text of its fields or piece of a body beside its characters. Bytes. */
const entryBytes = 1_024;
const pieceBytes = 48;

export class KeptResponses {
  readonly #clock: Clock;
  readonly #bounds: () => IdempotencySettings;
  readonly #onDropped: (key: RepeatKey) => void;
  /** Oldest first. */
  readonly #entries = new Map<string, Kept>();
  /** By workspace: memory of responses, kept and under way. */
  readonly #bytesOf = new Map<string, number>();
  /** Memory of all responses, kept and under way, and of those under way. Bytes. */
  bytes = 0;
  bytesUnderWay = 0;

  /** `onDropped`: called when a response is not kept any more. */
  constructor(clock: Clock, bounds: () => IdempotencySettings, onDropped: (key: RepeatKey) => void) {
    this.#clock = clock;
    this.#bounds = bounds;
    this.#onDropped = onDropped;
  }

  find(name: string): Kept | null {
    const now = this.#clock.monotonic();
    for (const [oldest, { endsAt }] of this.#entries) {
      if (endsAt > now) break;
      this.delete(oldest);
    }
    const entry = this.#entries.get(name);
    return entry === undefined || entry.endsAt <= now ? null : entry;
  }

  /** Keeps the result of a call for `lifeMs` milliseconds. False: it is larger than what may be kept. */
  put(key: RepeatKey, response: Kept['response'], lifeMs: number): boolean {
    this.delete(key.name);
    const bytes = bytesOf(response);
    const { maxTotalBytes, maxWorkspaceBytes } = this.#bounds();
    if (bytes > Math.min(maxTotalBytes, maxWorkspaceBytes)) return false;
    this.#entries.set(key.name, { key, response, bytes, endsAt: this.#clock.monotonic() + lifeMs });
    this.#count(key.owner, bytes);
    this.#fits(key.owner, true);
    return true;
  }

  delete(name: string): void {
    const entry = this.#entries.get(name);
    if (entry === undefined) return;
    this.#entries.delete(name);
    this.#count(entry.key.owner, -entry.bytes);
    this.#onDropped(entry.key);
  }

  /** Counts bytes of a response that is under way. False, and nothing counted, when they do not fit. */
  take({ owner, marker }: RepeatKey, bytes: number): boolean {
    this.bytesUnderWay += bytes;
    this.#count(owner, bytes);
    // Kept responses make room only for one with a key.
    const fits = this.#fits(owner, marker === 'key');
    if (!fits) this.give(owner, bytes);
    return fits;
  }

  give(owner: string, bytes: number): void {
    this.bytesUnderWay -= bytes;
    this.#count(owner, -bytes);
  }

  #count(owner: string, bytes: number): void {
    this.bytes += bytes;
    const now = (this.#bytesOf.get(owner) ?? 0) + bytes;
    if (now > 0) this.#bytesOf.set(owner, now);
    else this.#bytesOf.delete(owner);
  }

  /** True where the workspace and all together are within their bounds, if `mayDrop` behind the oldest kept responses. */
  #fits(owner: string, mayDrop: boolean): boolean {
    const { maxTotalBytes, maxWorkspaceBytes } = this.#bounds();
    const isOver = (): boolean => (this.#bytesOf.get(owner) ?? 0) > maxWorkspaceBytes;
    const droppable = mayDrop ? this.#entries : [];
    for (const [name, { key }] of droppable) if (isOver() && key.owner === owner) this.delete(name);
    for (const [name] of droppable) if (this.bytes > maxTotalBytes) this.delete(name);
    return !isOver() && this.bytes <= maxTotalBytes;
  }
}

function bytesOf(response: Kept['response']): number {
  if (response === 'too_large') return entryBytes;
  const texts = response.rawFields.reduce((sum, text) => sum + pieceBytes + text.length, 0);
  return entryBytes + texts + response.body.length;
}

/** The bytes of one response body, kept while it passes, so that a client that joins later can have it from its first byte. */
export class KeptBody {
  readonly #key: RepeatKey;
  readonly #all: KeptResponses;
  readonly maxBytes: number;
  #length = 0;
  #counted = 0;
  /** All of the body so far; `null` = it is larger than what may be kept of it. */
  pieces: Buffer[] | null = [];

  constructor(key: RepeatKey, all: KeptResponses, maxBytes: number) {
    this.#key = key;
    this.#all = all;
    this.maxBytes = maxBytes;
  }

  append(piece: Buffer): void {
    if (this.pieces === null) return;
    const bytes = piece.length + pieceBytes;
    this.#length += piece.length;
    if (this.#length > this.maxBytes || !this.#all.take(this.#key, bytes)) return this.drop();
    this.#counted += bytes;
    this.pieces.push(piece);
  }

  /** Gives the memory up; from here on there is no whole body. */
  drop(): void {
    this.#all.give(this.#key.owner, this.#counted);
    this.#counted = 0;
    this.pieces = null;
  }
}
