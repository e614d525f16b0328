/**
 * A ceiling frees the slots of a whole burst at once, and just then the upstream is closed: 358 calls at once on a ceiling
 * of 120 a minute over three replicas, on virtual time. A call that the upstream refuses has used a slot that others wait for.
 */
import { expect, test } from '@jest/globals';
import { crowdPlan } from './crowd-plan.ts';
import { run } from './simulate.ts';

const calls = 358;
const perMinute = 120;
const firstAt = 2_500;
const closedFrom = firstAt + 58_000;
const closedUntil = firstAt + 70_000;

const closing = (seed: number, wayMs: number) =>
  crowdPlan(seed, {
    wayMs,
    calls,
    firstAt,
    everyMs: 0,
    maxWaitMs: 150_000,
    perMinute,
    limit: 6_000,
    bucket: { calm: false, isReliable: false, reports: 'exact', closed: [closedFrom, closedUntil] },
  });

test.each([
  [2, 0.5],
  [3, 2],
])(
  'at most two calls meet a closed upstream and no call is refused (seed %s, %s ms to Redis)',
  async (seed, wayMs) => {
    const { violations, calls: seen } = await run(closing(seed, wayMs));
    expect(violations).toEqual([]);
    const sent = seen.flatMap(({ sentAt }) => sentAt).toSorted((a, b) => a - b);
    const metClosed = sent.filter((at) => at >= closedFrom && at < closedUntil);
    expect(seen.filter(({ sends }) => sends === 0).map(({ plan }) => plan.id)).toEqual([]);
    expect(metClosed.length).toBeLessThanOrEqual(2);
    expect(sent).toHaveLength(calls + metClosed.length);
    // 120 calls leave at first, those with a slot when the upstream opens leave at its 100 a second, the rest a minute later.
    const lastMs = (sent.at(-1) ?? NaN) - firstAt;
    expect(lastMs).toBeLessThanOrEqual(132_000);
  },
);
