/**
 * The state of a bucket by the last reply of Redis, and this replica's share of it. Pure.
 */
import type { Costs, MeterName } from '../../call.ts';
import type { BucketSetting, MeterSetting } from '../limiter.ts';
import { requestWindows } from '../policy/meter-names.policy.ts';
import type { LastReading } from '../redis/bucket-session.ts';

/**
 * The limits that hold: those that Redis named last, which follow from what is stated and from what responses reported, but for
 * what the operator has stated anew, or states no longer, since.
 */
export function limitsInForce(
  known: LastReading | null,
  { meters, learn }: BucketSetting,
): readonly MeterSetting[] {
  const byName = new Map<MeterName, MeterSetting>(meters.map((stated) => [stated.meter, stated]));
  for (const read of known?.meters ?? []) {
    const then = known?.setting?.meters.find(({ meter }) => meter === read.meter);
    const now = byName.get(read.meter);
    const wasStated = then?.limit === read.limit && then.windowMs === read.windowMs;
    if (wasStated) continue;
    const isTighter = now !== undefined && !learn && now.limit * read.windowMs < read.limit * now.windowMs;
    if (!isTighter) byName.set(read.meter, read);
  }
  return [...byName.values()];
}

/** This replica's part of a level; `null` = Redis had the bucket and has not named the level: it may be full. */
export const shareOfLevel = (level: number | undefined, replicas: number): number | null =>
  level === undefined ? null : Math.ceil(level / replicas);

/** Requests are counted by every window that the bucket has. */
export const takenOf = (meter: MeterName, taken: Costs): number =>
  taken[meter] ?? (requestWindows.includes(meter) ? (taken.requests ?? 0) : 0);
