import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { readFileSync } from 'node:fs';
import { durationMs, instantMs, timeLeftMs } from '../../src/dispatch/stated-time.policy.ts';

const samples: { goDurations: Record<string, number> } = JSON.parse(
  readFileSync(new URL('../fixtures/upstream-samples.json', import.meta.url), 'utf8'),
);
const now = Date.UTC(2026, 8, 1, 12, 0, 0);
const at = { date: null, now };

/** Go's `Duration.String()` for whole milliseconds. */
function goString(ms: number): string {
  if (ms === 0) return '0s';
  if (ms < 1000) return `${ms}ms`;
  const hours = Math.floor(ms / 3_600_000);
  const minutes = Math.floor(ms / 60_000) % 60;
  const seconds = `${(ms % 60_000) / 1000}s`;
  return hours > 0 ? `${hours}h${minutes}m${seconds}` : minutes > 0 ? `${minutes}m${seconds}` : seconds;
}

describe('the parser of durations', () => {
  test.each(Object.entries(samples.goDurations))('reads %s as %d ms', (text, ms) => {
    expect(durationMs(text)).toBe(ms);
  });

  test.each(['1h0m0s', '2d', '1.5h', '1μs', '.5s'])('accepts %s', (text) => {
    expect(durationMs(text)).toBeGreaterThan(0);
  });

  test.each([
    '',
    '12',
    '-1s',
    '+1s',
    ' 1s',
    '1s ',
    '1,5s',
    '1s!',
    's',
    '1x',
    '1sm',
    '1.2.3s',
    '1e3s',
    'NaNs',
  ])('refuses %p', (text) => {
    expect(durationMs(text)).toBeNull();
  });

  test.each([
    ['30 seconds', 30_000],
    ['34 Seconds', 34_000],
    ['1 minute 30 seconds', 90_000],
    ['1 minute and 30 seconds', 90_000],
    ['1 hour, 2 minutes', 3_720_000],
    ['500 ms', 500],
    ['2 mins', 120_000],
    ['1 hr', 3_600_000],
    ['PT30S', 30_000],
    ['PT1M30S', 90_000],
    ['PT0.5S', 500],
    ['P1DT2H', 93_600_000],
    ['00:01:30', 90_000],
    ['00:00:27.5', 27_500],
  ])('reads %s as %d ms', (text, ms) => {
    expect(durationMs(text)).toBe(ms);
  });

  // ISO 8601 has months, which have no length.
  test.each(['P1M', 'PT', 'P', 'PTS', '30 parsecs', '1 minute and', '90:00', '1m30'])(
    'refuses %p',
    (text) => {
      expect(durationMs(text)).toBeNull();
    },
  );

  test('reads back every whole number of milliseconds that Go writes', () => {
    fc.assert(
      fc.property(fc.nat({ max: 40 * 86_400_000 }), (ms) => {
        expect(durationMs(goString(ms))).toBe(ms);
      }),
    );
  });
});

describe('the parser of instants', () => {
  test('reads the three HTTP-date forms alike', () => {
    const expected = Date.UTC(1994, 10, 6, 8, 49, 37);
    expect(instantMs('Sun, 06 Nov 1994 08:49:37 GMT')).toBe(expected);
    expect(instantMs('Sunday, 06-Nov-94 08:49:37 GMT')).toBe(expected);
    expect(instantMs('Sun Nov  6 08:49:37 1994')).toBe(expected);
  });

  test.each([
    'Sun, 06 Nov 1994 08:49:37 UTC',
    'Sun, 06 Nov 1994 08:49:37 +0000',
    'Sun, 06 Nov 1994 09:49:37 +01:00',
    'Sun, 6 Nov 1994 08:49:37 GMT',
    'Sun Nov 06 1994 08:49:37 GMT+0000 (Coordinated Universal Time)',
    'Sun Nov 06 1994 14:19:37 GMT+0530 (India Standard Time)',
    'Sun Nov 06 1994 08:49:37 GMT',
    '1994-11-06 08:49:37 UTC',
    '1994-11-06 08:49:37 +0000',
    '1994-11-06 08:49:37 +0000 UTC',
    '1994-11-06T08:49:37+0000',
  ])('reads %s, as servers write it', (text) => {
    expect(instantMs(text)).toBe(Date.UTC(1994, 10, 6, 8, 49, 37));
  });

  test('reads an instant without seconds', () => {
    expect(instantMs('2026-03-26T16:00Z')).toBe(Date.UTC(2026, 2, 26, 16, 0));
    expect(instantMs('2026-03-26T16:00+02:00')).toBe(Date.UTC(2026, 2, 26, 14, 0));
  });

  test('agrees with the calendar of the runtime for every instant of four centuries', () => {
    const instants = fc.integer({ min: Date.UTC(1800, 0, 1) / 1000, max: Date.UTC(2199, 11, 31) / 1000 });
    fc.assert(
      fc.property(instants, (seconds) => {
        const date = new Date(seconds * 1000);
        expect(instantMs(date.toUTCString())).toBe(seconds * 1000);
        expect(instantMs(date.toISOString())).toBe(seconds * 1000);
      }),
    );
  });

  test.each([
    '2026-02-29T00:00:00Z',
    '2026-13-01T00:00:00Z',
    '2026-01-01T24:00:00Z',
    '2026-01-01T00:00:00',
    '2026-01-01 00:00',
    'Sun, 31 Feb 2026 00:00:00 GMT',
    'Sun, 06 Nov 1994 08:49:37',
    'Sun, 06 Nov 1994 08:49:37 CEST',
    '2026-01-01',
  ])('refuses %s', (text) => {
    expect(instantMs(text)).toBeNull();
  });

  test('honours the offset of a timestamp', () => {
    expect(instantMs('2026-09-27T07:08:00-05:00')).toBe(Date.UTC(2026, 8, 27, 12, 8, 0));
    expect(instantMs('2026-09-27T07:08:00.250+02:00')).toBe(Date.UTC(2026, 8, 27, 5, 8, 0, 250));
  });
});

describe('the parser of stated times', () => {
  test.each([
    ['58.891s', 58_891],
    ['12', 12_000],
    ['26.5', 26_500],
    ['+30', 30_000],
    ['3e1', 30_000],
    ['0', 0],
    ['1,200', 1_200_000],
    ['2026-09-01T12:00:30Z', 30_000],
    ['Tue, 01 Sep 2026 12:01:00 GMT', 60_000],
    [String(now / 1000 + 7), 7000],
    [String(now + 7), 7],
    [String(now / 1000 - 7), -7000],
  ])('reads %s as %d ms', (value, ms) => {
    expect(timeLeftMs(value, 'inferred', at)).toBe(ms);
  });

  test.each(['-1', '', 'oops', '1, 2', '12,34', 'NaN', 'Infinity', '1e-5', '2026-09-01', '9'.repeat(400)])(
    'finds no information in %p',
    (value) => {
      expect(timeLeftMs(value, 'inferred', at)).toBeNull();
    },
  );

  test.each([-90_000, 90_000])(
    'measures absolute times against the time of the response, so a clock skew of %d ms changes nothing',
    (skew) => {
      const theirs = new Date(now + skew);
      const skewed = { date: theirs.toUTCString(), now };
      expect(timeLeftMs(new Date(now + skew + 5000).toISOString(), 'inferred', skewed)).toBe(5000);
      expect(timeLeftMs(String((now + skew + 5000) / 1000), 'inferred', skewed)).toBe(5000);
      expect(timeLeftMs('5s', 'inferred', skewed)).toBe(5000);
    },
  );

  test('never throws and never returns anything but a finite number or null, whatever the value', () => {
    const parts = fc.constantFrom(
      '1',
      '-',
      '.',
      ',',
      's',
      'ms',
      'm',
      'h',
      'T',
      'Z',
      ':',
      ' ',
      '2026',
      'GMT',
      'e',
      '9999999999',
    );
    const soup = fc.array(parts, { maxLength: 12 }).map((list) => list.join(''));
    fc.assert(
      fc.property(fc.oneof(fc.string(), soup), fc.oneof(fc.string(), fc.constant(null)), (value, date) => {
        const ms = timeLeftMs(value, 'inferred', { date, now });
        expect(ms === null || Number.isFinite(ms)).toBe(true);
      }),
      { numRuns: 500 },
    );
  });
});
