/** The text form of entries: what is written is read, and anything else is a typed error. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { replicaId } from '../../src/ids.ts';
import { firstMark, follows, markOf, readEntry } from '../../src/log/redis-commands.ts';

const stamped = { at: 1_700_000_000_000.25, replica: replicaId('r1'), batch: 7 };
const stamp = `${stamped.at} r1 7`;
const mark = markOf(firstMark, stamp);
const text = (events: string): string => `3 ${mark} 2 ${stamp} ${events}`;

test('an entry is read as it was written, whatever its events are', () => {
  fc.assert(
    fc.property(fc.array(fc.jsonValue()), (events) => {
      const json = JSON.stringify(events);
      const plain: unknown = JSON.parse(json);
      expect(readEntry(text(json))).toEqual({ ...stamped, sequence: 3, mark, term: 2, stamp, events: plain });
    }),
  );
});

test('a text that nobody wrote as an entry is none', () => {
  const good = text('[1,2]');
  expect(readEntry(good)?.events).toEqual([1, 2]);
  const bad = ['', 'who', '3', text('1'), text('{}'), text('[1'), good.slice(2), ` ${good}`];
  for (const each of bad) expect(readEntry(each)).toBeNull();
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (junk) => {
      expect(readEntry(junk)).toBeNull();
    }),
  );
});

test('an entry follows only the history that it was made for', () => {
  const entry = { ...stamped, sequence: 3, mark, term: 2, stamp, events: [] };
  expect(follows(entry, { sequence: 2, mark: firstMark })).toBe(true);
  expect(follows(entry, { sequence: 1, mark: firstMark })).toBe(false);
  expect(follows(entry, { sequence: 2, mark: entry.mark })).toBe(false);
});
