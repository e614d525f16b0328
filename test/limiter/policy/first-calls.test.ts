/** Which calls go first while it is unknown whether the upstream accepts calls. */
import { expect, test } from '@jest/globals';
import { pilotCrowd, pilotMs, silenceMs } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { names, returned, TestBucket, throttled } from './scheduling.ts';

const crowd = pilotCrowd + 1;

/** A bucket that granted one call at the origin, and whose lane slept for so long since then with a crowd in it. */
function sleptFor(ms: number, waiting = crowd): TestBucket {
  const line = new TestBucket((afterMs) => afterMs, { limit: 1_000, windowMs: 60_000 }).at(0);
  line.enter(['first', 't0']);
  line.settle('first');
  line.settle('t0', returned('ceiling_minute', ms));
  line.enter(names(waiting).slice(1));
  line.lane().slots = null;
  return line.at(ms);
}

test('after a silence one call, the pilot, goes ahead of many, and its response lets the others go', () => {
  const line = sleptFor(silenceMs);
  expect(line.tick()).toEqual(['t0']);
  expect(line.nextAt).toBe(silenceMs + pilotMs);
  expect(line.at(silenceMs + 1).pump()).toEqual([]);
  expect(line.at(silenceMs + 20).settle('t0')).toHaveLength(crowd - 1);
});

test('a refused pilot closes the bucket for all calls', () => {
  const line = sleptFor(silenceMs);
  line.tick();
  expect(line.at(silenceMs + 20).settle('t0', throttled(5_000, { requeue: true }))).toEqual([]);
  expect(line.nextAt).toBe(silenceMs + 5_020);
});

test('a slow pilot delays the other calls for a short time only', () => {
  const line = sleptFor(silenceMs);
  line.tick();
  expect(line.at(silenceMs + pilotMs).pump()).toHaveLength(crowd - 1);
});

test('a pilot that the ceiling sends back does not count as one', () => {
  const line = sleptFor(silenceMs);
  line.tick();
  line.at(silenceMs + 1).settle('t0', returned('ceiling_minute', 30));
  line.lane().slots = null;
  expect(line.at(silenceMs + 31).pump()).toEqual(['t0']);
});

test('few calls go without a pilot, and calls that have left hold no others', () => {
  expect(sleptFor(silenceMs, pilotCrowd).tick()).toHaveLength(pilotCrowd);
  const line = sleptFor(silenceMs);
  line.tick();
  expect(line.at(silenceMs + 1).cancel('t1')).toHaveLength(pilotCrowd - 1);
});

test('calls that waited for less than a silence go at once', () => {
  expect(sleptFor(silenceMs - 1).tick()).toHaveLength(crowd);
});
