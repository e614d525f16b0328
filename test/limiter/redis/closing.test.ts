/** What a replica knows of a closed bucket, by replies that may be late. */
import { describe, expect, test } from '@jest/globals';
import { Closing } from '../../../src/limiter/redis/closing.ts';

describe('a bucket that an operator has opened', () => {
  const opened = (): Closing => {
    const closing = new Closing();
    closing.note(60_000, { sentAt: 0, now: 10 });
    closing.reopen(100);
    return closing;
  };

  test('is not held as closed for a reply that was under way when it was opened', () => {
    const closing = opened();
    closing.note(59_900, { sentAt: 90, now: 110 });
    expect(closing.forgets(0, 120)).toBe(false);
    closing.note(0, { sentAt: 100, now: 120 });
    expect(closing.isAt(121)).toBe(false);
  });

  test('and that closes again is: a reply that no longer knows of that shows a lost write', () => {
    const closing = opened();
    closing.note(30_000, { sentAt: 200, now: 210 });
    expect(closing.forgets(0, 220)).toBe(true);
  });
});
