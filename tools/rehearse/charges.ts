/**
 * What an upstream that states how much of a quota is used counts of a call: what the call used in the end, or, as some do, what it asked for,
 * however little it used, and either by its own count of tokens. The levels that responses state tell which, and how much.
 */
import type { RecordedCall, RecordedMeter, RecordingHeader } from '../../src/recording/format.ts';
import { recordedLimits } from './world.ts';

/** The calls with what their upstreams counted as their charge, or would have counted of those that were not sent. */
export function asCounted(header: RecordingHeader, calls: readonly RecordedCall[]): RecordedCall[] {
  const { buckets } = recordedLimits(header, calls);
  const sent = calls.filter(({ stated }) => stated !== undefined).toSorted((a, b) => sentAt(a) - sentAt(b));
  const rules = new Map(
    Array.from(
      Map.groupBy(sent, ({ bucket }) => bucket),
      ([bucket, all]) => [bucket, (buckets.get(bucket) ?? []).map((meter) => ruleOf(all, meter))],
    ),
  );
  return calls.map((call) => {
    const charged = call.serviceMs === null ? call.costs : call.charged;
    const counted = (rules.get(call.bucket) ?? []).flatMap(({ meter, of, share }) => {
      const units = of === 'costs' ? call.costs[meter] : charged[meter];
      return units === undefined || (charged[meter] ?? 0) === 0 ? [] : [[meter, units * share] as const];
    });
    if (counted.length === 0 && charged === call.charged) return call;
    return { ...call, charged: { ...charged, ...Object.fromEntries(counted) } };
  });
}

/** What an upstream counts: this share of what was reserved for a call, or of what the gateway charged it in the end. */
interface Rule {
  readonly meter: RecordedMeter['meter'];
  readonly of: 'costs' | 'charged';
  readonly share: number;
}

const sentAt = ({ at, waitedMs }: RecordedCall): number => at + waitedMs;

/**
 * Of two calls that were sent one after the other the second raised the level by what it counts. What most pairs say holds: others may use the
 * quota, too, and responses may cross.
 */
function ruleOf(calls: readonly RecordedCall[], { meter, limit, windowMs }: RecordedMeter): Rule {
  let votes = 0;
  const shares = { costs: [] as number[], charged: [] as number[] };
  for (const [index, call] of calls.entries()) {
    const before = calls[index - 1];
    const [level, levelBefore] = [call.stated?.[meter], before?.stated?.[meter]];
    if (before === undefined || level === undefined || levelBefore === undefined) continue;
    const drained = ((sentAt(call) - sentAt(before)) * limit) / windowMs;
    const rose = level - Math.max(0, levelBefore - drained);
    const {
      costs: { [meter]: asked = 0 },
      charged: { [meter]: used = 0 },
    } = call;
    votes += Math.sign(Math.abs(rose - used) - Math.abs(rose - asked));
    if (asked > 0) shares.costs.push(rose / asked);
    if (used > 0) shares.charged.push(rose / used);
  }
  const of = votes > 0 ? 'costs' : 'charged';
  return { meter, of, share: shareOf(shares[of]) };
}

/** An upstream counts tokens otherwise than the gateway by less than this share; what differs by more is what others use. */
const mostApart = 0.25;

/** The median; 1 where it says nothing of how the upstream counts. */
function shareOf(shares: readonly number[]): number {
  const median = shares.toSorted((a, b) => a - b)[Math.floor(shares.length / 2)] ?? 1;
  return Math.abs(median - 1) <= mostApart ? median : 1;
}
