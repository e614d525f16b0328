/** Calls of full windows that an upstream counts by its own clock leave just after there is room, and not too early, whatever their way, replicas and clocks. */
import { describe, expect, test } from '@jest/globals';
import { buildDialect, speaks } from '../../../src/config/speaks.ts';
import { maxJitterMs } from '../../../src/limiter/policy/meter.policy.ts';
import { SeededRandom } from '../../../simulators/seeded-random.ts';
import { remaining, run, silent, type Dialect, type Range, type Scene } from './paced.ts';

const limit = 20;
const windowsNeeded = 6;
/** Calls leave later than they were granted, and the store hears later of their responses. */
const busy = { delayed: { share: 1, ms: [0.5, 100] }, toldLateMs: [0.5, 100] } as const;
/** How responses state the end of the window. The first three name an instant; the others do not depend on a clock. */
const forms = ['epoch-seconds', 'epoch-milliseconds', 'date', 'seconds', 'milliseconds'] as const;

interface Way extends Pick<Scene, 'delayed' | 'toldLateMs'> {
  /** Default: windows that the upstream's clock begins. */
  readonly kind?: 'fixed' | 'rolling' | 'leaky';
  readonly seconds: number;
  readonly wayMs?: Range;
  /** By so much the upstream's clock is behind that of the store. */
  readonly behindMs?: number;
  readonly stated?: (typeof forms)[number];
  /** Calls come now and then, and in crowds at any time; left out, at once. */
  readonly inCrowds?: boolean;
}

/** What the upstream says of its window: with `Date`, as its clock shows it. */
function stating({ stated: as }: Way): Dialect {
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
    fields: (windows, waitMs, at) => [
      ['date', new Date(at).toUTCString()],
      ['x-left', remaining(windows[0])],
      ['x-reset', text(windows[0].resetMs, at)],
      ...silent.fields(windows, waitMs, at),
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

async function measure(way: Way, seed: number) {
  const { kind = 'fixed', seconds, wayMs = [1, 8], behindMs = 0, stated, ...late } = way;
  const windowMs = seconds * 1000;
  // The first calls are in the same window by both clocks, unless those differ by more than half of it.
  const aheadMs = kind === 'fixed' ? Math.min(Math.max(0, behindMs), windowMs / 2) : 0;
  const origin = windowMs * 5_000 + aheadMs + ((seed * 37) % (windowMs / 2));
  const windows = [{ requests: limit, seconds, kind }];
  const fields = { remaining: 'x-left', reset: { name: 'x-reset', as: stated } };
  const spoken = { windows, ...(stated === undefined ? {} : { fields }) };
  const meter = { meter: 'requests', limit, windowMs } as const;
  const { arrivals } = await run(
    {
      ...late,
      windows,
      clockMs: origin - behindMs,
      dialect: stating(way),
      described: buildDialect(speaks.parse(spoken)).dialect,
      stated: [kind === 'leaky' ? meter : { ...meter, counts: kind }],
      calls: way.inCrowds === true ? crowds(windowMs, new SeededRandom(seed)) : atOnce,
      wayMs,
      serviceMs: [2, 10],
    },
    seed,
    origin,
  );
  const tookMs = (arrivals.at(-1)?.at ?? 0) - (arrivals[0]?.at ?? 0);
  return { refused: arrivals.filter(({ admitted }) => !admitted).length, windows: tookMs / windowMs };
}

/** The most windows that a burst takes, over so many seeds, of which none has a call refused. */
async function windowsOf(way: Way, seeds: number): Promise<number> {
  const measured = await Promise.all(Array.from({ length: seeds }, (_, seed) => measure(way, seed)));
  expect(measured.map(({ refused }) => refused)).toEqual(Array(seeds).fill(0));
  return Math.max(...measured.map(({ windows }) => windows));
}

test.each<[string, Way]>([
  ['a near upstream and a second', { seconds: 1 }],
  ['a way of 1 to 60 ms', { seconds: 2, wayMs: [1, 60] }],
  ['a way of 1 to 150 ms', { seconds: 10, wayMs: [1, 150] }],
  ['an upstream far away', { seconds: 2, wayMs: [100, 140] }],
  ['a busy machine', { seconds: 2, wayMs: [1, 20], ...busy }],
  ['a busy machine and a minute', { seconds: 60, wayMs: [1, 150], ...busy }],
  // A sixtieth of the window is kept free, at least 25 ms and at most a second.
  ['a clock that is 20 ms behind', { seconds: 1, behindMs: 20 }],
  ['a clock that is 150 ms behind', { seconds: 10, behindMs: 150 }],
  ['a clock that is 900 ms behind', { seconds: 60, behindMs: 900 }],
  ['a clock that is 10 ms ahead', { seconds: 1, behindMs: -10 }],
])('no call of windows of the clock is refused with %s', async (_, way) => {
  expect(await windowsOf(way, 10)).toBeLessThanOrEqual((windowsNeeded - 1) * 1.05);
});

const machines: readonly (readonly [string, Partial<Way>])[] = [
  ['an idle', {}],
  ['a busy', busy],
];

const skewed = [
  ...[-90_000, -2_000, 2_000, 30_000].flatMap((behindMs) =>
    forms.flatMap((stated) => [
      { kind: 'fixed' as const, behindMs, stated, seconds: 60 },
      // Of a second more or less of ten a tenth would be lost: resets in whole seconds correct no such window.
      ...(stated === 'milliseconds' ? [{ kind: 'fixed' as const, behindMs, stated, seconds: 10 }] : []),
    ]),
  ),
  ...[-90_000, 90_000].flatMap((behindMs) =>
    (['rolling', 'leaky'] as const).flatMap((kind) =>
      forms.slice(0, 3).map((stated) => ({ kind, behindMs, stated, seconds: 60 })),
    ),
  ),
];
/** The first window of a clock may be waited for by our own clock; a meter that leaves empty rests once before it drains. */
const spareWindows = { fixed: 1.05, rolling: 0, leaky: maxJitterMs / 60_000 };
describe.each(skewed)(
  'a $kind window of $seconds s of a clock that is $behindMs ms behind, and is stated in $stated,',
  (skew) => {
    test.each(machines)('refuses no call of %s machine, and is used to its end', async (_, late) => {
      const windows = (await windowsOf({ ...skew, ...late }, 5)) - spareWindows[skew.kind];
      expect(windows).toBeLessThanOrEqual((windowsNeeded - 1) * 1.05);
      await windowsOf({ ...skew, ...late, inCrowds: true }, 5);
    });
  },
);
