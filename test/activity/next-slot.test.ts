import { describe, expect, test } from '@jest/globals';
import { bucketKey, ceilingKey } from '../../src/ids.ts';
import { findLastBucket, nextSlotMs } from '../../src/observation/pressure.ts';
import { bucketSnapshot as bucket, settableClock } from '../telemetry/drive.ts';

const requests = (level: number) => ({ meter: 'requests' as const, limit: 60, level, windowMs: 60_000 });

describe('the next slot of a workspace', () => {
  test('is that of the ceiling while the bucket has room', () => {
    expect(nextSlotMs(700, null)).toBe(700);
    expect(nextSlotMs(null, null)).toBeNull();
    expect(nextSlotMs(700, bucket({ meters: [requests(59)] }))).toBe(700);
    expect(nextSlotMs(null, bucket())).toBe(0);
  });

  test('is not before the bucket opens', () => {
    expect(nextSlotMs(700, bucket({ closedMs: 12_000 }))).toBe(12_000);
  });

  test('comes when a full bucket has drained, behind waiting calls', () => {
    expect(nextSlotMs(0, bucket({ meters: [requests(60)] }))).toBe(1_000);
    expect(nextSlotMs(0, bucket({ waiting: 4, meters: [requests(60)] }))).toBe(5_000);
  });

  test.each(['requests_burst', 'requests_hour', 'requests_day'] as const)('waits for %s as well', (meter) => {
    const full = { meter, limit: 60, level: 60, windowMs: 600_000 };
    expect(nextSlotMs(0, bucket({ meters: [requests(0), full] }))).toBe(10_000);
  });

  test('does not count tokens, which depend on the call', () => {
    const tokens = { meter: 'tokens' as const, limit: 100, level: 500, windowMs: 60_000 };
    expect(nextSlotMs(0, bucket({ meters: [tokens] }))).toBe(0);
  });
});

describe('the bucket used last', () => {
  test('is found by ceiling, refreshed after a quarter of a second, and unknown where there is none', () => {
    const clock = settableClock();
    let closedMs = 5;
    const acme = ceilingKey('acme');
    const lanes = [
      { ceiling: acme, bucket: bucketKey('c'), usedAt: 1 },
      { ceiling: acme, bucket: bucketKey('b'), usedAt: 2 },
      { ceiling: ceilingKey('other'), bucket: bucketKey('c'), usedAt: 3 },
    ];
    const snapshot = () => [bucket({ closedMs }), bucket({ bucket: bucketKey('c') })];
    const last = findLastBucket(clock, snapshot, () => lanes);
    expect(last(ceilingKey('unknown'))).toBeNull();
    expect(last(acme)?.closedMs).toBe(5);
    closedMs = 9;
    expect(last(acme)?.closedMs).toBe(5);
    clock.advance(250);
    expect(last(acme)?.closedMs).toBe(9);
    lanes.push({ ceiling: acme, bucket: bucketKey('gone'), usedAt: 4 });
    clock.advance(250);
    expect(last(acme)).toBeNull();
  });
});
