/**
 * Windows that an upstream counts by its own clock, which may differ from that of the store, and states in its responses: calls of a full
 * window, on virtual time.
 */
import { dialectOf } from '../../../src/config/speaks.ts';
import { SeededRandom } from '../../../simulators/seeded-random.ts';
import { Fixed, Leaky, Rolling, type Counter } from './counters.ts';
import { silent, type Dialect } from './dialects.ts';
import { run } from './paced-run.ts';
import type { Fleet, Range } from './scene.ts';

export const limit = 20;
export const windowsNeeded = 6;
export const busy: Fleet = {
  replicas: 3,
  wayMs: [0.5, 3],
  stallsAfterMs: [50, 1_000],
  stallMs: [20, 100],
  jobMs: [0, 0.5],
};

/** How responses state the end of the window. */
export const forms = ['epoch-seconds', 'epoch-milliseconds', 'date', 'seconds', 'milliseconds'] as const;
export type StatedAs = (typeof forms)[number];

export interface Way {
  /** Default: windows that the upstream's clock begins. */
  readonly kind?: 'fixed' | 'rolling' | 'leaky';
  readonly seconds: number;
  readonly wayMs: Range;
  /** By so much the upstream's clock is behind that of the store. */
  readonly behindMs?: number;
  readonly fleet?: Fleet;
  readonly stated?: StatedAs;
  /** The configuration describes the fields only: window and level are learned, and a refusal's time is the reset. */
  readonly isLearned?: boolean;
  /** When calls come, milliseconds; left out, at once. */
  readonly comes?: (windowMs: number, random: SeededRandom) => readonly number[];
}

/** What the upstream says of its window: with `Date`, as its clock shows it (`clockMs`: at the beginning). */
function stating(as: StatedAs | undefined, clockMs: number, isLearned: boolean): Dialect {
  if (as === undefined) return silent;
  const text = (resetMs: number, at: number): string => {
    if (as === 'seconds') return String(Math.ceil(resetMs / 1000));
    if (as === 'milliseconds') return String(Math.ceil(resetMs));
    if (as === 'epoch-milliseconds') return String(Math.ceil(at + resetMs));
    const second = Math.ceil((at + resetMs) / 1000);
    return as === 'date' ? new Date(second * 1000).toUTCString() : String(second);
  };
  return {
    kind: 'generic',
    fields: (counter, waitMs, now) => [
      ['date', new Date(clockMs + now).toUTCString()],
      ['x-limit', String(counter.limit)],
      ['x-left', String(Math.floor(counter.limit - counter.used(now) + 1e-6))],
      ['x-reset', text(counter.resetMs(now), clockMs + now)],
      ...(isLearned ? [] : silent.fields(counter, waitMs, now)),
    ],
  };
}

const atOnce = (): readonly number[] => Array.from({ length: limit * windowsNeeded }, (_, at) => at * 0.3);

function counterOf(kind: 'fixed' | 'rolling' | 'leaky', windowMs: number, phaseMs: number): Counter {
  if (kind === 'fixed') return new Fixed(limit, windowMs, phaseMs);
  return kind === 'leaky' ? new Leaky(limit, windowMs) : new Rolling(limit, windowMs);
}

/** Calls that the upstream refused, and windows from the first call to the last. */
export function measure(way: Way, seed: number) {
  const { kind = 'fixed', seconds, wayMs, behindMs = 0, fleet, stated, comes = atOnce } = way;
  const { isLearned = false } = way;
  const windowMs = seconds * 1000;
  // The first calls are in the same window by both clocks, unless those differ by more than half of it.
  const aheadMs = kind === 'fixed' ? Math.min(Math.max(0, behindMs), windowMs / 2) : 0;
  const origin = windowMs * 5_000 + aheadMs + ((seed * 37) % (windowMs / 2));
  const phaseMs = windowMs - ((origin - behindMs) % windowMs);
  const windows = [{ requests: limit, seconds, kind }];
  const fields =
    stated === undefined
      ? {}
      : {
          fields: {
            ...(isLearned ? { limit: 'x-limit' } : {}),
            remaining: 'x-left',
            reset: { name: 'x-reset', as: stated },
          },
        };
  const calls = comes(windowMs, new SeededRandom(seed));
  const { arrivals } = run(
    {
      counter: () => counterOf(kind, windowMs, phaseMs % windowMs),
      dialect: stating(stated, origin - behindMs, isLearned),
      described: dialectOf({ ...(isLearned ? {} : { windows }), ...fields }).dialect,
      windowMs,
      stated: isLearned
        ? []
        : [{ meter: 'requests', limit, windowMs, ...(kind === 'leaky' ? {} : { counts: kind }) }],
      probe: 0,
      calls,
      maxWaitMs: Infinity,
      maxInFlight: null,
      wayMs,
      serviceMs: [2, 10],
      outsider: null,
      ...(fleet === undefined ? {} : { fleet }),
    },
    seed,
    origin,
  );
  const tookMs = (arrivals.at(-1)?.at ?? 0) - (arrivals[0]?.at ?? 0);
  return { refused: arrivals.filter(({ admitted }) => !admitted).length, windows: tookMs / windowMs };
}

/** Some calls now and then, and a crowd at any time, that comes again. */
export function inCrowds(windowMs: number, random: SeededRandom): readonly number[] {
  const times: number[] = [];
  for (let crowd = 0; crowd < 4; crowd += 1) {
    const beginsAt = windowMs * (crowd * 2 + random.next());
    for (let n = 0; n < 5; n += 1) times.push(windowMs * 2 * (crowd + random.next()));
    for (let n = 0; n < limit; n += 1) times.push(beginsAt + n * 0.3);
  }
  return times.toSorted((a, b) => a - b);
}
