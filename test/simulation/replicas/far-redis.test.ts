/**
 * A burst over three replicas whose Redis is far away, on virtual time: 800 calls in 2 s on an upstream that lets 600
 * through at once and ten a second after that. Judged by when the calls were sent.
 */
import { expect, test } from '@jest/globals';
import { crowdPlan } from './crowd-plan.ts';
import { run } from './simulate.ts';

const calls = 800;
const limit = 600;
const perMs = limit / 60_000;
/** The last call finds room when all that the bucket does not hold has drained. */
const optimumMs = (calls - limit) / perMs;

/** `roundTripMs`: mean time to Redis and back. */
const burst = (seed: number, roundTripMs: number) =>
  crowdPlan(seed, {
    wayMs: roundTripMs / 2,
    calls,
    firstAt: 2_500,
    everyMs: 2.5,
    maxWaitMs: 75_000,
    perMinute: 100_000,
    limit,
    bucket: {},
  });

/** In ascending order. */
const sorted = (values: readonly number[]): number[] => values.toSorted((a, b) => a - b);

// Another seed is another order of replies; what is right for one of them may have been luck.
test.each([
  [20, 7],
  [80, 1],
  [80, 2],
  [80, 7],
])(
  'a burst over three replicas whose Redis is %s ms away leaves in order and at the rate of the upstream (seed %s)',
  async (roundTripMs, seed) => {
    const { violations, calls: seen } = await run(burst(seed, roundTripMs));
    expect(violations).toEqual([]);
    expect(seen.map(({ sentAt }) => sentAt.length)).toEqual(seen.map(() => 1));
    const times = sorted(seen.flatMap(({ sentAt }) => sentAt));
    const tookMs = (times.at(-1) ?? NaN) - (times[0] ?? NaN);
    expect(tookMs / optimumMs).toBeLessThanOrEqual(1.02);
    // The first 600 calls go as they come: one round trip to the log, one to the ceiling. The first of each replica join the log before.
    const delays = seen.slice(0, limit).map(({ plan, sentAt }) => (sentAt[0] ?? NaN) - plan.at);
    expect(Math.max(...delays)).toBeLessThanOrEqual(15 * roundTripMs);
    expect(Math.max(...delays.slice(limit / 2))).toBeLessThanOrEqual(10 * roundTripMs);
  },
);
