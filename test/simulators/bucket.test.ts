import { describe, expect, test } from '@jest/globals';
import { Bucket } from '../../simulators/bucket.ts';
import { goDuration } from '../../simulators/go-duration.ts';
import { recordedDurations } from './samples.ts';

const minute = 60_000;
const day = 86_400_000;

describe('the simulated bucket, which drains continuously,', () => {
  test('shows two calls 64 ms apart on 500 per minute as the recorded 498 and 176ms', () => {
    const bucket = new Bucket({ limit: 500, windowMs: minute }, 0);
    bucket.take(1, 0);
    bucket.take(1, 64);
    expect(bucket.remaining(64)).toBe(498);
    expect(goDuration(bucket.fullInMs(64))).toBe('176ms');
  });

  test.each([
    { limit: 30_000, used: 29_446, asked: 821, windowMs: minute, wait: '534ms' },
    { limit: 50_000, used: 47_949, asked: 3006, windowMs: minute, wait: '1.146s' },
    { limit: 30_000, used: 22_999, asked: 12_528, windowMs: minute, wait: '11.054s' },
    { limit: 200, used: 200, asked: 1, windowMs: day, wait: '7m12s' },
    { limit: 500_000, used: 499_731, asked: 664, windowMs: day, wait: '1m8.256s' },
  ])('waits the recorded $wait with $used of $limit used and $asked asked', (row) => {
    const bucket = new Bucket({ limit: row.limit, windowMs: row.windowMs }, 0);
    bucket.take(row.used, 0);
    expect(goDuration(bucket.waitMs(row.asked, 0))).toBe(row.wait);
  });

  test('admits every call at its predicted instant and refuses it 1 ms earlier with a wait of 1 ms', () => {
    const bucket = new Bucket({ limit: 30_000, windowMs: minute }, 0);
    let now = 0;
    let taken = 0;
    while (now < 10 * minute) {
      const wait = bucket.waitMs(821, now);
      if (wait > 1) expect(bucket.waitMs(821, now + wait - 1)).toBeCloseTo(1, 6);
      now += wait;
      expect(bucket.waitMs(821, now)).toBe(0);
      bucket.take(821, now);
      taken += 821;
    }
    expect(taken).toBeCloseTo(30_000 + 30_000 * (now / minute), -3);
  });

  test('never drains below empty and never fills above the limit by refused calls', () => {
    const bucket = new Bucket({ limit: 40, windowMs: 20_000 }, 0);
    bucket.take(3, 0);
    expect(bucket.level(1_000_000)).toBe(0);
    bucket.takeUpTo(100, 1_000_000);
    expect(bucket.level(1_000_000)).toBe(40);
  });
});

describe('the simulated bucket in its other modes', () => {
  test('empties a fixed window at its boundary only', () => {
    const bucket = new Bucket({ limit: 5000, windowMs: minute, mode: { kind: 'fixedWindow' } }, 10_000);
    bucket.take(5000, 10_000);
    expect(bucket.waitMs(1, 59_000)).toBe(1000);
    expect(bucket.waitMs(1, 60_000)).toBe(0);
    expect(bucket.fullInMs(60_000)).toBe(0);
  });

  test('lets a sixth of a sliced minute through every ten seconds', () => {
    const bucket = new Bucket({ limit: 60, windowMs: minute, mode: { kind: 'sliced', sliceMs: 10_000 } }, 0);
    expect(bucket.limit).toBe(10);
    bucket.take(10, 0);
    expect(bucket.waitMs(1, 4000)).toBe(6000);
    expect(bucket.waitMs(1, 10_000)).toBe(0);
  });

  test('allows only the share of a quantum at once, with the same refill', () => {
    const bucket = new Bucket(
      { limit: 60_000, windowMs: minute, mode: { kind: 'quantum', quantumMs: 1000 } },
      0,
    );
    bucket.take(1000, 0);
    expect(bucket.waitMs(1, 0)).toBe(1);
    expect(bucket.waitMs(1, 1)).toBe(0);
  });
});

describe('an outside consumer of the simulated bucket', () => {
  test('takes its share of the refill without timers', () => {
    const bucket = new Bucket({ limit: 40, windowMs: 20_000, outsidePerSecond: 1.5 }, 0);
    bucket.take(40, 0);
    expect(bucket.level(2000)).toBeCloseTo(39, 9);
  });

  test('fills the bucket when it is faster than the refill, and stops at the limit', () => {
    const bucket = new Bucket({ limit: 40, windowMs: 20_000, outsidePerSecond: 10 }, 0);
    expect(bucket.level(2500)).toBeCloseTo(20, 9);
    expect(bucket.level(60_000)).toBe(40);
  });
});

describe('a simulated bucket that was closed', () => {
  test('has room again when the time is over, not a millisecond earlier, and says so until then', () => {
    const bucket = new Bucket({ limit: 6000, windowMs: minute }, 0);
    bucket.closeFor(12_000, 1000);
    expect(bucket.waitMs(1, 3171)).toBeCloseTo(9829, 6);
    expect(bucket.remaining(3171)).toBe(0);
    expect(goDuration(bucket.fullInMs(3171))).toBe('1m9.819s');
    expect(bucket.waitMs(1, 12_999)).toBeCloseTo(1, 6);
    expect(bucket.waitMs(1, 13_000)).toBe(0);
  });

  test('stays closed until the first end when the second closing ends earlier', () => {
    const bucket = new Bucket({ limit: 6000, windowMs: minute }, 0);
    bucket.closeFor(12_000, 0);
    bucket.closeFor(1000, 2000);
    expect(bucket.waitMs(1, 2000)).toBe(10_000);
  });

  test('cannot count fixed periods', () => {
    const bucket = new Bucket({ limit: 6000, windowMs: minute, mode: { kind: 'fixedWindow' } }, 0);
    expect(() => bucket.closeFor(12_000, 0)).toThrow('counts periods');
  });
});

test.each(Object.entries(recordedDurations))(
  'the simulators print the duration %s as recorded',
  (text, ms) => {
    expect(goDuration(ms, true)).toBe(text);
  },
);
