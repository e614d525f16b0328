import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { SortedNames } from '../../../src/limiter/policy/sorted.policy.ts';

const name = fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f');
/** `null`: the name is taken out. */
const score = fc.option(fc.integer({ min: -3, max: 3 }), { nil: null });

test('a set ordered by score agrees with a plain map that is sorted anew after every step', () => {
  fc.assert(
    fc.property(fc.array(fc.tuple(name, score), { maxLength: 60 }), name, (steps, any) => {
      const sorted = new SortedNames();
      const plain = new Map<string, number>();
      for (const [each, at] of steps) {
        if (at === null) expect(sorted.delete(each)).toBe(plain.delete(each));
        else {
          sorted.set(each, at);
          plain.set(each, at);
        }
        const order = [...plain].toSorted(([one, a], [other, b]) => a - b || (one < other ? -1 : 1));
        expect(sorted.names()).toEqual(order.map(([known]) => known));
        expect([sorted.size, sorted.first()?.name]).toEqual([plain.size, order[0]?.[0]]);
        expect(sorted.scoreOf(any)).toBe(plain.get(any) ?? null);
        // The rank that a name has, or would have.
        const own = plain.get(any) ?? 0;
        const before = order.filter(([known, at]) => at < own || (at === own && known < any));
        expect(sorted.rank(any, own)).toBe(before.length);
      }
    }),
    { numRuns: 300 },
  );
});
