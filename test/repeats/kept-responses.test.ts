import { expect, test } from '@jest/globals';
import { KeptResponses } from '../../src/repeats/kept-responses.ts';
import type { Remembered, RepeatKey } from '../../src/repeats/repeat.ts';
import { manualClock } from '../support/manual-clock.ts';

const kibibyte = 1024;
const keyOf = (name: string, owner: string): RepeatKey => ({
  marker: 'key',
  name,
  fingerprint: 'f',
  owner,
  upstream: 'api',
  secret: { workspaceId: owner, key: name },
});
const of = (bytes: number): Remembered => ({
  fingerprint: 'f',
  response: { status: 200, fields: [], body: Buffer.alloc(bytes), shouldRetry: null },
});

function store(maxWorkspaceBytes: number, maxTotalBytes: number) {
  const clock = manualClock();
  const settings = { keepSeconds: 600, maxBytes: kibibyte, maxWorkspaceBytes, maxTotalBytes };
  const kept = new KeptResponses(clock, () => settings);
  const put = (name: string, owner: string, bytes = kibibyte): void =>
    kept.put(keyOf(name, owner), of(bytes), 1_000);
  const has = (...names: string[]): boolean[] => names.map((name) => kept.find(name) !== null);
  return { clock, kept, put, has };
}

test('responses of a workspace stay within its bytes, and its oldest go first', () => {
  const { put, has } = store(4 * kibibyte, 100 * kibibyte);
  put('a1', 'a');
  put('b1', 'b');
  put('a2', 'a');
  put('a3', 'a');
  expect(has('a1', 'a2', 'a3', 'b1')).toEqual([false, true, true, true]);
});

test('responses of all workspaces stay within the bytes of all, and the oldest go first', () => {
  const { put, has, kept } = store(100 * kibibyte, 5 * kibibyte);
  for (const [at, owner] of ['a', 'b', 'c', 'd', 'e'].entries()) put(`${at}`, owner);
  expect(has('0', '1', '2', '3', '4')).toEqual([false, false, true, true, true]);
  const bytes = [...kept.entries()].map((entry) => entry.bytes);
  expect(bytes.reduce((sum, one) => sum + one, 0)).toBeLessThanOrEqual(5 * kibibyte);
  put('large', 'f', 50 * kibibyte);
  expect(has('large', '2')).toEqual([false, true]);
});

test('a workspace that is over its bytes makes room itself, not the others', () => {
  const { put, has } = store(3 * kibibyte, 5 * kibibyte);
  for (const name of ['b1', 'a1', 'a2', 'a3']) put(name, name.slice(0, 1));
  expect(has('b1', 'a1', 'a2', 'a3')).toEqual([true, false, true, true]);
});

test('a response is dropped when its time is over, also when no repeat asks for it', () => {
  const { clock, put, has, kept } = store(100 * kibibyte, 100 * kibibyte);
  put('a', 'a');
  clock.advance(999);
  expect(has('a')).toEqual([true]);
  clock.advance(1);
  expect(has('a')).toEqual([false]);
  put('b', 'a');
  clock.advance(2_000);
  expect([...kept.entries()]).toEqual([]);
});
