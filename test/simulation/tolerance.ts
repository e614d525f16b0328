/**
 * By how much a stated wait may be wrong in a calm history, milliseconds, too short (`early`) or too long (`late`):
 *
 * - rest: 1 s and 2 % of the wait. A meter that leaves empty rests for up to a second, or a sixtieth of its window, once per drain.
 * - turns: the largest call of each lane that waits, twice. Start-time fair queueing is fair within one call of each lane, and which of two
 *   calls the upstream counts first is known only afterwards.
 * - ways: twelve ways of a command to the store. What was stated is of the past.
 * - order, late: the calls under way that may have been counted in what responses state of others that left with them, or come on top of it.
 *   The gateway must take them for the latter (`src/limiter/policy/learning.policy.ts`).
 *
 * Pure.
 */
import type { Costs, MeterName } from '../../src/call.ts';
import type { BucketPlan, MeterPlan, Plan } from './plan.ts';
import type { RefusedCall } from './refused-call.ts';
import { keyed } from './rules.ts';

const restMs = 1_000;
const restShare = 0.02;
const commandWays = 12;

export interface Tolerance {
  readonly early: (waitMs: number) => number;
  readonly late: (waitMs: number) => number;
}

export function toleranceOf(
  { calls, buckets, network }: Plan,
  { id: refused, known, uncounted }: RefusedCall,
): Tolerance {
  const largest = new Map<string, number>();
  let orderMs = 0;
  for (const { id, lane, costs } of calls) {
    const serviceMs = serviceMsOf(costs, keyed(buckets, lane.bucket));
    if (uncounted.has(id)) orderMs += serviceMs;
    if (!known.has(id) && id !== refused) continue;
    largest.set(lane.key, Math.max(largest.get(lane.key) ?? 0, serviceMs));
  }
  const turnsMs = [...largest.values()].reduce((sum, ms) => sum + 2 * ms, 0);
  const early = (waitMs: number): number =>
    restMs + restShare * waitMs + turnsMs + commandWays * network.meanMs;
  return { early, late: (waitMs) => early(waitMs) + orderMs };
}

/** For how long the call keeps the slowest of its meters busy. */
function serviceMsOf(costs: Costs, { requests, tokens, cost }: BucketPlan): number {
  const busyMs = (meter: MeterPlan | null, name: MeterName): number =>
    meter === null ? 0 : meter.windowMs * Math.min(1, (costs[name] ?? 0) / meter.limit);
  return Math.max(busyMs(requests, 'requests'), busyMs(tokens, 'tokens'), busyMs(cost, 'cost'));
}
