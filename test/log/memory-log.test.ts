/** The log of a process that is alone. */
import { expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { replicaId } from '../../src/ids.ts';
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
