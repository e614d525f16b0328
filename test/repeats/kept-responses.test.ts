import { expect, test } from '@jest/globals';
import { KeptBody, KeptResponses } from '../../src/repeats/kept-responses.ts';
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
  response: { status: 200, rawFields: [], body: Buffer.alloc(bytes), shouldRetry: null },
});

function store(maxWorkspaceBytes: number, maxTotalBytes: number) {
  const clock = manualClock();
  const settings = { keepSeconds: 600, maxBytes: kibibyte, maxWorkspaceBytes, maxTotalBytes };
  const dropped: string[] = [];
  const kept = new KeptResponses(
    clock,
    () => settings,
    ({ name }) => void dropped.push(name),
  );
  const put = (name: string, owner: string, bytes = kibibyte): boolean =>
    kept.put(keyOf(name, owner), of(bytes), 1_000);
  const has = (...names: string[]): boolean[] => names.map((name) => kept.find(name) !== null);
  return { clock, kept, put, has, dropped };
}

test('responses of a workspace stay within its bytes, and its oldest go first, which is told', () => {
  const { put, has, dropped } = store(4 * kibibyte, 100 * kibibyte);
  put('a1', 'a');
  put('b1', 'b');
  put('a2', 'a');
  put('a3', 'a');
  expect(has('a1', 'a2', 'a3', 'b1')).toEqual([false, true, true, true]);
  expect(dropped).toEqual(['a1']);
});

test('responses of all workspaces stay within the bytes of all, and the oldest go first', () => {
  const { put, has, kept } = store(100 * kibibyte, 7 * kibibyte);
  for (const [at, owner] of ['a', 'b', 'c', 'd', 'e'].entries()) put(`${at}`, owner);
  expect(has('0', '1', '2', '3', '4')).toEqual([false, false, true, true, true]);
  expect(kept.bytes).toBeLessThanOrEqual(7 * kibibyte);
  expect(put('large', 'f', 50 * kibibyte)).toBe(false);
  expect(has('large', '2')).toEqual([false, true]);
});

test('a workspace that is over its bytes makes room itself, not the others', () => {
  const { put, has } = store(4 * kibibyte, 7 * kibibyte);
  for (const name of ['b1', 'a1', 'a2', 'a3']) put(name, name.slice(0, 1));
  expect(has('b1', 'a1', 'a2', 'a3')).toEqual([true, false, true, true]);
});

test('responses under way take their room before they are kept, and kept ones make room only for one with a key', () => {
  const { kept, put, has } = store(4 * kibibyte, 8 * kibibyte);
  put('a1', 'a');
  const before = kept.bytes;
  const unnamed = kept.roomFor({ ...keyOf('a2', 'a'), marker: 'first' });
  expect(unnamed.take(3 * kibibyte)).toBe(false);
  expect([kept.bytes, ...has('a1')]).toEqual([before, true]);
  const named = kept.roomFor(keyOf('a3', 'a'));
  expect(named.take(3 * kibibyte)).toBe(true);
  expect([kept.bytes, ...has('a1')]).toEqual([3 * kibibyte, false]);
  expect(named.take(2 * kibibyte)).toBe(false);
  named.give(3 * kibibyte);
  expect(kept.bytes).toBe(0);
});

test('a body that passes takes room for all of its memory, and gives it back when it is too large', () => {
  let taken = 0;
  const room = {
    take: (bytes: number) => ((taken += bytes), true),
    give: (bytes: number) => void (taken -= bytes),
  };
  const body = new KeptBody(8 * kibibyte, room);
  const written: Buffer[] = [];
  for (let at = 0; at < 400; at += 1) {
    const chunk = Buffer.from(`chunk ${at};`);
    written.push(chunk);
    body.append(chunk);
    expect(body.whole?.equals(Buffer.concat(written))).toBe(true);
    expect(body.whole?.buffer.byteLength).toBe(taken);
  }
  body.append(Buffer.alloc(8 * kibibyte));
  expect([body.whole, taken]).toEqual([null, 0]);
  body.append(Buffer.from('more'));
  expect([body.whole, taken]).toEqual([null, 0]);
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
  expect(kept.bytes).toBe(0);
});
