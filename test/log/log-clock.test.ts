/** What a replica knows of the log's time. */
import { expect, test } from '@jest/globals';
import { LogClock } from '../../src/log/redis-log.ts';

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
