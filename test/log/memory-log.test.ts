/** The log of a process that is alone. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { systemClock } from '../../src/clock.ts';
import { replicaId } from '../../src/ids.ts';
import { firstMark, follows, markOf, readEntry } from '../../src/log/redis-commands.ts';
import { LogClock } from '../../src/log/redis-log.ts';
import type { Entry } from '../../src/log/log.ts';
import { MemoryLog, type MemoryLogParts } from '../../src/log/memory-log.ts';

/** A log, and what its follower was told, in order. */
function followed(
  parts: Partial<MemoryLogParts> = {},
  onEntry: (log: MemoryLog<string>, entry: Entry<string>) => void = () => {},
) {
  const log = new MemoryLog<string>({ clock: systemClock, replica: replicaId('r1'), ...parts });
  const told: string[] = [];
  const entries: Entry<string>[] = [];
  log.follow({
    onRestore: (restored) => void told.push(`restore ${restored}`),
    onJoined: (term) => void told.push(`joined ${term}`),
    onAway: () => void told.push('away'),
    onEntry: (entry) => {
      entries.push(entry);
      told.push(`begin ${entry.events.join()}`);
      onEntry(log, entry);
      told.push(`end ${entry.events.join()}`);
    },
    awaitsOthers: () => false,
    snapshot: () => '',
  });
  return { log, told, entries };
}

test('an entry is told before append returns', () => {
  const { log, told } = followed();
  log.append('a');
  expect(told).toEqual(['restore null', 'joined 1', 'begin a', 'end a']);
});

test('what is appended while an entry is told comes after it, in order', () => {
  const { log, told } = followed({}, (of, { events: [event] }) => {
    if (event === 'a') for (const each of ['b', 'c']) of.append(each);
    if (event === 'b') of.append('d');
  });
  log.append('a');
  log.append('e');
  const order = ['a', 'b', 'c', 'd', 'e'].flatMap((event) => [`begin ${event}`, `end ${event}`]);
  expect(told.slice(2)).toEqual(order);
});

test('entries have numbers and batches of their own, and a time that never goes back', () => {
  const times = [1_000, 1_005, 900, 1_010];
  const clock = { now: () => 50_000, monotonic: () => times.shift() ?? 1_010 };
  const { log, entries } = followed({ clock });
  for (const event of ['a', 'b', 'c']) log.append(event);
  expect(entries.map(({ sequence, batch, term, at }) => [sequence, batch, term, at])).toEqual([
    [1, 1, 1, 50_005],
    [2, 2, 1, 50_005],
    [3, 3, 1, 50_010],
  ]);
});

test('a log that goes on after an entry keeps its numbers and its time, and restores nothing', () => {
  const after = { sequence: 7, term: 3, at: 9e15 };
  const { log, told, entries } = followed({ after });
  log.append('a');
  expect(told.slice(0, 1)).toEqual(['joined 3']);
  expect(entries[0]).toMatchObject({ sequence: 8, term: 3 });
  expect(entries[0]?.at).toBeGreaterThanOrEqual(after.at);
});

test('after close the follower hears nothing', async () => {
  const { log, told } = followed();
  await log.close();
  log.append('a');
  expect(told).toHaveLength(2);
});

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

test('a log whose time went on by less than the time here has that time, at once', () => {
  const clock = new LogClock();
  clock.noteOwn(5_000, 100, 102);
  expect(clock.at(1_101)).toBe(6_000);
  // An append was kept waiting here for longer than it allowed the log's time to go on.
  clock.noteOwn(6_000, 16_100, 16_102);
  expect(clock.at(16_101)).toBe(6_000);
  expect(clock.at(16_201)).toBe(6_100);
});

test('a time that no drift explains is believed, also from a slow reply', () => {
  const clock = new LogClock();
  clock.noteOwn(5_000, 100, 102);
  clock.noteOwn(6_000, 16_100, 16_300);
  expect(clock.at(16_300)).toBe(6_100);
});

test('an entry of another replica that is ahead of the time here puts it forward', () => {
  const clock = new LogClock();
  clock.noteOwn(5_000, 100, 102);
  clock.noteHeard(6_000, 500);
  expect(clock.at(600)).toBe(6_100);
});

test('it is never before the last entry', () => {
  const clock = new LogClock();
  clock.noteHeard(7_000, 100);
  expect(clock.at(900)).toBe(7_000);
  clock.noteOwn(7_100, 1_000, 1_200);
  expect(clock.at(1_000)).toBe(7_100);
});
