/**
 * A log alone, under everything that befalls Redis, the way to it and replicas: each replica appends numbers, the state is the list
 * of what was appended, and what the list lacks after joining is appended again.
 */
import { describe, expect, test } from '@jest/globals';
import { livedLog } from './log-history.ts';

describe('a log that several replicas follow', () => {
  test('is the same for all at the same entry, and has everything of the living once', async () => {
    for (let seed = 1; seed <= 120; seed += 1) expect(await livedLog(seed)).toEqual([]);
  });
});
