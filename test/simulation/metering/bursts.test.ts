/**
 * Calls before an upstream's bucket, on a busy machine: how many are refused, and how much longer all take than
 * they must. Virtual time.
 */
import { expect, test } from '@jest/globals';
import { originOf } from '../../support/origins.ts';
import { commerce, model, type Range, run, type Scene } from './paced.ts';

interface Burst extends Omit<Scene, 'windows' | 'stated' | 'calls'> {
  readonly limit: number;
  readonly statedLimit?: number;
  readonly windowMs: number;
  readonly calls: number;
  readonly overMs: number;
}

const chats: Burst = {
  dialect: model,
  limit: 600,
  windowMs: 60_000,
  calls: 800,
  overMs: 2_000,
  wayMs: [0, 2],
  serviceMs: [15, 25],
};
const orders: Burst = {
  ...chats,
  dialect: commerce,
  limit: 40,
  windowMs: 20_000,
  calls: 60,
  overMs: 0,
  maxInFlight: 1,
  serviceMs: [50, 150],
};

/** `ratio`: the time from the first arrival to the last by what the quota allows at least. */
async function measure(burst: Burst, seed: number) {
  const { limit, statedLimit = limit, windowMs, calls, overMs, ...between } = burst;
  const { usedBefore = 0 } = between;
  const scene: Scene = {
    ...between,
    windows: [{ requests: limit, seconds: windowMs / 1000, kind: 'leaky' }],
    stated: [{ meter: 'requests', limit: statedLimit, windowMs }],
    calls: Array.from({ length: calls }, (_, at) => (at * overMs) / calls),
  };
  const { arrivals, lastWait } = await run(scene, seed, originOf(seed, seed / 10).ms);
  const served = arrivals.filter(({ admitted }) => admitted).map(({ at }) => at);
  const firstAt = arrivals[0]?.at ?? 0;
  const usedAtFirst = Math.max(0, usedBefore - (firstAt * limit) / windowMs);
  const minMs = (Math.max(0, calls + usedAtFirst - limit) * windowMs) / limit;
  const fates = { seed, succeeded: served.length, refused: arrivals.length - served.length };
  return { served, lastWait, fates, ratio: ((served.at(-1) ?? 0) - firstAt) / minMs };
}

const seeds = [1, 2, 3, 4, 5, 6, 7, 8];
const often: readonly Range[] = [
  [0, 200],
  [250, 500],
  [700, 900],
  [1_200, 1_600],
  [1_900, 2_200],
];
const later: readonly Range[] = [
  [0, 300],
  [2_000, 2_200],
  [5_000, 5_200],
  [8_000, 8_300],
];
const delayed = { share: 0.2, ms: [60, 200] } as const;
/** Into a bucket whose first response states more than the limiter knows, rounded up. */
const used = (maxInFlight: number, usedBefore: number): [string, Burst] => [
  `of commerce calls, ${maxInFlight} in flight, into a bucket of which ${usedBefore} of 40 are used`,
  { ...orders, maxInFlight, usedBefore },
];

test.each<[string, Burst]>([
  ['of chats', chats],
  ['of chats at once', { ...chats, overMs: 0 }],
  ['of chats whose responses take a while', { ...chats, serviceMs: [300, 2_500] }],
  ['of chats whose responses all take long', { ...chats, serviceMs: [3_000, 3_200] }],
  ['with different network times', { ...chats, wayMs: [0, 80] }],
  ['with different network times and slow responses', { ...chats, wayMs: [0, 80], serviceMs: [300, 900] }],
  ['whose first response is late', { ...chats, stalls: [[0, 300]] }],
  ['whose first response is very late', { ...chats, stalls: [[0, 900]] }],
  ['at once, whose first response is late', { ...chats, overMs: 0, stalls: [[0, 700]] }],
  ['on a busy machine', { ...chats, stalls: often }],
  ['on a machine that stalls later', { ...chats, stalls: later }],
  ['whose calls are delayed by one of several replicas', { ...chats, delayed }],
  ['whose calls are delayed, with slow responses', { ...chats, delayed, serviceMs: [300, 2_500] }],
  ['of commerce calls', orders],
  ['of commerce calls on a busy machine', { ...orders, wayMs: [0, 20], stalls: later }],
  ['on 20 a minute', { ...chats, limit: 20, calls: 40, overMs: 1_000, stalls: [[0, 300]] }],
  used(1, 30),
  used(1, 39),
  used(2, 10),
  used(2, 30),
])(
  'a burst %s has all calls served, none refused, and takes at most 2 %% longer than the optimum',
  async (_, burst) => {
    for (const seed of seeds) {
      const { fates, ratio } = await measure(burst, seed);
      expect(fates).toEqual({ seed, succeeded: burst.calls, refused: 0 });
      expect(ratio).toBeGreaterThanOrEqual(1 - 1e-9);
      expect(ratio).toBeLessThanOrEqual(1.02);
    }
  },
);

test.each<[share: number, ms: Range]>([
  [0.33, [5, 20]],
  [0.33, [20, 40]],
  [0.1, [5, 40]],
  [0, [0, 0]],
])(
  'a burst below a stated limit that is far too high, %p of it delayed by %p ms, is not taken for somebody else: the wait of the last call is forecast within 2 %%',
  async (share, ms) => {
    for (const seed of seeds) {
      const burst = { ...chats, statedLimit: 100_000, delayed: { share, ms } };
      const { fates, ratio, lastWait } = await measure(burst, seed);
      expect(fates).toMatchObject({ seed, refused: 0 });
      expect(Math.abs(lastWait.forecastMs / lastWait.trueMs - 1)).toBeLessThan(0.02);
      expect(ratio).toBeLessThanOrEqual(1.02);
    }
  },
);

test('a burst into a bucket that others have used up is refused once, and then goes on at the rate of the bucket', async () => {
  const { served } = await measure({ ...chats, limit: 10, calls: 3, overMs: 3, usedBefore: 10 }, 1);
  expect(served).toHaveLength(3);
  // There is room for one call every 6 s; a single refusal teaches the limiter the units it did not know of.
  expect(served[0]).toBeGreaterThanOrEqual(6_000);
  expect(served[0]).toBeLessThan(6_300);
  expect(served[2]).toBeLessThan(18_000 * 1.02);
});
