/**
 * Windows that the upstream's clock begins (`kind: fixed`), on virtual time: calls of a full window leave just after the next one has
 * begun, and must not meet the old one because of their way, of busy replicas or of clocks that differ.
 */
import { expect, test } from '@jest/globals';
import { buildDialect } from '../../../src/config/speaks-build.ts';
import { Fixed } from './counters.ts';
import { silent } from './dialects.ts';
import { run } from './paced-run.ts';
import type { Fleet, Range } from './scene.ts';

const limit = 20;
const windowsNeeded = 6;
const busy: Fleet = {
  replicas: 3,
  wayMs: [0.5, 3],
  stallsAfterMs: [50, 1_000],
  stallMs: [20, 100],
  jobMs: [0, 0.5],
};

interface Way {
  readonly seconds: number;
  readonly wayMs: Range;
  /** By so much the upstream's clock is behind that of the store. */
  readonly behindMs?: number;
  readonly fleet?: Fleet;
}

/** Calls that the upstream refused, and windows from the first call to the last. */
function measure({ seconds, wayMs, behindMs = 0, fleet }: Way, seed: number) {
  const windowMs = seconds * 1000;
  // The first calls are in the same window by both clocks.
  const origin = windowMs * 5_000 + Math.max(0, behindMs) + ((seed * 37) % (windowMs / 2));
  const phaseMs = windowMs - ((origin - behindMs) % windowMs);
  const windows = [{ requests: limit, seconds, kind: 'fixed' as const }];
  const { arrivals } = run(
    {
      counter: () => new Fixed(limit, windowMs, phaseMs % windowMs),
      dialect: silent,
      described: buildDialect({ windows }).dialect,
      windowMs,
      stated: [{ meter: 'requests', limit, windowMs, counts: 'fixed' }],
      probe: 0,
      calls: Array.from({ length: limit * windowsNeeded }, (_, at) => at * 0.3),
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

test.each<[string, Way]>([
  ['a near upstream and a second', { seconds: 1, wayMs: [1, 8] }],
  ['a way of 1 to 60 ms', { seconds: 2, wayMs: [1, 60] }],
  ['a way of 1 to 150 ms', { seconds: 10, wayMs: [1, 150] }],
  ['an upstream far away', { seconds: 2, wayMs: [100, 140] }],
  ['three busy replicas', { seconds: 2, wayMs: [1, 20], fleet: busy }],
  ['three busy replicas and a minute', { seconds: 60, wayMs: [1, 150], fleet: busy }],
  // A sixtieth of the window is kept free, at least 25 ms and at most a second.
  ['a clock that is 20 ms behind', { seconds: 1, wayMs: [1, 8], behindMs: 20 }],
  ['a clock that is 150 ms behind', { seconds: 10, wayMs: [1, 8], behindMs: 150 }],
  ['a clock that is 900 ms behind', { seconds: 60, wayMs: [1, 8], behindMs: 900 }],
  ['a clock that is 10 ms ahead', { seconds: 1, wayMs: [1, 8], behindMs: -10 }],
])('no call is refused with %s', (_, way) => {
  const measured = Array.from({ length: 10 }, (_, seed) => measure(way, seed));
  expect(measured.map(({ refused }) => refused)).toEqual(Array(10).fill(0));
  for (const { windows } of measured) expect(windows).toBeLessThanOrEqual((windowsNeeded - 1) * 1.05);
});
