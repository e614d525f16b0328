/**
 * Which quota holds for a meter: what the operator states, what the upstream's answers report, or the tighter of both.
 *
 * Owns: limit and window in force. Refuses to own: the level (but for what a limit makes impossible). Invariant: a change
 * of what is stated or reported holds at once, in every direction. Pure; `now` is an argument.
 */
import { assumedWindowMs, type Meter, type Quota, type ReportedQuota } from './meter-state.policy.ts';
import { drain } from './meter.policy.ts';
import { learnedWindowMs } from './window-learning.policy.ts';

/** What the operator states now; `null`: nothing any more. It holds at once, whatever was learned before. */
export function applySetting(meter: Meter, stated: Quota | null, learn: boolean, now: number): void {
  meter.stated = stated === null ? null : { limit: stated.limit, windowMs: stated.windowMs };
  enforce(meter, learn, now);
}

/**
 * What an answer tells of the quota. A window that it does not tell is as long as it was told before, or as learned from what
 * is left of it (`leftMs`, milliseconds; `null` = not told).
 */
export function applyReport(
  meter: Meter,
  told: ReportedQuota,
  { leftMs, learn, now }: { readonly leftMs: number | null; readonly learn: boolean; readonly now: number },
): void {
  const known =
    meter.reported?.limit === told.limit || leftMs === null ? (meter.reported?.windowMs ?? null) : null;
  meter.reported = { ...told, windowMs: told.windowMs ?? learnedWindowMs(known, leftMs) };
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
  if (isLower) meter.level = Math.min(meter.level, limit);
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
  const told = { limit: reported.limit, windowMs };
  if (stated === null || learn) return told;
  const limit = Math.min(stated.limit, told.limit);
  const slower = stated.limit * told.windowMs < told.limit * stated.windowMs ? stated : told;
  if (limit === slower.limit) return slower;
  return { limit, windowMs: (limit * slower.windowMs) / slower.limit };
}
