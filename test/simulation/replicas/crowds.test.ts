/** Crowds over three replicas: a burst whose Redis is far away, and clients that keep no connection and come back. */
import { describe, expect, test } from '@jest/globals';
import { Chance } from '../chance.ts';
import { plainBucket } from '../plan-buckets.ts';
import { plainCall, workspaceOf } from '../plan-special.ts';
import type { CallPlan, LanePlan, Plan } from '../plan.ts';
import { faultyPlanOf, quiet } from './plan.ts';
import { run } from './simulate.ts';

interface Crowd {
  /** Mean way to Redis, and back; each takes half to one and a half times as long. Milliseconds. */
  readonly wayMs: number;
  readonly calls: number;
  readonly everyMs: number;
  readonly maxWaitMs: number;
  readonly perMinute: number | null;
  readonly limit: number;
}

const firstAt = 2_500;
const laneOf = (workspace: string) =>
  ({ key: `${workspace}-b0`, workspace, bucket: 'b0', weight: 1, maxInFlight: null }) as const;
const lane = laneOf('w0');
const other = laneOf('w1');

/** The calls go to the replicas in turn. Seeds differ in what clocks show and in how long ways take. */
function crowdPlan(seed: number, { wayMs, calls, everyMs, maxWaitMs, perMinute, limit }: Crowd): Plan {
  return {
    ...faultyPlanOf(seed),
    replicas: 3,
    uptimesMs: [0, 86_400_000, 3_600_000],
    leaseMs: 15_000,
    network: { ...quiet, meanMs: wayMs, commandTimeoutMs: 1_000 },
    faults: [],
    reloads: [],
    frozenWrites: 0,
    buckets: [{ ...plainBucket('b0', { limit, windowMs: 60_000 }), reports: 'rounded' }],
    lanes: [lane, other],
    workspaces: [{ ...workspaceOf('w0'), perMinute }, workspaceOf('w1')],
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
  const { violations, calls, refused } = await run(plan);
  expect(violations).toEqual([]);
  return { calls, refused, sentAt: calls.flatMap(({ sentAt }) => sentAt).toSorted((a, b) => a - b) };
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

describe('160 calls at 120 a minute that are refused, and come back when they are told', () => {
  const [limit, clients] = [120, 160];

  /** `lost`: this share never comes back. `crowd`: 100 more calls wait in this lane. */
  async function returned(ceiling: number | null, lost = 0, crowd: LanePlan | null = null) {
    const chance = new Chance(1);
    const of = { wayMs: 0.5, calls: limit + clients, everyMs: 2, maxWaitMs: 500, perMinute: ceiling, limit };
    const plan = crowdPlan(1, of);
    const calls = plan.calls.map((call, n): CallPlan => {
      // Whatever the bucket has at first is used up.
      if (n < limit) return { ...call, lane: other };
      const lateMs = chance.happens(lost) ? null : chance.between(-200, 200);
      return { ...call, reserves: { lateMs, isTwice: false, maxReserved: 1_000 } };
    });
    const patient = Array.from({ length: crowd === null ? 0 : 100 }, (_, n): CallPlan => ({
      ...plainCall(n, crowd ?? lane),
      id: `p${n}`,
      at: firstAt + 2_000 + n,
      slot: n % 3,
      maxWaitMs: 300_000,
    }));
    const { calls: all, refused, sentAt } = await playedBy({ ...plan, calls: [...calls, ...patient] });
    // A few could leave within the wait that they had.
    const expected = all.filter(
      ({ plan: { id, reserves }, sends }) =>
        typeof reserves?.lateMs === 'number' && !id.includes('.') && sends === 0,
    ).length;
    const back = all.filter(({ plan: { id }, sends }) => id.includes('.') && sends > 0);
    const cameAs = ({ plan: { id } }: (typeof all)[number]): number => Number(id.slice(1, 4));
    const inOrder = back.toSorted((a, b) => cameAs(a) - cameAs(b)).flatMap((call) => call.sentAt);
    const refusedAgain = refused.filter(({ id }) => id.includes('.')).length;
    return { expected, inOrder, refusedAgain, sentAt: sentAt.map((at) => at - firstAt) };
  }

  test.each([
    ['the bucket', null],
    ['the ceiling as well', limit],
  ])('are sent then, in order, in the time that %s demands', async (_, ceiling) => {
    const { expected, inOrder, refusedAgain, sentAt } = await returned(ceiling);
    expect(refusedAgain).toBe(0);
    expect(inOrder).toHaveLength(expected);
    expect(inOrder.toSorted((a, b) => a - b)).toEqual(inOrder);
    expect(sentAt.at(-1)).toBeLessThanOrEqual(clients * (60_000 / limit) * 1.02);
  });

  test.each([
    ['their workspace', lane],
    ['another workspace', other],
  ])('leave the rest to calls of %s where 30 %% never do', async (_, crowd) => {
    const { expected, inOrder, refusedAgain, sentAt } = await returned(null, 0.3, crowd);
    const used = sentAt.filter((at) => at > 20_000 && at <= 80_000).length;
    expect(used / limit).toBeGreaterThanOrEqual(0.95);
    expect(inOrder).toHaveLength(expected);
    expect(refusedAgain).toBe(0);
  });
});
