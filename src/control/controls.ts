/**
 * What an operator may do about an upstream: pause it for a while, end that, and reopen what its responses have closed.
 *
 * Owns: what this replica knows of the pauses and openings that all replicas share; it opens its own buckets accordingly and notifies
 * breakers. Does not own: holding a call back (`journey/send-checks.ts` asks here). What another replica was asked to do is known here
 * as soon as its message comes. While Redis is unavailable, this replica goes by what it last read.
 */
import { every, type Clock, type Random } from '../clock.ts';
import type { BucketKey } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import { anybody, type CreateMap, type SharedMap } from '../replicated/shared-map.ts';

/** Controls are read this often, so that a lost message is made up for. Milliseconds. */
const readEveryMs = 5_000;
/** How long an opening can be read: by every replica, also one that missed the message. Milliseconds. */
const openingMs = 60_000;
/** How long the end of a pause is remembered, which nobody needs to know later. Milliseconds. */
const resumedMs = 1_000;

/**
 * What an operator last asked for, as replicas share it: a pause for the life of its entry (when it began, Unix milliseconds), its end, or
 * an opening. A pause and an opening hold side by side.
 */
type Control = number | 'resumed' | 'opened';

/**
 * The outcome of one command of the operator. `unavailable`: Redis could not be asked, so nothing was changed. `not_paused`: there was no
 * pause to end.
 */
export type ControlOutcome = 'done' | 'not_paused' | 'unavailable';

export type Controls = ReturnType<typeof createControls>;

export function createControls(parts: {
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
}) {
  const { clock, random, limiter, keyOf, onFailure } = parts;
  /** By upstream. `until`: monotonic milliseconds. `since`: Unix milliseconds. */
  const pauses = new Map<string, { readonly until: number; readonly since: number }>();
  /** The latest opening of each upstream, by its owner. */
  const openings = new Map<string, string>();
  const map: SharedMap<Control> = parts.createMap({
    name: 'control.3',
    onChange: () => void readAll().catch(onFailure),
  });
  let stopReading = (): void => {};

  const nameOf = (upstream: string, control: Control) => ({
    name: `${keyOf(upstream)}.${control === 'opened' ? 'open' : 'pause'}`,
  });

  async function read(upstream: string): Promise<ControlOutcome> {
    const [pause, opening] = await Promise.all([
      map.read(nameOf(upstream, 'resumed')),
      map.read(nameOf(upstream, 'opened')),
    ]);
    if (pause.kind === 'unavailable' || opening.kind === 'unavailable') return 'unavailable';
    pauses.delete(upstream);
    if (pause.kind === 'entry' && typeof pause.value === 'number')
      pauses.set(upstream, { until: clock.monotonic() + pause.leftMs, since: pause.value });
    if (opening.kind === 'entry' && opening.owner !== openings.get(upstream)) {
      openings.set(upstream, opening.owner);
      parts.onUpstreamReopened(upstream);
      for (const bucket of parts.bucketsOf(upstream)) await limiter.open(bucket, openingMs - opening.leftMs);
    }
    return 'done';
  }

  async function readAll(): Promise<void> {
    for (const upstream of parts.upstreams()) await read(upstream);
  }

  async function put(upstream: string, control: Control, ttlMs: number): Promise<ControlOutcome> {
    const options = { owner: random.hex(8), ttlMs, over: anybody };
    const { kind } = await map.put(nameOf(upstream, control), control, options);
    return kind === 'put' ? read(upstream) : 'unavailable';
  }

  /** `ms`: how long the pause holds yet; `since`: when it began, Unix milliseconds. `null` = the upstream is not paused. */
  function pauseOf(upstream: string) {
    const { until = 0, since = 0 } = pauses.get(upstream) ?? {};
    const ms = until - clock.monotonic();
    return ms > 0 ? { ms, since } : null;
  }

  return {
    pauseOf,
    /** Names of the upstreams that are configured now. */
    upstreams: (): readonly string[] => [...parts.upstreams()],
    /** Reads the pauses and openings that were made before this process began, and from now on again and again. */
    async start(): Promise<void> {
      await readAll();
      stopReading = every(clock, readEveryMs, () => void readAll().catch(onFailure));
    },
    close: (): void => stopReading(),
    /** How long nobody may be sent to the upstream; 0 = it is not paused. Milliseconds. */
    pausedMs: (upstream: string): number => pauseOf(upstream)?.ms ?? 0,
    pause: (upstream: string, ms: number) => put(upstream, clock.now(), ms),
    open: (upstream: string) => put(upstream, 'opened', openingMs),
    async resume(upstream: string): Promise<ControlOutcome> {
      if ((await read(upstream)) === 'unavailable') return 'unavailable';
      const wasPaused = pauseOf(upstream) !== null;
      const outcome = await put(upstream, 'resumed', resumedMs);
      return outcome === 'done' && !wasPaused ? 'not_paused' : outcome;
    },
  };
}
