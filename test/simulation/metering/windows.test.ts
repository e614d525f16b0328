/** Calls of full windows that an upstream counts by its own clock leave just after there is room, and not too early, whatever their way, replicas and clocks. */
import { describe, expect, test } from '@jest/globals';
import { buildDialect, speaks } from '../../../src/config/speaks.ts';
import { maxJitterMs } from '../../../src/limiter/policy/meter.policy.ts';
import { SeededRandom } from '../../../simulators/seeded-random.ts';
import { run, type Fleet, type Range } from './paced-run.ts';
import { counterOf, remaining, silent, type Dialect } from './upstreams.ts';

const limit = 20;
const windowsNeeded = 6;
const busy: Fleet = {
  replicas: 3,
  wayMs: [0.5, 3],
  stallsAfterMs: [50, 1_000],
  stallMs: [20, 100],
  jobMs: [0, 0.5],
};
/** How responses state the end of the window. The first three name an instant; the others do not depend on a clock. */
const forms = ['epoch-seconds', 'epoch-milliseconds', 'date', 'seconds', 'milliseconds'] as const;

interface Way {
  /** Default: windows that the upstream's clock begins. */
  readonly kind?: 'fixed' | 'rolling' | 'leaky';
  readonly seconds: number;
  readonly wayMs?: Range;
  /** By so much the upstream's clock is behind that of the store. */
  readonly behindMs?: number;
  readonly fleet?: Fleet | null;
  readonly stated?: (typeof forms)[number];
  /** The configuration describes the fields only: window and level are learned, and a refusal's time is the reset. */
  readonly isLearned?: boolean;
  /** Calls come now and then, and in crowds at any time; left out, at once. */
  readonly inCrowds?: boolean;
}

/** What the upstream says of its window: with `Date`, as its clock shows it (`clockMs`: at the beginning). */
function stating({ stated: as, isLearned = false }: Way, clockMs: number): Dialect {
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
      ['x-left', remaining(counter, now)],
      ['x-reset', text(counter.resetMs(now), clockMs + now)],
      ...(isLearned ? [] : silent.fields(counter, waitMs, now)),
    ],
  };
}

const atOnce = Array.from({ length: limit * windowsNeeded }, (_, at) => at * 0.3);

function crowds(windowMs: number, random: SeededRandom): readonly number[] {
  const times: number[] = [];
  for (let crowd = 0; crowd < 4; crowd += 1) {
    const beginsAt = windowMs * (crowd * 2 + random.next());
    for (let n = 0; n < 5; n += 1) times.push(windowMs * 2 * (crowd + random.next()));
    for (let n = 0; n < limit; n += 1) times.push(beginsAt + n * 0.3);
  }
  return times.toSorted((a, b) => a - b);
}

function measure(way: Way, seed: number) {
  const {
    kind = 'fixed',
    seconds,
    wayMs = [1, 8],
    behindMs = 0,
    fleet = null,
    stated,
    isLearned = false,
  } = way;
  const windowMs = seconds * 1000;
  // The first calls are in the same window by both clocks, unless those differ by more than half of it.
  const aheadMs = kind === 'fixed' ? Math.min(Math.max(0, behindMs), windowMs / 2) : 0;
  const origin = windowMs * 5_000 + aheadMs + ((seed * 37) % (windowMs / 2));
  const phaseMs = windowMs - ((origin - behindMs) % windowMs);
  const fields = {
    ...(isLearned ? { limit: 'x-limit' } : {}),
    remaining: 'x-left',
    ...(stated === undefined ? {} : { reset: { name: 'x-reset', as: stated } }),
  };
  const scene = {
    counter: () => counterOf(kind, limit, windowMs, phaseMs % windowMs),
    dialect: stating(way, origin - behindMs),
    described: buildDialect(
      speaks.parse({
        ...(isLearned ? {} : { windows: [{ requests: limit, seconds, kind }] }),
        ...(stated === undefined ? {} : { fields }),
      }),
    ).dialect,
    stated: isLearned
      ? []
      : [{ meter: 'requests' as const, limit, windowMs, ...(kind === 'leaky' ? {} : { counts: kind }) }],
    calls: way.inCrowds === true ? crowds(windowMs, new SeededRandom(seed)) : atOnce,
    wayMs,
    serviceMs: [2, 10] as const,
    ...(fleet === null ? {} : { fleet }),
  };
  const { arrivals } = run(scene, seed, origin);
  const tookMs = (arrivals.at(-1)?.at ?? 0) - (arrivals[0]?.at ?? 0);
  return { refused: arrivals.filter(({ admitted }) => !admitted).length, windows: tookMs / windowMs };
}

/** The most windows that a burst takes, over so many seeds, of which none has a call refused. */
function windowsOf(way: Way, seeds: number): number {
  const measured = Array.from({ length: seeds }, (_, seed) => measure(way, seed));
  expect(measured.map(({ refused }) => refused)).toEqual(Array(seeds).fill(0));
  return Math.max(...measured.map(({ windows }) => windows));
}

test.each<[string, Way]>([
  ['a near upstream and a second', { seconds: 1 }],
  ['a way of 1 to 60 ms', { seconds: 2, wayMs: [1, 60] }],
  ['a way of 1 to 150 ms', { seconds: 10, wayMs: [1, 150] }],
  ['an upstream far away', { seconds: 2, wayMs: [100, 140] }],
  ['three busy replicas', { seconds: 2, wayMs: [1, 20], fleet: busy }],
  ['three busy replicas and a minute', { seconds: 60, wayMs: [1, 150], fleet: busy }],
  // A sixtieth of the window is kept free, at least 25 ms and at most a second.
  ['a clock that is 20 ms behind', { seconds: 1, behindMs: 20 }],
  ['a clock that is 150 ms behind', { seconds: 10, behindMs: 150 }],
  ['a clock that is 900 ms behind', { seconds: 60, behindMs: 900 }],
  ['a clock that is 10 ms ahead', { seconds: 1, behindMs: -10 }],
])('no call of windows of the clock is refused with %s', (_, way) => {
  expect(windowsOf(way, 10)).toBeLessThanOrEqual((windowsNeeded - 1) * 1.05);
});

const fleets: readonly (readonly [string, Fleet | null])[] = [
  ['one process', null],
  ['three busy replicas', busy],
];

const fixed = [-90_000, -2_000, 2_000, 30_000].flatMap((behindMs) =>
  forms.flatMap((stated) => [
    { behindMs, stated, seconds: 60 },
    // Of a second more or less of ten a tenth would be lost: resets in whole seconds correct no such window.
    ...(stated === 'milliseconds' ? [{ behindMs, stated, seconds: 10 }] : []),
  ]),
);
describe.each(fixed)(
  'a clock that is $behindMs ms behind, where responses state the end of a window of $seconds s in $stated,',
  (skew) => {
    test.each(fleets)('refuses no call of %s, and wastes no window', (_, fleet) => {
      // The first window may be waited for by our own clock.
      expect(windowsOf({ ...skew, fleet }, 5)).toBeLessThanOrEqual(windowsNeeded * 1.05);
      windowsOf({ ...skew, fleet, inCrowds: true }, 5);
    });
  },
);

const unaligned = [-90_000, 90_000].flatMap((behindMs) =>
  (['rolling', 'leaky'] as const).flatMap((kind) =>
    forms.slice(0, 3).map((stated) => ({ kind, behindMs, stated, seconds: 60 })),
  ),
);
describe.each(unaligned)(
  'a $kind window of $seconds s behind a clock that is $behindMs ms behind, and is stated in $stated,',
  (skew) => {
    test.each(fleets)('refuses no call of %s, and is used to its end', (_, fleet) => {
      // A meter that leaves empty rests once before it drains.
      const restWindows = skew.kind === 'leaky' ? maxJitterMs / (skew.seconds * 1000) : 0;
      const windows = windowsOf({ ...skew, fleet }, 3) - restWindows;
      expect(windows).toBeLessThanOrEqual((windowsNeeded - 1) * 1.05);
      windowsOf({ ...skew, fleet, inCrowds: true }, 3);
    });

    test('is learned as well as of a clock that agrees, where the configuration describes the fields only', () => {
      for (const inCrowds of [false, true])
        for (let seed = 0; seed < 3; seed += 1) {
          const way: Way = { ...skew, isLearned: true, inCrowds };
          expect(measure(way, seed)).toEqual(measure({ ...way, behindMs: 0 }, seed));
        }
    });
  },
);
