import { expect, test } from '@jest/globals';
import { medianInterval } from '../../bench/paired.ts';

test('the interval of a median leaves out what the table of the sign test for 95 % leaves out', () => {
  const upTo = (n: number): number[] => Array.from({ length: n }, (_, at) => at + 1);
  expect(medianInterval(upTo(5)).between).toBeNull();
  // By sums of binomial coefficients.
  expect(medianInterval(upTo(6)).between).toEqual([1, 6]);
  expect(medianInterval(upTo(10)).between).toEqual([2, 9]);
  expect(medianInterval(upTo(20)).between).toEqual([6, 15]);
  expect(medianInterval(upTo(41)).between).toEqual([14, 28]);
  expect(medianInterval([3, 1, 2]).median).toBe(2);
});
