/** Arrivals at one replica get different positions, however many come in one instant. */
import { describe, expect, test } from '@jest/globals';
import { ArrivalOrder } from '../../src/admission/admission.ts';
import { sequencePerMs } from '../../src/limiter/policy/bucket-state.policy.ts';
import { origins } from '../support/origins.ts';

const position = (at: number): number => Math.floor(at * sequencePerMs);

describe.each(origins)('arrival order of one replica, on $name', ({ ms }) => {
  test('gives two thousand calls that were read after one gap positions in the order in which they came', () => {
    const order = new ArrivalOrder();
    const positions = Array.from({ length: 2_000 }, () => position(order.next(ms + 100)));
    positions.push(position(order.next(ms + 100.5)));
    for (const [at, each] of positions.entries()) {
      expect(each).toBeGreaterThan(positions[at - 1] ?? -Infinity);
    }
  });

  test('keeps the arrival of a call that came earlier, and the order of those that follow', () => {
    const order = new ArrivalOrder();
    const first = order.next(ms + 100);
    expect(order.next(ms + 20)).toBe(ms + 20);
    expect(position(order.next(ms + 100))).toBeGreaterThan(position(first));
    expect(order.next(ms + 500)).toBe(ms + 500);
  });
});
