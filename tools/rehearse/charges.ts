/**
 * What an upstream that states how much of a quota is used counts of a call: what the call used in the end, or, as some do, what it asked for,
 * however little it used. The levels that responses state tell which.
 */
import type { RecordedCall, RecordedMeter, RecordingHeader } from '../../src/recording/format.ts';
import { recordedLimits } from './world.ts';

/** The calls with what their upstreams counted as their charge. */
export function asCounted(header: RecordingHeader, calls: readonly RecordedCall[]): RecordedCall[] {
  const { buckets } = recordedLimits(header, calls);
  const sent = calls.filter(({ stated }) => stated !== undefined).toSorted((a, b) => sentAt(a) - sentAt(b));
  const ofBuckets = Map.groupBy(sent, ({ bucket }) => bucket);
  const asked = new Map(
    Array.from(ofBuckets, ([bucket, all]) => [
      bucket,
      (buckets.get(bucket) ?? []).filter((meter) => countsWhatIsAsked(all, meter)).map(({ meter }) => meter),
    ]),
  );
  return calls.map((call) => {
    const { costs, charged, bucket } = call;
    const others = (asked.get(bucket) ?? []).filter((meter) => (charged[meter] ?? 0) > 0);
    return others.length === 0
      ? call
      : {
          ...call,
          charged: { ...charged, ...Object.fromEntries(others.map((meter) => [meter, costs[meter]])) },
        };
  });
}

const sentAt = ({ at, waitedMs }: RecordedCall): number => at + waitedMs;

/** Of two calls that were sent one after the other the second raised the level by its charge. Most pairs decide. */
function countsWhatIsAsked(
  calls: readonly RecordedCall[],
  { meter, limit, windowMs }: RecordedMeter,
): boolean {
  let votes = 0;
  for (const [index, call] of calls.entries()) {
    const before = calls[index - 1];
    const [level, levelBefore] = [call.stated?.[meter], before?.stated?.[meter]];
    if (before === undefined || level === undefined || levelBefore === undefined) continue;
    const drained = ((sentAt(call) - sentAt(before)) * limit) / windowMs;
    const rose = level - Math.max(0, levelBefore - drained);
    const farFrom = (units = 0): number => Math.abs(rose - units);
    votes += Math.sign(farFrom(call.charged[meter]) - farFrom(call.costs[meter]));
  }
  return votes > 0;
}
