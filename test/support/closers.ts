/** What a test file has opened: closed after each test, the last one first. */
import { afterEach } from '@jest/globals';

export const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});
