/**
 * What an operator may do about an upstream: pause it for a while, end that, and reopen what its responses have closed.
 *
 * Owns: what this replica knows of the pauses and openings that all replicas share; it opens its own buckets accordingly and notifies
 * breakers. Does not own: holding a call back (`journey/send-checks.ts` asks here), the store. Bound: what another replica was asked to do
 * is known here within a second. While Redis is unavailable, this replica goes by what it last read.
 */
import type { Clock } from '../clock.ts';
import type { ControlsStore, ControlReply } from '../limiter/controls-store.ts';
import type { BucketKey, Limiter } from '../limiter/limiter.ts';

const readEveryMs = 1_000;
/** Buckets of an upstream that are remembered as opened, at most: beyond that, one may be opened a second time, which changes nothing. */
const maxOpened = 10_000;

export interface ControlsParts {
  readonly clock: Clock;
  readonly store: ControlsStore;
  readonly limiter: Pick<Limiter, 'open'>;
  /** Buckets that this replica has used lately, of one upstream. */
  readonly bucketsOf: (upstream: string) => readonly BucketKey[];
  /** The opaque name of an upstream in the store. */
  readonly keyOf: (upstream: string) => string;
  /** Names of the upstreams that are configured now. */
  readonly upstreams: () => Iterable<string>;
  /** An operator reopened an upstream, at this replica or another. */
  readonly onUpstreamReopened: (upstream: string) => void;
  readonly onFailure: (failure: unknown) => void;
}

interface Known {
  /** Monotonic milliseconds. */
  pausedUntil: number;
  /** The latest opening, `at` monotonic milliseconds; `null` = nobody asked for one. */
  opening: { readonly id: string; readonly at: number } | null;
  readonly opened: Set<BucketKey>;
}

/**
 * The outcome of one command of the operator. `unavailable`: Redis could not be asked, so nothing was changed. `not_paused`: there was no
 * pause to end.
 */
export type ControlOutcome = 'done' | 'not_paused' | 'unavailable';

export class Controls {
  readonly #parts: ControlsParts;
  readonly #known = new Map<string, Known>();
  #cancel = (): void => {};

  constructor(parts: ControlsParts) {
    this.#parts = parts;
  }

  /** Names of the upstreams that are configured now. */
  upstreams(): readonly string[] {
    return [...this.#parts.upstreams()];
  }

  /** Reads the pauses and openings that were made before this process began, and from now on those of other replicas. */
  async start(): Promise<void> {
    if (!this.#parts.store.isShared) return;
    await this.#readAll();
    this.#readLater();
  }

  close(): void {
    this.#cancel();
  }

  /** No upstream is paused or was reopened: there is nothing to ask. */
  get isQuiet(): boolean {
    return this.#known.size === 0;
  }

  /** How long nobody may be sent to the upstream; 0 = it is not paused. Milliseconds. */
  pausedMs(upstream: string): number {
    if (this.#known.size === 0) return 0;
    const until = this.#known.get(upstream)?.pausedUntil ?? 0;
    return until === 0 ? 0 : Math.max(0, until - this.#parts.clock.monotonic());
  }

  /** A call goes to this bucket. Resolves when it is open, if somebody asked for that before the bucket was known here. */
  async used(upstream: string, bucket: BucketKey): Promise<void> {
    const known = this.#known.get(upstream);
    if (known !== undefined) await this.#openOne(known, bucket);
  }

  async pause(upstream: string, ms: number): Promise<ControlOutcome> {
    return this.#adopt(upstream, await this.#parts.store.pause(this.#parts.keyOf(upstream), ms));
  }

  async resume(upstream: string): Promise<ControlOutcome> {
    const { store, keyOf } = this.#parts;
    const before = await store.read(keyOf(upstream));
    const outcome = await this.#adopt(upstream, await store.resume(keyOf(upstream)));
    return outcome === 'done' && before !== 'unavailable' && before.pausedMs === 0 ? 'not_paused' : outcome;
  }

  async open(upstream: string): Promise<ControlOutcome> {
    return this.#adopt(upstream, await this.#parts.store.open(this.#parts.keyOf(upstream)));
  }

  async #adopt(upstream: string, reply: ControlReply): Promise<ControlOutcome> {
    if (reply === 'unavailable') return reply;
    await this.#apply(upstream, reply);
    return 'done';
  }

  async #apply(upstream: string, reply: ControlReply): Promise<void> {
    if (reply === 'unavailable') return;
    const { pausedMs, opening } = reply;
    const now = this.#parts.clock.monotonic();
    let known = this.#known.get(upstream);
    if (known === undefined) {
      if (pausedMs === 0 && opening === null) return;
      this.#known.set(upstream, (known = { pausedUntil: 0, opening: null, opened: new Set() }));
    }
    known.pausedUntil = pausedMs === 0 ? 0 : now + pausedMs;
    if (opening !== null && opening.id !== known.opening?.id) {
      known.opening = { id: opening.id, at: now - opening.agoMs };
      known.opened.clear();
      this.#parts.onUpstreamReopened(upstream);
      for (const bucket of this.#parts.bucketsOf(upstream)) await this.#openOne(known, bucket);
    }
  }

  async #openOne(known: Known, bucket: BucketKey): Promise<void> {
    if (known.opening === null || known.opened.has(bucket)) return;
    if (known.opened.size >= maxOpened) known.opened.clear();
    known.opened.add(bucket);
    await this.#parts.limiter.open(bucket, this.#parts.clock.monotonic() - known.opening.at);
  }

  async #readAll(): Promise<void> {
    const { store, keyOf, upstreams } = this.#parts;
    for (const upstream of upstreams()) await this.#apply(upstream, await store.read(keyOf(upstream)));
  }

  #readLater(): void {
    this.#cancel = this.#parts.clock.after(readEveryMs, () => {
      this.#readAll().catch(this.#parts.onFailure);
      this.#readLater();
    });
  }
}
