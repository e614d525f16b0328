import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { readFileSync } from 'node:fs';
import { retryAfterMs } from '../../src/dispatch/retry-after.policy.ts';

const samples: { retryAfterTorture: string[] } = JSON.parse(
  readFileSync(new URL('../fixtures/upstream-samples.json', import.meta.url), 'utf8'),
);
const now = Date.UTC(2026, 8, 1, 0, 0, 0); // 1788220800 s
const day = 86_400_000;
const wait = (fields: Record<string, string>): number | null =>
  retryAfterMs(new Map(Object.entries(fields)), now);

describe('the parser of Retry-After', () => {
  const expected: Record<string, number | null> = {
    '2': 2000,
    '2.0': 2000,
    '0': null,
    '-1': null,
    '3600': 3_600_000,
    '1788220800': null,
    soon: null,
    'Wed, 21 Oct 2015 07:28:00 GMT': null,
  };

  test.each(samples.retryAfterTorture)('reads the sample %s', (value) => {
    expect(Object.keys(expected)).toContain(value);
    expect(wait({ 'retry-after': value })).toBe(expected[value]);
  });

  test('reads an epoch sent by mistake as an instant', () => {
    const date = new Date(now - 45_000).toUTCString();
    expect(wait({ 'retry-after': '1788220800', date })).toBe(45_000);
  });
});

describe('the wait of a response', () => {
  test('is taken from the exact milliseconds first', () => {
    expect(wait({ 'retry-after-ms': '534', 'retry-after': '1' })).toBe(534);
  });

  test.each(['0', '-5', 'x', ''])('is taken from the seconds when the milliseconds are %p', (ms) => {
    expect(wait({ 'retry-after-ms': ms, 'retry-after': '1' })).toBe(1000);
  });

  test('is the longest of joined values, so that none is undercut', () => {
    expect(wait({ 'retry-after': '2, 5' })).toBe(5000);
    expect(wait({ 'retry-after': '5,2.0' })).toBe(5000);
    expect(wait({ 'retry-after': 'soon, 2' })).toBe(2000);
  });

  test('keeps the comma of a date together', () => {
    expect(wait({ 'retry-after': 'Tue, 01 Sep 2026 00:00:30 GMT' })).toBe(30_000);
    expect(wait({ 'retry-after': '1, Tue, 01 Sep 2026 00:00:30 GMT' })).toBe(30_000);
  });

  test('does not read the year of an ISO date as seconds', () => {
    expect(wait({ 'retry-after': '2026-09-01T00:00:10Z' })).toBe(10_000);
    expect(wait({ 'retry-after': '2026-09-01' })).toBeNull();
  });

  test.each([-90_000, 90_000])(
    'is measured from the Date of the response, so a clock skew of %d ms changes nothing',
    (skew) => {
      const date = new Date(now + skew).toUTCString();
      expect(wait({ 'retry-after': new Date(now + skew + 7000).toUTCString(), date })).toBe(7000);
    },
  );
});

describe('the bounds of Retry-After', () => {
  test('round up, never earlier than stated', () => {
    expect(wait({ 'retry-after': '0.0004' })).toBe(1);
    expect(wait({ 'retry-after': '2.3' })).toBe(2300);
    expect(wait({ 'retry-after-ms': '10.2' })).toBe(11);
  });

  test('limit a wait to a day', () => {
    expect(wait({ 'retry-after': '999999' })).toBe(day);
    expect(wait({ 'retry-after': '9'.repeat(20) })).toBe(day);
  });

  test.each(['', ' ', ',', 'Infinity', 'NaN', '9'.repeat(400), '0x10', '+-1', '1 2'])(
    'make %p no wait at all',
    (value) => {
      expect(wait({ 'retry-after': value })).toBeNull();
    },
  );

  test('leave out, of several values, those beyond a day', () => {
    expect(wait({ 'retry-after': '5, 9999999999999, 999999' })).toBe(5000);
  });

  test('make absent fields no wait at all', () => {
    expect(wait({})).toBeNull();
  });

  test('make every value null or a whole number from 1 ms to a day, and cover every plain number of seconds', () => {
    fc.assert(
      fc.property(fc.string(), fc.string(), (value, ms) => {
        const waitMs = wait({ 'retry-after': value, 'retry-after-ms': ms });
        expect(waitMs === null || (Number.isInteger(waitMs) && waitMs >= 1 && waitMs <= day)).toBe(true);
      }),
    );
    fc.assert(
      fc.property(fc.double({ min: 0.001, max: 86_400, noNaN: true }), (seconds) => {
        const text = seconds.toFixed(6);
        expect(wait({ 'retry-after': text })).toBeGreaterThanOrEqual(Number(text) * 1000 - 1e-6);
      }),
    );
  });
});
