/**
 * Responses of calls that may be repeated, in the memory of this process.
 *
 * Owns: how long responses are kept, and how many. Keeps: the bytes of each workspace, and of all together, stay within their
 * bounds: the oldest responses of a workspace that is over its own are dropped first, then the oldest of all. An expired response is
 * never returned; a sweep drops it, at the latest after twice the longest lifetime that is in use.
 */
import type { Clock } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import type { Remembered, RepeatKey } from './repeat.ts';

export interface KeptEntry extends Remembered {
  readonly key: RepeatKey;
  readonly bytes: number;
  /** Monotonic milliseconds. */
  readonly endsAt: number;
}

/** Memory that an entry is counted with beside its response, bytes. */
const entryBytes = 512;

export class KeptResponses {
  readonly #clock: Clock;
  readonly #bounds: () => IdempotencySettings;
  /** Oldest first. */
  readonly #entries = new Map<string, KeptEntry>();
  readonly #bytesOf = new Map<string, number>();
  #bytes = 0;
  #cancelSweep: (() => void) | null = null;

  constructor(clock: Clock, bounds: () => IdempotencySettings) {
    this.#clock = clock;
    this.#bounds = bounds;
  }

  find(name: string): Remembered | null {
    const entry = this.#entries.get(name);
    if (entry === undefined) return null;
    if (this.#clock.monotonic() < entry.endsAt) return entry;
    this.delete(name);
    return null;
  }

  /** Keeps the result of a call for `lifeMs` milliseconds. */
  put(key: RepeatKey, remembered: Remembered, lifeMs: number): void {
    const { name, owner } = key;
    this.delete(name);
    const bytes = entryBytes + bytesOf(remembered);
    const { maxTotalBytes, maxWorkspaceBytes } = this.#bounds();
    if (bytes > Math.min(maxTotalBytes, maxWorkspaceBytes)) return;
    const entry = { ...remembered, key, bytes, endsAt: this.#clock.monotonic() + lifeMs };
    this.#entries.set(name, entry);
    this.#count(owner, bytes);
    this.#makeRoom(owner);
    this.#sweepLater(lifeMs);
  }

  delete(name: string): void {
    const entry = this.#entries.get(name);
    if (entry === undefined) return;
    this.#entries.delete(name);
    this.#count(entry.key.owner, -entry.bytes);
  }

  /** All kept responses, the oldest first. */
  entries(): Iterable<KeptEntry> {
    return this.#entries.values();
  }

  close(): void {
    this.#cancelSweep?.();
    this.#cancelSweep = null;
    this.#entries.clear();
  }

  #count(owner: string, bytes: number): void {
    this.#bytes += bytes;
    const now = (this.#bytesOf.get(owner) ?? 0) + bytes;
    if (now > 0) this.#bytesOf.set(owner, now);
    else this.#bytesOf.delete(owner);
  }

  /** Drops the oldest responses of this workspace while it is over its bound, then the oldest of all while the total is. */
  #makeRoom(owner: string): void {
    const { maxTotalBytes, maxWorkspaceBytes } = this.#bounds();
    for (const [name, entry] of this.#entries) {
      if ((this.#bytesOf.get(owner) ?? 0) <= maxWorkspaceBytes) break;
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
  if (response === 'too_large') return 0;
  return response.body.length + response.fields.reduce((sum, text) => sum + text.length, 0);
}
