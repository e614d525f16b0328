/**
 * A burst over three replicas whose Redis is far away, on virtual time: 800 calls in 2 s on an upstream that lets 600
 * through at once and ten a second after that. Judged by when the calls were sent.
 */
import { expect, test } from '@jest/globals';
import { replicasPlanOf, type ReplicasPlan } from './plan.ts';
import { run } from './simulate.ts';

const calls = 800;
const everyMs = 2.5;
const startMs = 2_500;
const limit = 600;
const perMs = limit / 60_000;
/** The last call finds room when all that the bucket does not hold has drained. */
const optimumMs = (calls - limit) / perMs;

/** `roundTripMs`: mean time to Redis and back; each way takes half to one and a half times its share. */
function burst(seed: number, roundTripMs: number): ReplicasPlan {
  const any = replicasPlanOf(seed);
  return {
    ...any,
    replicas: 3,
    uptimesMs: [0, 86_400_000, 3_600_000],
    leaseMs: 15_000,
    network: {
      meanMs: roundTripMs / 2,
      commandTimeoutMs: 1_000,
      lostRequests: 0,
      lostReplies: 0,
      late: 0,
      repeated: 0,
      lostMessages: 0,
      disorder: false,
    },
    faults: [],
    reloads: [],
    frozenWrites: 0,
    buckets: [
      {
        key: 'b0',
        calm: true,
        isReliable: true,
        isFixed: false,
        documents: [],
        requests: { limit, windowMs: 60_000 },
        tokens: null,
        perDay: null,
        cost: null,
        statedShare: 1,
        learn: true,
        probe: 0,
        tells: 'rounded',
        outsideShare: 0,
        outsideGulp: 1,
        startShare: 0,
        changes: [],
        hints: true,
      },
    ],
    lanes: [{ key: 'w0-b0', workspace: 'w0', bucket: 'b0', weight: 1, maxInFlight: null }],
    workspaces: [{ name: 'w0', perMinute: 100_000, perDay: null, maxQueued: 10_000, revokedAt: Infinity }],
    calls: Array.from({ length: calls }, (_, index) => ({
      id: `c${String(index).padStart(3, '0')}`,
      at: startMs + index * everyMs,
      slot: index % 3,
      lane: { key: 'w0-b0', workspace: 'w0', bucket: 'b0', weight: 1, maxInFlight: null },
      callClass: 'default',
      document: null,
      isLetIn: false,
      costs: { requests: 1 },
      chargedShare: 1,
      urgency: 3,
      maxWaitMs: 75_000,
      leavesAt: Infinity,
      serviceMs: 20,
      bodyMs: 0,
      fate: 'answered',
      safe: false,
    })),
  };
}

/** In ascending order. */
const sorted = (values: readonly number[]): number[] => values.toSorted((a, b) => a - b);

test.each([20, 80])(
  'a burst over three replicas whose Redis is %s ms away takes what the upstream lets through, in order',
  async (roundTripMs) => {
    const { violations, calls: seen } = await run(burst(7, roundTripMs));
    expect(violations).toEqual([]);
    expect(seen.map(({ sentAt }) => sentAt.length)).toEqual(seen.map(() => 1));
    const times = sorted(seen.flatMap(({ sentAt }) => sentAt));
    const tookMs = (times.at(-1) ?? NaN) - (times[0] ?? NaN);
    expect(tookMs / optimumMs).toBeLessThanOrEqual(1.02);
    // The bucket's 600 go as they come: asked of the bucket, then of the ceiling, and in the first moments once more.
    const delays = seen.slice(0, limit).map(({ plan, sentAt }) => (sentAt[0] ?? NaN) - plan.at);
    expect(Math.max(...delays)).toBeLessThanOrEqual(10 * roundTripMs);
  },
);
