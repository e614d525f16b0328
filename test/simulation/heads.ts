/**
 * Who could go now, as far as the ledger knows: the heads of lanes that nothing but their bucket holds back. No line of the
 * product is in it. Owns: lanes, caps, ceilings, closings. Does not own: whether a meter has room.
 */
import { capOf, entrySettingsOf, isBackground, lowest } from './rules.ts';
import { isBefore, type BucketRecord, type Ledger, type CallRecord, type LaneRecord } from './ledger.ts';

/** A slot of a ceiling frees after a minute and a margin for the time in the network. Milliseconds. */
const ceilingMs = 60_150;

/** The first call of a lane that is awake and below its cap; one of several where their order is unknown. */
export interface Head {
  readonly calls: readonly CallRecord[];
  /** Its ceiling has a slot. */
  readonly mayGo: boolean;
  readonly isBackground: boolean;
}

export function headsOf(ledger: Ledger, bucket: BucketRecord, now: number): Head[] {
  if (isShut(bucket, now)) return [];
  const heads: Head[] = [];
  for (const lane of bucket.lanes) {
    if (lane.line.size === 0 || ledger.asleepUntil(lane, now) >= now) continue;
    // What holds the other calls of its workspace holds its background calls, too, until one is due.
    const isBehind = isBackground(lane.plan) && bucket.minute.isBehind(now);
    if (isBehind && ledger.lanesOfWorkspace(lane).some(hasOthers)) continue;
    if (!isBelowCap(ledger, lane, 0, now)) ledger.reach('cap blocks a lane');
    else
      heads.push({
        calls: firstOf(lane),
        mayGo: haveSlots(ledger, lane, 1, now),
        isBackground: isBackground(lane.plan),
      });
  }
  // Others go first while one of them may go; whoever of the background is due goes before them, and what they wait for with it.
  const others = heads.filter(({ isBackground: isLast }) => !isLast);
  if (others.length === heads.length || others.length === 0) return heads;
  return bucket.minute.isBehind(now) ? others : [];
}

const hasOthers = ({ plan, line }: LaneRecord): boolean => !isBackground(plan) && line.size > 0;

/** The bucket is closed, or waits for the responses of its first calls. */
export function isShut(bucket: BucketRecord, now: number): boolean {
  if (bucket.closedUntil >= now || bucket.opened) return bucket.closedUntil >= now;
  return bucket.lanes.some(({ leases }) => [...leases].some(({ heldUntil }) => heldUntil >= now));
}

/** Of calls that came to several processes in the same moment any may be the first. */
export function firstOf(lane: LaneRecord): readonly CallRecord[] {
  if (lane.line.size < 2) return [...lane.line];
  const line = [...lane.line];
  // Most come after this one, which saves comparing each with all.
  const early = line.reduce((first, call) => (isBefore(call, first) ? call : first));
  return line.filter((call) => !isBefore(early, call) && !line.some((other) => isBefore(other, call)));
}

/** One more may be in flight when so many others go first. */
export function isBelowCap(ledger: Ledger, lane: LaneRecord, ahead: number, now: number): boolean {
  const cap = lowest(ledger.regimes(now), capOf(lane.plan.key));
  if (cap === null) return true;
  let held = 0;
  for (const { leases } of ledger.lanesOfWorkspace(lane))
    for (const { heldUntil } of leases) if (heldUntil >= now) held += 1;
  return held + ahead < cap;
}

/** The number of free slots under the lane's ceiling. Grants in transit to it count as if they had taken theirs. */
export function haveSlots(ledger: Ledger, lane: LaneRecord, slots: number, now: number): boolean {
  const record = ledger.ceiling(lane.plan.workspace);
  const regimes = ledger.regimes(now);
  const { key } = lane.plan;
  const perMinute = lowest(regimes, (regime) => entrySettingsOf(regime, key).perMinute);
  const perDay = lowest(regimes, (regime) => entrySettingsOf(regime, key).perDay);
  let used = slots - 1;
  for (const other of ledger.lanes.values()) {
    if (other.plan.workspace !== lane.plan.workspace) continue;
    for (const lease of other.leases) if (!lease.sent && lease.settlements === 0) used += 1;
  }
  record.taken = record.taken.filter(({ at }) => at + ceilingMs > now);
  if (perDay !== null && record.daily + used >= perDay) return false;
  return perMinute === null || record.taken.length + used < perMinute;
}
