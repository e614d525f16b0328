/** The text form of entries: what is written is read, and anything else is a typed error. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { replicaId } from '../../src/ids.ts';
import {
  eventsText,
  firstMark,
  follows,
  MalformedEntry,
  markOf,
  readEntry,
  stampOf,
} from '../../src/log/entry.ts';

const asIs = (value: unknown): unknown => value;
const number = (value: unknown): number => {
  if (typeof value !== 'number') throw new TypeError('not a number');
  return value;
};

const stamped = { at: 1_700_000_000_000.25, replica: replicaId('r1'), batch: 7 };
const text = (events: string): string =>
  `3 ${markOf(firstMark, stampOf(stamped))} 2 ${stampOf(stamped)} ${events}`;

test('an entry is read as it was written, whatever its events are', () => {
  fc.assert(
    fc.property(fc.array(fc.jsonValue()), (events) => {
      const plain: unknown = JSON.parse(JSON.stringify(events));
      const entry = readEntry(text(eventsText(events.map((event) => JSON.stringify(event)))), asIs);
      expect(entry).toEqual({
        ...stamped,
        sequence: 3,
        mark: markOf(firstMark, stampOf(stamped)),
        term: 2,
        stamp: stampOf(stamped),
        events: plain,
      });
    }),
  );
});

test('a text that nobody wrote as an entry is refused as one', () => {
  const good = text('[1,2]');
  expect(readEntry(good, number).events).toEqual([1, 2]);
  const bad = ['', 'who', '3', text('1'), text('{}'), text('[1'), text('["x"]'), good.slice(2), ` ${good}`];
  for (const each of bad) expect(() => readEntry(each, number)).toThrow(MalformedEntry);
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (junk) => {
      expect(() => readEntry(junk, number)).toThrow(MalformedEntry);
    }),
  );
});

test('an entry follows only the history that it was made for', () => {
  const entry = readEntry(text('[]'), asIs);
  expect(follows(entry, { sequence: 2, mark: firstMark })).toBe(true);
  expect(follows(entry, { sequence: 1, mark: firstMark })).toBe(false);
  expect(follows(entry, { sequence: 2, mark: entry.mark })).toBe(false);
});
