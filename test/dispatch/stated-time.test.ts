/** Times as servers write them: durations, instants, and the two fields that every client knows, `Retry-After` and its milliseconds. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { durationMs, instantMs, retryAfterMs, timeLeftMs } from '../../src/dispatch/stated-time.policy.ts';

const now = Date.UTC(2026, 8, 1, 12);
const day = 86_400_000;

describe('the parser of durations', () => {
  test.each([
    ['0s', 0],
    ['120ms', 120],
    ['58.891s', 58_891],
    ['7m12s', 432_000],
    ['2m59.56s', 179_560],
    ['2.114999999s', 2_114.999999],
    ['850µs', 0.85],
    ['1h0m0s', 3_600_000],
    ['2d', 2 * day],
    ['1.5h', 5_400_000],
    ['1μs', 0.001],
    ['.5s', 500],
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
  ] as const)('reads %s as %d ms', (text, ms) => expect(durationMs(text)).toBe(ms));

  // ISO 8601 has months, which have no length.
  const iso = ['P1M', 'PT', 'P', 'PTS'];
  const go = '|12|-1s|+1s| 1s|1s |1,5s|1s!|s|1x|1sm|1.2.3s|1e3s|NaNs'.split('|');
  test.each([...go, ...iso, '30 parsecs', '1 minute and', '90:00', '1m30'])('refuses %p', (text) => {
    expect(durationMs(text)).toBeNull();
  });
});

describe('the parser of instants', () => {
  test.each([
    'Sun, 06 Nov 1994 08:49:37 GMT',
    'Sunday, 06-Nov-94 08:49:37 GMT',
    'Sun Nov  6 08:49:37 1994',
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
    '1994-11-06T03:49:37-05:00',
    '1994-11-06T10:49:37.000+02:00',
  ])('reads %s, as servers write it', (text) => {
    expect(instantMs(text)).toBe(Date.UTC(1994, 10, 6, 8, 49, 37));
  });

  test.each([
    ['2026-03-26T16:00Z', Date.UTC(2026, 2, 26, 16)],
    ['2026-03-26T16:00+02:00', Date.UTC(2026, 2, 26, 14)],
    ['2026-09-27T07:08:00.250+02:00', Date.UTC(2026, 8, 27, 5, 8, 0, 250)],
  ])('reads %s without seconds or with a part of one', (text, ms) => expect(instantMs(text)).toBe(ms));

  test('agrees with the calendar of the runtime for every instant of four centuries', () => {
    const instants = fc.integer({ min: Date.UTC(1800, 0, 1) / 1_000, max: Date.UTC(2199, 11, 31) / 1_000 });
    fc.assert(
      fc.property(instants, (seconds) => {
        const date = new Date(seconds * 1_000);
        for (const text of [date.toUTCString(), date.toISOString()])
          expect(instantMs(text)).toBe(seconds * 1_000);
      }),
    );
  });

  test.each([
    '2026-13-01T00:00:00Z',
    '2026-01-01T00:00:00',
    '2026-01-01 00:00',
    'Sun, 06 Nov 1994 08:49:37',
    'Sun, 06 Nov 1994 08:49:37 CEST',
    '2026-01-01',
  ])('refuses %s', (text) => expect(instantMs(text)).toBeNull());
});

describe('the parser of stated times', () => {
  const leftMs = (value: string, date: string | null = null) => timeLeftMs(value, 'inferred', { date, now });

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
    [String(now / 1_000 + 7), 7_000],
    [String(now + 7), 7],
    [String(now / 1_000 - 7), -7_000],
  ])('reads %s as %d ms', (value, ms) => expect(leftMs(value)).toBe(ms));

  const none = ['-1', '', 'oops', '1, 2', '12,34', 'NaN', 'Infinity', '1e-5', '2026-09-01', '9'.repeat(400)];
  test.each(none)('finds no information in %p', (value) => expect(leftMs(value)).toBeNull());

  test.each([-90_000, 90_000])(
    'measures instants from that of the response, also with a skew of %d ms',
    (skew) => {
      const date = new Date(now + skew).toUTCString();
      expect(leftMs(new Date(now + skew + 5_000).toISOString(), date)).toBe(5_000);
      expect(leftMs(String((now + skew + 5_000) / 1_000), date)).toBe(5_000);
      expect(leftMs('5s', date)).toBe(5_000);
      const until = new Date(now + skew + 7_000).toUTCString();
      expect(retryAfterMs(new Map(Object.entries({ 'retry-after': until, date })), now)).toBe(7_000);
    },
  );

  test('never throws and never returns anything but a finite number or null, whatever the value', () => {
    const parts = fc.constantFrom(...'1 - . , s ms m h T Z : 2026 GMT e 9999999999'.split(' '), ' ');
    const soup = fc.array(parts, { maxLength: 12 }).map((list) => list.join(''));
    fc.assert(
      fc.property(fc.oneof(fc.string(), soup), fc.oneof(fc.string(), fc.constant(null)), (value, date) => {
        const ms = leftMs(value, date);
        expect(ms === null || Number.isFinite(ms)).toBe(true);
      }),
      { numRuns: 500 },
    );
  });
});

describe('Retry-After', () => {
  const waitOf = (fields: Record<string, string>) => retryAfterMs(new Map(Object.entries(fields)), now);
  const noTime = (text: string): [string, null] => [text, null];
  test.each<[string, number | null]>([
    ['2', 2_000],
    ['2.0', 2_000],
    ['3600', 3_600_000],
    ['0.0004', 1],
    ['2.3', 2_300],
    ['2, 5', 5_000],
    ['5,2.0', 5_000],
    ['soon, 2', 2_000],
    ['Tue, 01 Sep 2026 12:00:30 GMT', 30_000],
    ['1, Tue, 01 Sep 2026 12:00:30 GMT', 30_000],
    ['2026-09-01T12:00:10Z', 10_000],
    ['2026-09-01', null],
    ['999999', day],
    ['9'.repeat(20), day],
    ['5, 9999999999999, 999999', 5_000],
    ...['', ' ', ',', 'Infinity', 'NaN', '9'.repeat(400), '0x10', '+-1', '1 2', '0', '-1', 'soon'].map(
      noTime,
    ),
    ...['1788220800', 'Wed, 21 Oct 2015 07:28:00 GMT'].map(noTime),
  ])('is never undercut, and a day at most: %p is %p ms', (text, ms) => {
    expect(waitOf({ 'retry-after': text })).toBe(ms);
  });

  test.each<[Record<string, string>, number | null]>([
    [{ 'retry-after-ms': '534', 'retry-after': '1' }, 534],
    [{ 'retry-after-ms': '10.2' }, 11],
    [{ 'retry-after-ms': '0', 'retry-after': '1' }, 1_000],
    [{ 'retry-after-ms': '-5', 'retry-after': '1' }, 1_000],
    [{ 'retry-after-ms': 'x', 'retry-after': '1' }, 1_000],
    [{ 'retry-after-ms': '', 'retry-after': '1' }, 1_000],
    [{ 'retry-after': String(now / 1_000), date: new Date(now - 45_000).toUTCString() }, 45_000],
    [{}, null],
  ])('yields to its milliseconds, and may be an instant by mistake: %j is %p ms', (fields, ms) => {
    expect(waitOf(fields)).toBe(ms);
  });

  test('is null or a whole number from 1 ms to a day, and covers every plain number of seconds', () => {
    fc.assert(
      fc.property(fc.string(), fc.string(), (value, ms) => {
        const waitMs = waitOf({ 'retry-after': value, 'retry-after-ms': ms });
        expect(waitMs === null || (Number.isInteger(waitMs) && waitMs >= 1 && waitMs <= day)).toBe(true);
      }),
    );
    fc.assert(
      fc.property(fc.double({ min: 0.001, max: 86_400, noNaN: true }), (seconds) => {
        const text = seconds.toFixed(6);
        expect(waitOf({ 'retry-after': text })).toBeGreaterThanOrEqual(Number(text) * 1_000 - 1e-6);
      }),
    );
  });
});
