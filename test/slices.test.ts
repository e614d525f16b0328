import { describe, expect, test } from '@jest/globals';
import { createSlices, maxItems, maxMs } from '../src/slices.ts';
import { manualClock } from './support/manual-clock.ts';

/** Slices whose pauses end when the test says so. */
function slicesAt() {
  const clock = manualClock();
  const sizes: number[] = [];
  const done: number[] = [];
  const slices = createSlices(clock, (items) => sizes.push(items));
  const settled = (): Promise<void> => new Promise((resume) => setImmediate(resume));
  const next = async (): Promise<void> => {
    clock.advance(1);
    await settled();
  };
  return { clock, slices, sizes, done, next };
}

const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

describe('work in slices', () => {
  test('of no more items than one slice has is done at once', async () => {
    const { slices, done, sizes, clock } = slicesAt();
    await slices.forEach(numbers(maxItems), (n) => done.push(n));
    expect([done.length, sizes, clock.waiting]).toEqual([maxItems, [maxItems], 0]);
  });

  test('of more items pauses after each slice, and keeps their order', async () => {
    const { slices, done, next } = slicesAt();
    const all = slices.forEach(numbers(2 * maxItems + 1), (n) => done.push(n));
    expect(done).toHaveLength(maxItems);
    await next();
    expect(done).toHaveLength(2 * maxItems);
    await next();
    await all;
    expect(done).toEqual(numbers(2 * maxItems + 1));
  });

  test('pauses sooner when items take long', async () => {
    const { clock, slices, sizes, next } = slicesAt();
    const all = slices.forEach(numbers(5), () => clock.advance(maxMs / 2));
    await next();
    await next();
    await all;
    expect(sizes).toEqual([2, 2, 1]);
  });

  test('ends with the failure of an item, and leaves the rest out', async () => {
    const { slices, done } = slicesAt();
    const failing = slices.forEach(numbers(10), (n) => {
      if (n === 3) throw new Error('three');
      done.push(n);
    });
    await expect(failing).rejects.toThrow('three');
    expect(done).toEqual([0, 1, 2]);
  });
});
