import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { DueTimes } from '../../../src/limiter/over-log/due-times.ts';

const name = fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i');
const step = fc.oneof(
  fc.record({ kind: fc.constant('set' as const), name, at: fc.integer({ min: -4, max: 4 }) }),
  fc.record({ kind: fc.constant('delete' as const), name }),
);

/** All names, the earliest first, as they come out. */
function drained(due: DueTimes<string>): string[] {
  const names: string[] = [];
  for (let first = due.first(); first !== undefined; first = due.first()) {
    names.push(first.name);
    due.delete(first.name);
  }
  return names;
}

test('due times agree with a plain map that is sorted anew after every step', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 80 }), (steps) => {
      const due = new DueTimes<string>();
      const plain = new Map<string, number>();
      for (const each of steps) {
        if (each.kind === 'set') {
          due.set(each.name, each.at);
          plain.set(each.name, each.at);
        } else {
          due.delete(each.name);
          plain.delete(each.name);
        }
        const order = [...plain].toSorted(([one, a], [other, b]) => a - b || (one < other ? -1 : 1));
        expect(due.first()?.name).toBe(order[0]?.[0]);
        for (const known of 'abcdefghi') expect(due.timeOf(known)).toBe(plain.get(known) ?? null);
      }
      const copy = new DueTimes<string>();
      for (const { name: known, at } of due.entries()) copy.set(known, at);
      expect(copy.entries()).toEqual(due.entries());
      const order = [...plain].toSorted(([one, a], [other, b]) => a - b || (one < other ? -1 : 1));
      expect(drained(due)).toEqual(order.map(([known]) => known));
    }),
    { numRuns: 300 },
  );
});
