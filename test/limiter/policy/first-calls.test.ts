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

/** Of an upstream of which nothing is known. */
const noLimit = { setting: { meters: [], learn: true, probe: 0 } } as const;

/** A bucket with a crowd whose first call was refused at the origin, so that all wait for a second. */
function refusedCrowd(): TestBucket {
  const line = new TestBucket((afterMs) => afterMs, noLimit).at(0);
  line.enter(['t0']);
  line.settle('t0', throttled(1_000, { requeue: true }));
  line.enter(names(40).slice(1));
  return line.at(1_000);
}

/** How many calls leave when the next may, for as long as some do. */
function leaving(line: TestBucket): readonly (readonly [ms: number, calls: number])[] {
  const found: [number, number][] = [];
  for (let calls = line.pump().length; calls > 0; calls = line.pump().length) {
    found.push([line.ms, calls]);
    if (line.nextAt !== null) line.at(line.nextAt);
  }
  return found;
}

test('where the upstream states no limit, calls leave after a refusal a few at a time, and more with each interval', () => {
  expect(leaving(refusedCrowd())).toEqual([
    [1_000, 1],
    [1_250, 1],
    [1_500, 2],
    [1_750, 4],
    [2_000, 8],
    [2_250, 16],
    [2_500, 8],
  ]);
});

// Of calls of one moment the name decides: t1, t10, t11.
test('each is told when it leaves then', () => {
  const line = refusedCrowd();
  expect(['t0', 't1', 't10', 't12', 't9'].map((ticket) => line.forecast(ticket)?.waitMs)).toEqual([
    0, 250, 500, 750, 1_500,
  ]);
  line.pump();
  expect(line.admit('late', { ...noLimit, maxWaitMs: 1_000 })).toMatchObject({
    kind: 'refused',
    retryInMs: 1_500,
    heldBy: 'requests',
  });
});

test('they begin anew after the next refusal, and when the bucket has been idle since', () => {
  const line = refusedCrowd();
  for (const ms of [1_000, 1_250, 1_500]) line.at(ms).pump();
  line.settle('t1', throttled(1_000, { requeue: true }));
  expect(line.nextAt).toBe(2_500);
  expect(leaving(line.at(5_000)).slice(0, 3)).toEqual([
    [5_000, 1],
    [5_250, 1],
    [5_500, 2],
  ]);
});

test('where the limit is known, nothing but that holds calls after a refusal', () => {
  const line = refusedCrowd();
  Object.assign(line.meter('requests'), { reported: { limit: 1_000, windowMs: 60_000, sentAt: 0 } });
  expect(leaving(line)).toEqual([[1_000, 40]]);
});
