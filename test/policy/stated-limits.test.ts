/** What becomes of a bucket's meters when configuration is loaded again with other limits. */
import { describe, expect, test } from '@jest/globals';
import type { MeterSetting } from '../../src/limiter/limiter.ts';
import { admit, createBucket } from '../../src/limiter/policy/scheduler.policy.ts';
import { origins } from './metering.ts';
import { admission } from '../support/admission.ts';
import { replica } from './scheduling.ts';

const dayMs = 86_400_000;

describe.each(origins)('a bucket on a clock that begins at %d', (from) => {
  /** Whether calls that wait for nothing are let in, one after the other, each with the meters stated at its time. */
  const letIn = (
    settings: readonly (readonly MeterSetting[])[],
    costs = { requests: 1, requests_day: 1 },
  ) => {
    const bucket = createBucket(0, from);
    return settings.map((meters, at) => {
      const call = admission(`t${at}`, { costs, maxWaitMs: 0 });
      const setting = { ...call.setting, meters };
      return admit(bucket, { ...call, setting }, replica, from + at).kind === 'granted';
    });
  };
  const day = (limit: number): MeterSetting => ({ meter: 'requests_day', limit, windowMs: dayMs });

  test('goes on at once when the quota of its day is stated no more', () => {
    expect(letIn([[day(2)], [day(2)], [day(2)], [], []])).toEqual([true, true, false, true, true]);
  });

  test('goes on at once when the quota of its day is raised, with what was used of it', () => {
    const settings = [[day(2)], [day(2)], [day(2)], [day(3)], [day(3)]];
    expect(letIn(settings)).toEqual([true, true, false, true, false]);
  });

  test('holds at once when a limit is added or lowered', () => {
    const lowered = [[day(5)], [day(5)], [day(2)], [day(5)]];
    expect(letIn(lowered)).toEqual([true, true, false, true]);
    const added = [[], [], [day(1)]];
    expect(letIn(added)).toEqual([true, true, false]);
  });
});
