import { describe, expect, test } from '@jest/globals';
import { edgeOf, preferredWaitSeconds, urgencyOf, waitOf } from '../../src/admission/shed.policy.ts';

describe('the edge of a ceiling', () => {
  test.each([
    [1, 16],
    [160, 16],
    [500, 50],
    [501, 51],
  ])('of %d begins at %d places', (limit, edge) => expect(edgeOf(limit)).toBe(edge));
});

describe('Prefer: wait', () => {
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
  ])('%s asks for %s', (field, seconds) => expect(preferredWaitSeconds(field)).toBe(seconds));
});

describe('the wait of a call', () => {
  const limits = { maxWaitSeconds: 45, maxWaitCeilingSeconds: 600 };
  test.each([
    [null, null, 45_000],
    [10, null, 10_000],
    [0, null, 0],
    [9_999, null, 600_000],
    [null, 30, 25_000],
    [null, 3, 1_000],
    [10, 600, 10_000],
  ])('asked %s with a client that waits %s s is %d ms', (preferSeconds, clientTimeoutSeconds, ms) => {
    expect(waitOf({ preferSeconds, clientTimeoutSeconds }, limits)).toBe(ms);
  });
});

describe('Priority', () => {
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
  ])('%s is urgency %d', (field, urgency) => expect(urgencyOf(field)).toBe(urgency));
});
