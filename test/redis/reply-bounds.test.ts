import { describe, expect, test } from '@jest/globals';
import { isSlots, ReplyBounds } from '../../src/redis/reply-bounds.policy.ts';

/** Whether the guard accepts bytes, whatever the size of the chunks in which they come. */
function isAccepted(text: string): boolean {
  const bytes = Buffer.from(text, 'latin1');
  const verdicts = [1, 2, 3, 7, bytes.length].map((size) => {
    const bounds = new ReplyBounds();
    try {
      for (let at = 0; at < bytes.length; at += size) bounds.read(bytes.subarray(at, at + size));
      return true;
    } catch (failure) {
      expect(failure).toBeInstanceOf(RangeError);
      return false;
    }
  });
  expect(new Set(verdicts).size).toBe(1);
  return verdicts[0] === true;
}

describe('the guard of Redis replies', () => {
  test.each([
    '+OK\r\n-ERR no\r\n:-12\r\n,1.5\r\n,inf\r\n#t\r\n_\r\n(123456789012345678901234567890\r\n',
    '$0\r\n\r\n$5\r\n*9\r\n!\r\n=7\r\ntxt:abc\r\n!5\r\nERR x\r\n',
    '$-1\r\n*-1\r\n*0\r\n%0\r\n',
    '*2\r\n%1\r\n+a\r\n*1\r\n:1\r\n~1\r\n_\r\n>2\r\n+message\r\n$2\r\n\r\n\r\n',
    `*600000\r\n${':1\r\n'.repeat(600_000)}*600000\r\n`,
  ])('accepts well-formed replies: sample %#', (text) => {
    expect(isAccepted(text)).toBe(true);
  });

  test.each([
    'HTTP/1.1 400\r\n',
    '+OK\rX',
    '*?\r\n',
    '*\r\n',
    '$-2\r\n',
    '$-01\r\n',
    '~-1\r\n',
    '=3\r\ntxt\r\n',
    '#true\r\n',
    '_x\r\n',
    '*1000001\r\n',
    '*999999\r\n*999999\r\n',
    '%500001\r\n',
    '$67108865\r\n',
    '*9999999999999\r\n',
  ])('refuses bytes that no decoder should read: %j', (text) => {
    expect(isAccepted(text)).toBe(false);
  });

  test('refuses one reply of more than 64 MiB, and accepts many smaller ones', () => {
    const part = Buffer.from(`$1048576\r\n${'x'.repeat(1_048_576)}\r\n`);
    const many = new ReplyBounds();
    for (let count = 0; count < 70; count += 1) many.read(part);
    const one = new ReplyBounds();
    one.read(Buffer.from('*70\r\n'));
    expect(() => {
      for (let count = 0; count < 70; count += 1) one.read(part);
    }).toThrow(RangeError);
    const endless = new ReplyBounds();
    endless.read(Buffer.from('+'));
    expect(() => {
      for (let count = 0; count < 70; count += 1) endless.read(Buffer.alloc(1_048_576, 'x'));
    }).toThrow(RangeError);
  });
});

test.each([
  [true, []],
  [true, [[0, 16_383, ['127.0.0.1', 6379, 'id'], [null, 6380]]]],
  [false, null],
  [false, 1],
  [false, [null]],
  [false, [[0]]],
  [false, [[0, 16_384]]],
  [false, [[0, '5']]],
  [false, [[0, 5, null]]],
  [false, [[0, 5, [7, 6379]]]],
  [false, [[0, 5, ['127.0.0.1', 65_536]]]],
])('the guard of Redis Cluster slots returns %j for %j', (verdict, reply) => {
  expect(isSlots(reply)).toBe(verdict);
});
