import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { ChosenBuckets } from '../../src/journey/chosen-buckets.ts';
import { unstatedLimits, upstreamSettings } from '../support/upstream-settings.ts';

const minuteMs = 60_000;
const api = upstreamSettings('api', ['https://api.example'], { maxBuckets: 3 });
const daily = { ...api, limits: { ...unstatedLimits, requestsPerDay: 10 } };

const asker = (upstream = api, workspaceId = 'acme') => {
  const buckets = new ChosenBuckets();
  return (value: string, now: number): boolean => buckets.hasOwn({ workspaceId, upstream }, value, now);
};

describe('buckets that a workspace’s calls choose', () => {
  test('are its own up to the bound; values that have one keep it', () => {
    const hasOwn = asker();
    expect(['a', 'b', 'c', 'd', 'e', 'a'].map((value) => hasOwn(value, 0))).toEqual([true, true, true, false, false, true]);
  }); // prettier-ignore

  test('are given up by a value that was not used for the longest window', () => {
    const hasOwn = asker();
    for (const value of ['a', 'b', 'c']) hasOwn(value, 0);
    hasOwn('a', minuteMs - 1);
    expect(['d', 'e', 'f'].map((value) => hasOwn(value, minuteMs))).toEqual([true, true, false]);
    expect(hasOwn('a', minuteMs)).toBe(true);
    const ofADay = asker(daily);
    for (const value of ['a', 'b', 'c']) ofADay(value, 0);
    expect(ofADay('d', 24 * 60 * minuteMs - 1)).toBe(false);
    expect(ofADay('d', 24 * 60 * minuteMs)).toBe(true);
  });

  test('are counted for each workspace and upstream', () => {
    const buckets = new ChosenBuckets();
    const other = { ...api, name: 'other' };
    for (const workspaceId of ['a', 'b']) {
      for (const upstream of [api, other]) {
        const own = [1, 2, 3, 4].map((value) => buckets.hasOwn({ workspaceId, upstream }, String(value), 0));
        expect(own).toEqual([true, true, true, false]);
      }
    }
  });

  test('never are more in any window than the bound, whatever values are invented', () => {
    const calls = fc.array(fc.record({ value: fc.nat(9), afterMs: fc.nat(minuteMs / 2) }), { maxLength: 60 });
    fc.assert(
      fc.property(calls, (made) => {
        const hasOwn = asker();
        const own: { value: number; at: number }[] = [];
        let now = 0;
        for (const { value, afterMs } of made) {
          now += afterMs;
          if (hasOwn(String(value), now)) own.push({ value, at: now });
        }
        for (const { at } of own) {
          const window = own.filter((other) => other.at >= at && other.at < at + minuteMs);
          expect(new Set(window.map(({ value }) => value)).size).toBeLessThanOrEqual(api.maxBuckets);
        }
      }),
    );
  });
});
