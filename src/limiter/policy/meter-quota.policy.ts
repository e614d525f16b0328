/**
 * Which quota holds for a meter: what the operator states, what the upstream's answers report, or the tighter of both.
 *
 * Owns: limit and window in force. Does not own: the level (but for what a limit makes impossible). Invariant: a change
 * of what is stated or reported holds at once, in every direction. Pure; `now` is an argument.
 */
import { assumedWindowMs, type Meter, type Quota, type ReportedQuota } from './meter-state.policy.ts';
import { drain } from './meter.policy.ts';
import { netRate } from './meter-others.policy.ts';
import { learnedWindowMs } from './window-learning.policy.ts';

/** What the operator states of a meter (`null`: nothing), and whether what is reported may raise it. */
export interface StatedQuota {
  readonly stated: Quota | null;
  readonly learn: boolean;
}

/**
 * What the operator states now; `null`: nothing any more. It holds at once, whatever was learned before. A raised limit gives
 * no more room than the upstream has, as far as is known: below the lower limit the level was that of the stated quota.
 */
export function applySetting(meter: Meter, { stated, learn }: StatedQuota, now: number): void {
  const before = meter.limit;
  meter.stated = stated === null ? null : { limit: stated.limit, windowMs: stated.windowMs };
  enforce(meter, learn, now);
  const { limit } = meter;
  if (before === null || limit === null || limit <= before) return;
  meter.level = Math.max(meter.level, Math.min(meter.level + limit - before, levelThere(meter, now)));
}

/**
 * The most that the upstream can have counted by now, as far as its answers stated, or as was counted here when the limit was
 * lowered; 0 = neither.
 */
function levelThere(meter: Meter, now: number): number {
  const { peak, unreported } = meter;
  if (peak === null) return 0;
  const counted = peak.level + onTheWay(meter) + (unreported?.units ?? 0);
  return Math.max(0, counted - netRate(meter) * Math.max(0, now - peak.at));
}

/** Units of granted calls whose answers are not known. */
const onTheWay = ({ granted, answered }: Meter): number => Math.max(0, granted - answered);

/**
 * A lowered limit is about to cut the level off. Where no answer states it, it is what a raised limit finds: replicas that differ
 * for a while in what is stated raise and lower it again with every call.
 */
function rememberLevel(meter: Meter, now: number): void {
  const level = Math.max(meter.level, levelThere(meter, now)) - onTheWay(meter);
  meter.peak = { level, at: Math.max(meter.at, now), headAt: now };
  meter.unreported = null;
}

/**
 * Units by which the limit in force is lower than what the upstream has. So much of what its answers state as used takes no
 * room here: the operator leaves it to others, or does not use it.
 */
export const unusedUnits = ({ limit, reported }: Meter): number =>
  limit === null || reported === null ? 0 : Math.max(0, reported.limit - limit);

/**
 * The operator lets the meter drain more slowly than the upstream does. Then an answer that states a lower level says nothing
 * of how much of the stated quota is used.
 */
export function isHeldSlower(meter: Meter): boolean {
  const { name, limit, windowMs, stated, reported } = meter;
  if (limit === null || reported === null) return false;
  const reportedMs = reported.windowMs ?? stated?.windowMs ?? assumedWindowMs(name);
  return limit * reportedMs < reported.limit * windowMs;
}

/**
 * What an answer states of the quota. A window that it does not state is as long as it was before, or as learned from what
 * is left of it (`leftMs`, milliseconds; `null` = not stated).
 */
export function applyReport(
  meter: Meter,
  learned: ReportedQuota,
  { leftMs, learn, now }: { readonly leftMs: number | null; readonly learn: boolean; readonly now: number },
): void {
  const known =
    meter.reported?.limit === learned.limit || leftMs === null ? (meter.reported?.windowMs ?? null) : null;
  meter.reported = { ...learned, windowMs: learned.windowMs ?? learnedWindowMs(known, leftMs) };
  enforce(meter, learn, now);
}

/**
 * Brings limit and window in force. Without a limit before, or with a higher one, more may have been counted here than
 * the limit: the upstream counted no more than that.
 */
function enforce(meter: Meter, learn: boolean, now: number): void {
  const quota = quotaInForce(meter, learn);
  const limit = quota === null ? null : quota.limit;
  const windowMs = quota === null ? assumedWindowMs(meter.name) : quota.windowMs;
  if (limit === meter.limit && windowMs === meter.windowMs) return;
  drain(meter, now);
  const isLower = limit !== null && (meter.limit === null || limit < meter.limit);
  if (isLower && meter.level > limit) {
    if (meter.limit !== null && meter.reported === null) rememberLevel(meter, now);
    meter.level = limit;
  }
  meter.limit = limit;
  meter.windowMs = windowMs;
}

/**
 * The quota that holds. What is reported counts as soon as something is; where the operator pinned the limit, no more than
 * is stated either: as many units at once, and as many in the long run, as the tighter of both has.
 */
function quotaInForce({ name, stated, reported }: Meter, learn: boolean): Quota | null {
  if (reported === null) return stated;
  const windowMs = reported.windowMs ?? stated?.windowMs ?? assumedWindowMs(name);
  const learned = { limit: reported.limit, windowMs };
  if (stated === null || learn) return learned;
  const limit = Math.min(stated.limit, learned.limit);
  const slower = stated.limit * learned.windowMs < learned.limit * stated.windowMs ? stated : learned;
  if (limit === slower.limit) return slower;
  return { limit, windowMs: (limit * slower.windowMs) / slower.limit };
}
