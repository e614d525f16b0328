/**
 * What an operator may do about an upstream: pause it for a while, end that, and reopen what its responses have closed.
 *
 * Owns: what this replica knows of the pauses and openings that all replicas share; it opens its own buckets accordingly and notifies
 * breakers. Does not own: holding a call back (`journey/send-checks.ts` asks here). What another replica was asked to do is known here
 * as soon as its message comes. While Redis is unavailable, this replica goes by what it last read.
 */
import type { Clock, Random } from '../clock.ts';
import type { BucketKey } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import { anybody, type CreateMap, type SharedMap } from '../replicated/shared-map.ts';

/** Controls are read this often, so that a lost message is made up for. Milliseconds. */
const readEveryMs = 5_000;
/** How long an opening can be read: by every replica, also one that missed the message. Milliseconds. */
const openingMs = 60_000;
/** How long the end of a pause is remembered, which nobody needs to know later. Milliseconds. */
const resumedMs = 1_000;
export interface ControlsParts {
  readonly clock: Clock;
  readonly random: Pick<Random, 'hex'>;
  readonly createMap: CreateMap;
  readonly limiter: Pick<Limiter, 'open'>;
  /** Buckets that this replica has used lately, of one upstream. */
  readonly bucketsOf: (upstream: string) => readonly BucketKey[];
  /** The opaque name of an upstream in the map. */
  readonly keyOf: (upstream: string) => string;
  /** Names of the upstreams that are configured now. */
  readonly upstreams: () => Iterable<string>;
  /** An operator reopened an upstream, at this replica or another. */
  readonly onUpstreamReopened: (upstream: string) => void;
  readonly onFailure: (failure: unknown) => void;
}

interface Known {
  /** `until`: monotonic milliseconds. `since`: Unix milliseconds. */
  pause: { readonly until: number; readonly since: number } | null;
  /** Names the latest opening; `null` = nobody asked for one. */
  opening: string | null;
}

/**
 * What an operator last asked for, as replicas share it: a pause for the life of its entry (when it began, Unix milliseconds), its end, or
 * an opening.
 */
type Control = number | 'resumed' | 'opened';

/**
 * The outcome of one command of the operator. `unavailable`: Redis could not be asked, so nothing was changed. `not_paused`: there was no
 * pause to end.
 */
export type ControlOutcome = 'done' | 'not_paused' | 'unavailable';

export class Controls {
  readonly #parts: ControlsParts;
  readonly #map: SharedMap<Control>;
  readonly #known = new Map<string, Known>();
  #cancel = (): void => {};

  constructor(parts: ControlsParts) {
    this.#parts = parts;
    const readAll = (): void => void this.#readAll().catch(parts.onFailure);
    this.#map = parts.createMap({ name: 'control.3', onChange: readAll });
  }

  /** Names of the upstreams that are configured now. */
  upstreams(): readonly string[] {
    return [...this.#parts.upstreams()];
  }

  /** Reads the pauses and openings that were made before this process began, and from now on again and again. */
  async start(): Promise<void> {
    await this.#readAll();
    this.#readLater();
  }

  close(): void {
    this.#cancel();
  }

  /** How long nobody may be sent to the upstream; 0 = it is not paused. Milliseconds. */
  pausedMs(upstream: string): number {
    return this.pauseOf(upstream)?.ms ?? 0;
  }

  /** `ms`: how long the pause holds yet; `since`: when it began, Unix milliseconds. `null` = the upstream is not paused. */
  pauseOf(upstream: string): { readonly ms: number; readonly since: number } | null {
    const pause = this.#known.get(upstream)?.pause ?? null;
    const ms = pause === null ? 0 : pause.until - this.#parts.clock.monotonic();
    return pause === null || ms <= 0 ? null : { ms, since: pause.since };
  }

  pause(upstream: string, ms: number): Promise<ControlOutcome> {
    return this.#put(upstream, this.#parts.clock.now(), ms);
  }

  async resume(upstream: string): Promise<ControlOutcome> {
    if ((await this.#read(upstream)) === 'unavailable') return 'unavailable';
    const wasPaused = this.pausedMs(upstream) > 0;
    const outcome = await this.#put(upstream, 'resumed', resumedMs);
    return outcome === 'done' && !wasPaused ? 'not_paused' : outcome;
  }

  open(upstream: string): Promise<ControlOutcome> {
    return this.#put(upstream, 'opened', openingMs);
  }

  async #put(upstream: string, control: Control, ttlMs: number): Promise<ControlOutcome> {
    const options = { owner: this.#parts.random.hex(8), ttlMs, over: anybody };
    const { kind } = await this.#map.put({ name: this.#nameOf(upstream, control) }, control, options);
    return kind === 'put' ? this.#read(upstream) : 'unavailable';
  }

  /** A pause and an opening hold side by side. */
  #nameOf(upstream: string, control: Control): string {
    return `${this.#parts.keyOf(upstream)}.${control === 'opened' ? 'open' : 'pause'}`;
  }

  async #read(upstream: string): Promise<ControlOutcome> {
    const [pause, opening] = await Promise.all([
      this.#map.read({ name: this.#nameOf(upstream, 'resumed') }),
      this.#map.read({ name: this.#nameOf(upstream, 'opened') }),
    ]);
    if (pause.kind === 'unavailable' || opening.kind === 'unavailable') return 'unavailable';
    const now = this.#parts.clock.monotonic();
    const known = this.#known.get(upstream) ?? { pause: null, opening: null };
    this.#known.set(upstream, known);
    const isPaused = pause.kind === 'entry' && typeof pause.value === 'number';
    known.pause = isPaused ? { until: now + pause.leftMs, since: pause.value } : null;
    if (opening.kind === 'entry' && opening.owner !== known.opening) {
      known.opening = opening.owner;
      this.#parts.onUpstreamReopened(upstream);
      for (const bucket of this.#parts.bucketsOf(upstream))
        await this.#parts.limiter.open(bucket, openingMs - opening.leftMs);
    }
    return 'done';
  }

  async #readAll(): Promise<void> {
    for (const upstream of this.#parts.upstreams()) await this.#read(upstream);
  }

  #readLater(): void {
    this.#cancel = this.#parts.clock.after(readEveryMs, () => {
      this.#readAll().catch(this.#parts.onFailure);
      this.#readLater();
    });
  }
}
