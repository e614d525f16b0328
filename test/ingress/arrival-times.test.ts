/** When requests arrived that a process was kept from reading. */
import { describe, expect, test } from '@jest/globals';
import { ArrivalTimes } from '../../src/ingress/arrival-times.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { originOf, origins } from '../support/origins.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { sequencePerMs } from '../../src/limiter/policy/bucket-state.policy.ts';
import fc from 'fast-check';

/** Reads a request at each of these times, milliseconds after the origin; while the process stands, when it runs again. */
async function readAt(
  times: readonly number[],
  stalls: readonly (readonly [at: number, ms: number])[] = [],
  originMs = 0,
): Promise<{ readonly arrivals: number[]; readonly clock: FakeClock; readonly own: ArrivalTimes }> {
  const clock = new FakeClock();
  const own = new ArrivalTimes(shiftedClock(clock, originMs));
  const arrivals: number[] = [];
  for (const [at, ms] of stalls) clock.outside(at, () => clock.stall(ms));
  for (const at of times) clock.arrives(at, () => arrivals.push(own.arrived() - originMs));
  await clock.run(Math.max(...times, ...stalls.map(([at, ms]) => at + ms)) + 10);
  return { arrivals, clock, own };
}

describe.each(origins)('the arrival time of a request, on $name,', ({ ms: originMs }) => {
  test('is the time of its reading while the process runs', async () => {
    const times = [0, 3, 3.5, 40, 700];
    expect((await readAt(times, [], originMs)).arrivals).toEqual(times);
  });

  test('is the middle of the gap when the process was stalled before the reading', async () => {
    const { arrivals } = await readAt([0, 50, 60, 100, 130, 131, 150], [[52, 80]], originMs);
    // It ran at 50, when it read a request, and then at 132.
    expect(arrivals.map(Math.round)).toEqual([0, 50, 91, 91, 91, 91, 150]);
  });

  test('is within the gap also when its connection is accepted after the gap, and read in a later turn of the event loop', async () => {
    const { arrivals } = await readAt([0, 50, 134.5], [[52, 80]], originMs);
    expect(arrivals.map(Math.round)).toEqual([0, 50, 91]);
  });

  test('is the middle of the second gap when one follows the other', async () => {
    const stalls = [
      [22, 78],
      [100.5, 99.5],
    ] as const;
    const { arrivals } = await readAt([0, 60, 150], stalls, originMs);
    expect(arrivals).toEqual([0, 60, 150]);
  });

  test('is later than that of the request read before, also in one gap, so that a repeat of it gets its own position', async () => {
    const { arrivals } = await readAt([0, 50, 60, 100, 130, 131, 150], [[52, 80]], originMs);
    const positions = arrivals.map((at) => Math.floor((at + originMs) * sequencePerMs));
    expect(new Set(positions).size).toBe(positions.length);
    expect(positions).toEqual(positions.toSorted((one, other) => one - other));
  });
});

test('is within the gap before for all requests that are read in one long tick', async () => {
  const clock = new FakeClock();
  let late = 0;
  const own = new ArrivalTimes({ ...clockOf(clock), monotonic: () => clock.monotonic() + late });
  const arrivals: number[] = [];
  clock.arrives(0, () => arrivals.push(own.arrived()));
  clock.outside(10, () => clock.stall(90));
  clock.arrives(50, () => {
    for (let at = 0; at < 30; at += 1, late += 1) arrivals.push(own.arrived());
  });
  await clock.run(100);
  expect(new Set(arrivals.map(Math.floor))).toEqual(new Set([0, 50]));
});

/** The clock's own functions, to be replaced in part. */
const clockOf = (clock: FakeClock) => ({
  now: () => clock.now(),
  monotonic: () => clock.monotonic(),
  after: clock.after.bind(clock),
});

test('arrival times keep the order of reading, and are never in the future nor before the process last ran', async () => {
  const gap = fc.tuple(fc.nat(1_500), fc.nat(300));
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.double({ min: 0, max: 2_000, noNaN: true }), { minLength: 1, maxLength: 60 }),
      fc.array(gap, { maxLength: 6 }),
      fc.nat(2),
      async (unordered, stalls, seed) => {
        const times = unordered.toSorted((one, other) => one - other);
        const { ms } = originOf(seed, 0.37);
        const { arrivals } = await readAt(times, stalls, ms);
        expect(arrivals).toHaveLength(times.length);
        const allStallsMs = stalls.reduce((sum, [, long]) => sum + long, 0);
        for (const [at, arrival] of arrivals.entries()) {
          expect(arrival).toBeGreaterThanOrEqual((arrivals[at - 1] ?? 0) - 0.001);
          // One stall may begin where another ends, so that what arrived in the first is read after both.
          const stood = stalls.filter(([from]) => from <= (times[at] ?? 0) + allStallsMs);
          const longest = stood.reduce((sum, [, long]) => sum + long, 0);
          expect(Math.abs(arrival - (times[at] ?? 0))).toBeLessThanOrEqual(longest + 26);
        }
      },
    ),
    { numRuns: 200 },
  );
});

test('the timer of arrival times stops without requests, and starts with the next one', async () => {
  const { clock, own } = await readAt([0, 5]);
  expect(clock.timers).toBe(1);
  await clock.run(2_000);
  expect(clock.timers).toBe(0);
  own.arrived();
  expect(clock.timers).toBe(1);
});

test('closing the arrival times leaves no timer, also when a request is still read afterwards', async () => {
  const { clock, own } = await readAt([0, 5]);
  own.close();
  expect(clock.timers).toBe(0);
  expect(own.arrived()).toBe(clock.monotonic());
  expect(clock.timers).toBe(0);
});
