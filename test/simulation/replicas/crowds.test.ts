/** Crowds of one workspace over three replicas: a burst whose Redis is far away, and one that a ceiling lets go just when the upstream is closed. */
import { expect, test } from '@jest/globals';
import { plainBucket } from '../plan-buckets.ts';
import { plainCall } from '../plan-special.ts';
import type { BucketPlan, Plan } from '../plan.ts';
import { faultyPlanOf, quiet } from './plan.ts';
import { run } from './simulate.ts';

interface Crowd {
  /** Mean way to Redis, and back; each takes half to one and a half times as long. Milliseconds. */
  readonly wayMs: number;
  readonly calls: number;
  readonly everyMs: number;
  readonly maxWaitMs: number;
  readonly perMinute: number;
  readonly limit: number;
  readonly bucket?: Partial<BucketPlan>;
}

const firstAt = 2_500;
const lane = { key: 'w0-b0', workspace: 'w0', bucket: 'b0', weight: 1, maxInFlight: null };

/** The calls go to the replicas in turn. Seeds differ in what clocks show and in how long ways take. */
function crowdPlan(
  seed: number,
  { wayMs, calls, everyMs, maxWaitMs, perMinute, limit, bucket }: Crowd,
): Plan {
  return {
    ...faultyPlanOf(seed),
    replicas: 3,
    uptimesMs: [0, 86_400_000, 3_600_000],
    leaseMs: 15_000,
    network: { ...quiet, meanMs: wayMs, commandTimeoutMs: 1_000 },
    faults: [],
    reloads: [],
    frozenWrites: 0,
    buckets: [{ ...plainBucket('b0', { limit, windowMs: 60_000 }), reports: 'rounded', ...bucket }],
    lanes: [lane],
    workspaces: [{ name: 'w0', perMinute, perDay: null, maxQueued: 10_000, revokedAt: Infinity }],
    calls: Array.from({ length: calls }, (_, index) => ({
      ...plainCall(index, lane),
      id: `c${String(index).padStart(3, '0')}`,
      at: firstAt + index * everyMs,
      slot: index % 3,
      maxWaitMs,
      serviceMs: 20,
      safe: false,
    })),
  };
}

async function playedBy(plan: Plan) {
  const { violations, calls } = await run(plan);
  expect(violations).toEqual([]);
  return { calls, sentAt: calls.flatMap(({ sentAt }) => sentAt).toSorted((a, b) => a - b) };
}

// Another seed is another order of replies; what is right for one of them may have been luck.
test.each([
  [20, 7],
  [80, 1],
  [80, 2],
  [80, 7],
])(
  'a burst over three replicas whose Redis is %s ms away leaves in order and at the rate of the upstream (seed %s)',
  async (roundTripMs, seed) => {
    const [count, limit] = [800, 600];
    const of = { calls: count, everyMs: 2.5, maxWaitMs: 75_000, perMinute: 100_000, limit };
    const { calls, sentAt } = await playedBy(crowdPlan(seed, { ...of, wayMs: roundTripMs / 2 }));
    expect(calls.map((call) => call.sentAt.length)).toEqual(Array(count).fill(1));
    // The last call finds room when all that the bucket does not hold has drained, ten a second.
    const optimumMs = (count - limit) * 100;
    expect(((sentAt.at(-1) ?? NaN) - (sentAt[0] ?? NaN)) / optimumMs).toBeLessThanOrEqual(1.02);
    // The first 600 calls go as they come: one round trip to the log, one to the ceiling. The first of each replica join the log before.
    const delays = calls.slice(0, limit).map((call) => (call.sentAt[0] ?? NaN) - call.plan.at);
    expect(Math.max(...delays)).toBeLessThanOrEqual(15 * roundTripMs);
    expect(Math.max(...delays.slice(limit / 2))).toBeLessThanOrEqual(10 * roundTripMs);
  },
);

// A call that the upstream refuses has used a slot that others wait for.
test.each([
  [2, 0.5],
  [3, 2],
])(
  'at most two calls meet a closed upstream and no call is refused (seed %s, %s ms to Redis)',
  async (seed, wayMs) => {
    const closed = [firstAt + 58_000, firstAt + 70_000] as const;
    const bucket = { calm: false, isReliable: false, reports: 'exact', closed } as const;
    const of = { calls: 358, everyMs: 0, maxWaitMs: 150_000, perMinute: 120, limit: 6_000, bucket };
    const { calls, sentAt } = await playedBy(crowdPlan(seed, { ...of, wayMs }));
    const metClosed = sentAt.filter((at) => at >= closed[0] && at < closed[1]);
    expect(calls.filter(({ sends }) => sends === 0).map(({ plan }) => plan.id)).toEqual([]);
    expect(metClosed.length).toBeLessThanOrEqual(2);
    expect(sentAt).toHaveLength(of.calls + metClosed.length);
    // 120 calls leave at first, those with a slot when the upstream opens leave at its 100 a second, the rest a minute later.
    expect((sentAt.at(-1) ?? NaN) - firstAt).toBeLessThanOrEqual(132_000);
  },
);
