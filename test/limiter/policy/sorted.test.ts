import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { SortedNames } from '../../../src/limiter/policy/sorted.policy.ts';

const name = fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f');
const step = fc.oneof(
  fc.record({ kind: fc.constant('set' as const), name, score: fc.integer({ min: -3, max: 3 }) }),
  fc.record({ kind: fc.constant('delete' as const), name }),
);

describe('a set ordered by score', () => {
  test('agrees with a plain map that is sorted anew after every step', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const sorted = new SortedNames();
        const plain = new Map<string, number>();
        for (const each of steps) {
          if (each.kind === 'set') {
            sorted.set(each.name, each.score);
            plain.set(each.name, each.score);
          } else {
            expect(sorted.delete(each.name)).toBe(plain.delete(each.name));
          }
          const order = [...plain].toSorted(
            ([one, first], [other, second]) => first - second || (one < other ? -1 : 1),
          );
          expect(sorted.names()).toEqual(order.map(([known]) => known));
          expect(sorted.size).toBe(plain.size);
          expect(sorted.first()?.name).toBe(order[0]?.[0]);
          order.forEach(([known, score], at) => {
            expect(sorted.rank(known, score)).toBe(at);
            expect(sorted.scoreOf(known)).toBe(score);
          });
        }
      }),
      { numRuns: 300 },
    );
  });

  test('gives the rank that a name would have', () => {
    const sorted = new SortedNames();
    sorted.set('a', 1);
    for (const name of ['c', 'e']) sorted.set(name, 2);
    expect([sorted.rank('d', 2), sorted.rank('z', 0), sorted.scoreOf('z')]).toEqual([2, 0, null]);
  });
});
