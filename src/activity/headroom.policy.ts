/** How much more traffic fits: recorded arrivals replayed against the limits, as they came and multiplied. Pure. */
import { replay, type Replay, type ReplayLimits } from './replay.policy.ts';

export interface Headroom {
  /** Own arrivals in the busiest 60 consecutive seconds of the last hour. */
  readonly busiestMinute: number;
  /** `busiestMinute` as a share of the tighter of ceiling and bucket rate; `null` when nothing limits. May exceed 1. */
  readonly usedRatio: number | null;
  readonly now: Replay;
  readonly doubled: Replay;
  /** Largest multiple of the traffic at which no call is refused for its wait, to a tenth: at most {@link maxGrowth}, 0 when calls are refused already. `null` without traffic or limits. */
  readonly growth: number | null;
}

const maxGrowth = 10;

/** Replays `own` (arrivals per second, oldest first) among `others` (the same seconds, the same bucket). */
export function headroom(
  own: readonly number[],
  others: readonly number[],
  limits: ReplayLimits,
  maxWaitMs: number,
): Headroom {
  const busiestMinute = busiest(own);
  const bucketPerMinute = limits.bucket === null ? Infinity : limits.bucket.perSecond * 60;
  const perMinute = Math.min(limits.requestsPerMinute ?? Infinity, bucketPerMinute);
  const at = (factor: number) => replay(own, others, limits, factor, maxWaitMs);
  const limited = Number.isFinite(perMinute) && perMinute > 0;
  const now = at(1);
  return {
    busiestMinute,
    usedRatio: limited ? busiestMinute / perMinute : null,
    now,
    doubled: at(2),
    growth: limited && busiestMinute > 0 ? growth(now, (factor) => at(factor).refusedRatio === 0) : null,
  };
}

/** Largest sum of 60 consecutive seconds. */
export function busiest(perSecond: readonly number[]): number {
  let [sum, most] = [0, 0];
  for (const [i, n] of perSecond.entries()) {
    sum += n;
    if (i >= 60) sum -= perSecond[i - 60] ?? 0;
    most = Math.max(most, sum);
  }
  return most;
}

/** Largest multiple that `fits`, by halving; waits only grow with traffic. */
function growth(now: Replay, fits: (factor: number) => boolean): number {
  if (now.refusedRatio > 0) return 0;
  if (fits(maxGrowth)) return maxGrowth;
  let [low, high] = [1, maxGrowth];
  while (high - low > 0.05) {
    const middle = (low + high) / 2;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return Math.floor(low * 10 + tolerance) / 10;
}

/** Keeps 1.3 from becoming 1.2 in binary. */
const tolerance = 1e-9;
