import { describe, expect, test } from '@jest/globals';
import { ResponseTimes } from '../../src/journey/response-times.ts';
import {
  type ClientTimeouts,
  maxWaitMsOf,
  preferredWaitSeconds,
  urgencyOf,
} from '../../src/journey/preferences.policy.ts';

describe('the preferred wait', () => {
  test.each([
    [undefined, null],
    ['wait=10', 10],
    ['respond-async, wait=10', 10],
    ['respond-async; wait = "7"', 7],
    ['wait=-1', null],
    ['wait=1.5', null],
    ['wait=99999999', null],
    ['wait', null],
    ['nowait=3', null],
  ])('is read from Prefer: %s as %s s', (field, seconds) =>
    expect(preferredWaitSeconds(field)).toBe(seconds),
  );
});

describe('the wait of a call', () => {
  const limits = { maxWaitSeconds: 75, maxWaitCeilingSeconds: 600 };
  const unknown: ClientTimeouts = { statedSeconds: null, knownSeconds: null };
  const stated = (statedSeconds: number): ClientTimeouts => ({ ...unknown, statedSeconds });
  const known = (knownSeconds: number): ClientTimeouts => ({ ...unknown, knownSeconds });

  test.each([
    ['nothing, of an unknown client', null, unknown, 75_000],
    ['less than the default', 10, unknown, 10_000],
    ['no wait at all', 0, unknown, 0],
    ['more than the ceiling', 9_999, unknown, 600_000],
    ['nothing, of a client that states 30 s', null, stated(30), 25_000],
    ['nothing, of a client that states more than the default and its margin', null, stated(81), 75_000],
    ['nothing, of a client that states just less than that', null, stated(79), 74_000],
    ['nothing, of a client that states as little as the margin', null, stated(6), 2_000],
    ['nothing, of a client that states 3 s', null, stated(3), 1_000],
    ['nothing, of a client that states less than a second', null, stated(0), 0],
    ['less than a client states', 10, stated(600), 10_000],
    ['more than a client states', 90, stated(60), 55_000],
    ['nothing, of a client known for 60 s', null, known(60), 55_000],
    ['more than its client is known for', 90, known(60), 90_000],
    [
      'nothing, of a client that states more than it is known for',
      null,
      { statedSeconds: 70, knownSeconds: 60 },
      55_000,
    ],
    [
      'nothing, of a client that states less than it is known for',
      null,
      { statedSeconds: 20, knownSeconds: 60 },
      15_000,
    ],
  ])('that asks for %s', (_, preferSeconds, client, ms) => {
    expect(maxWaitMsOf({ preferSeconds, client, elapsedMs: 0 }, limits)).toBe(ms);
  });

  test.each([
    ['a stated time-out', null, stated(30), 5_000],
    ['a known time-out', null, known(30), 5_000],
    ['no preference, which begins with the wait', 60, unknown, 60_000],
  ])('is shortened by the time since its head arrived for %s', (_, preferSeconds, client, ms) => {
    expect(maxWaitMsOf({ preferSeconds, client, elapsedMs: 20_000 }, limits)).toBe(ms);
  });

  test('is not negative for a client that has timed out by now', () => {
    expect(maxWaitMsOf({ preferSeconds: null, client: stated(30), elapsedMs: 40_000 }, limits)).toBe(0);
  });

  test('ends before every time-out, by 5 s or two thirds of it', () => {
    for (let seconds = 1; seconds <= 600; seconds += 1) {
      const waitMs = maxWaitMsOf({ preferSeconds: 600, client: stated(seconds), elapsedMs: 0 }, limits);
      expect(seconds * 1000 - waitMs).toBeGreaterThanOrEqual(Math.min(5_000, (seconds * 2000) / 3) - 1e-6);
    }
  });
});

test.each([
  ['short of what is kept anyhow', 60, 2_000, 55_000],
  ['longer', 60, 20_000, 39_000],
  ['longer than a short time-out leaves', 2, 1_500, 300],
  ['longer than the time-out', 10, 12_000, 0],
])(
  'the wait of a call leaves the upstream its usual time for the response: %s',
  (_, seconds, usualResponseMs, ms) => {
    const limits = { maxWaitSeconds: 75, maxWaitCeilingSeconds: 600 };
    const client = { statedSeconds: seconds, knownSeconds: null };
    const asked = { preferSeconds: null, client, elapsedMs: 0, usualResponseMs };
    expect(maxWaitMsOf(asked, limits)).toBe(ms);
  },
);

test('the usual time of an upstream follows its responses, and is that of most of them', () => {
  const times = new ResponseTimes();
  expect(times.usualMs('b')).toBe(0);
  for (let at = 0; at < 100; at += 1) times.note('b', at, at + 1_000 + (at % 3) * 100);
  expect(times.usualMs('b')).toBeGreaterThan(1_150);
  expect(times.usualMs('b')).toBeLessThan(1_500);
  for (let at = 0; at < 40; at += 1) times.note('b', at, at + 5_000);
  expect(times.usualMs('b')).toBeGreaterThan(4_900);
});

describe('the urgency of a call', () => {
  test.each([
    [undefined, 3],
    ['u=0', 0],
    ['i, u=7', 7],
    ['u=5;x', 5],
    ['u=8', 3],
    ['u=-1', 3],
    ['u=12', 3],
    ['su=1', 3],
    ['', 3],
  ])('is read from Priority: %s as %d', (field, urgency) => expect(urgencyOf(field)).toBe(urgency));
});
