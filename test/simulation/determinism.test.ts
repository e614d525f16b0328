/**
 * A seed is its history, whichever histories the process has lived before. Otherwise an objection of a long run cannot be repeated.
 * The seeds are of all kinds: days that are used up (1015), faults of Redis, described windows (from 10,000,000 on).
 */
import { afterEach, expect, jest, test } from '@jest/globals';
import { live } from './live.ts';

afterEach(() => {
  jest.restoreAllMocks();
});

test.each([
  ['upstreams', [1_015, 17, 10_000_001]],
  ['faults', [17, 10_000_002]],
] as const)('a seed is its history, by no clock and no chance but its own: %s', async (form, seeds) => {
  const readings = [
    jest.spyOn(Date, 'now'),
    jest.spyOn(performance, 'now'),
    jest.spyOn(Math, 'random'),
    jest.spyOn(globalThis, 'setTimeout'),
    jest.spyOn(globalThis, 'setInterval'),
  ];
  /** What two histories of a seed must have in common, which is everything. */
  async function historyOf(seed: number): Promise<unknown> {
    const { history, wrong, verdicts } = await live(form, seed, { keepsLog: true, followed: 'all' });
    const { log, refused, reached } = history;
    const stated = refused.map(({ id, code, at, retryInMs }) => [id, code, at, retryInMs]);
    return [seed, log, wrong, stated, [...reached], [...verdicts]];
  }
  const inOrder = [];
  for (const seed of seeds) inOrder.push(await historyOf(seed));
  const reversed = [];
  for (const seed of seeds.toReversed()) reversed.push(await historyOf(seed));

  expect(reversed.toReversed()).toEqual(inOrder);
  expect(readings.map((reading) => reading.mock.calls.length)).toEqual([0, 0, 0, 0, 0]);
});
