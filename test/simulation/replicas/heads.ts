/**
 * Who could go now, as far as the ledger knows: the heads of lanes that nothing but their bucket holds back. No line of the
 * product is in it. Owns: lanes, caps, ceilings, closings. Does not own: whether a meter has room.
 */
import { isBackground } from '../rules.ts';
import { endOf, isBefore, type BucketRecord, type Exact, type LaneRecord } from './exact.ts';
import type { Call, ReplicaLedger } from './ledger.ts';

/** The first call of a lane that is awake and below its cap; one of several where their order is unknown. */
export interface Head {
  readonly calls: readonly Call[];
  /** Its ceiling has a slot. */
  readonly mayGo: boolean;
  readonly isBackground: boolean;
}

export function headsOf(ledger: ReplicaLedger, exact: Exact, bucket: BucketRecord, now: number): Head[] {
  if (isShut(bucket, now)) return [];
  const heads: Head[] = [];
  for (const lane of bucket.lanes) {
    if (lane.line.size === 0 || exact.asleepUntil(lane, now) >= now) continue;
    // What holds the other calls of its workspace holds its background calls, too, until one is due.
    const isBehind = isBackground(lane.plan) && ledger.isBehind(bucket.key, now);
    if (isBehind && exact.lanesOfWorkspace(lane).some(hasOthers)) continue;
    if (!exact.isBelowCap(lane, 0, now)) ledger.reach('cap blocks a lane');
    else
      heads.push({
        calls: firstOf(lane),
        mayGo: exact.haveSlots(lane, 1, now),
        isBackground: isBackground(lane.plan),
      });
  }
  // Others go first while one of them may go; whoever of the background is due goes before them, and what they wait for with it.
  const others = heads.filter(({ isBackground: isLast }) => !isLast);
  if (others.length === heads.length || others.length === 0) return heads;
  return ledger.isBehind(bucket.key, now) ? others : [];
}

const hasOthers = ({ plan, line }: LaneRecord): boolean => !isBackground(plan) && line.size > 0;

/** The bucket is closed, or waits for the responses of its first calls. */
export function isShut(bucket: BucketRecord, now: number): boolean {
  if (bucket.closedUntil >= now || bucket.opened) return bucket.closedUntil >= now;
  return bucket.lanes.some(({ leases }) => [...leases].some((lease) => endOf(lease) >= now));
}

/** Of calls that came to several processes in the same moment any may be the first. */
export function firstOf(lane: LaneRecord): readonly Call[] {
  if (lane.line.size < 2) return [...lane.line];
  const line = [...lane.line];
  // Most come after this one, which saves comparing each with all.
  const early = line.reduce((first, call) => (isBefore(call, first) ? call : first));
  return line.filter((call) => !isBefore(early, call) && !line.some((other) => isBefore(other, call)));
}
