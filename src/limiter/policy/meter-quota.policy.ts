/**
 * Which quota holds for a meter: what the operator states, what the upstream's responses report, or the tighter of both.
 *
 * Owns: limit and window in force. Does not own: the level, except that a lower limit cuts it off. Invariant: a changed setting or
 * report takes effect at once, in every direction. Pure; `now` is an argument.
 */
import { assumedWindowMs, type Meter, type Quota, type ReportedQuota } from './meter-state.policy.ts';
import { drain, levelThere, onTheWay } from './meter.policy.ts';
import { countedAs } from './window-log.policy.ts';

/** The quota that the operator states (`null` = none), and whether a reported quota may raise it. */
export interface StatedQuota {
  readonly stated: Quota | null;
  readonly learn: boolean;
}

/** Applies the operator's setting (`null` = no longer stated). It takes effect at once, whatever was learned before. */
export function applySetting(meter: Meter, { stated, learn }: StatedQuota, now: number): void {
  meter.stated = stated === null ? null : { limit: stated.limit, windowMs: stated.windowMs };
  enforce(meter, { learn, answered: 0 }, now);
}

/**
 * Keeps the level before a lowered limit cuts it off, for a limit that is raised again. While replicas have different
 * configurations, every call raises or lowers the limit.
 */
function rememberLevel(meter: Meter, now: number): void {
  const level = Math.max(meter.level, levelThere(meter, 0, now)) - onTheWay(meter);
  meter.peak = { level, at: Math.max(meter.at, now), headAt: now };
  meter.unreported = null;
}

/**
 * Units by which the limit in force is below the upstream's own. So many of the used units that responses state take no room here:
 * the operator leaves them to others, or does not use them.
 */
export const unusedUnits = ({ limit, reported }: Meter): number =>
  limit === null || reported === null ? 0 : Math.max(0, reported.limit - limit);

/**
 * True when the operator's quota drains more slowly than the upstream's. Then a response with a lower level does not show how much
 * of the operator's quota is used.
 */
export function isHeldSlower(meter: Meter): boolean {
  const { name, limit, windowMs, stated, reported } = meter;
  if (limit === null || reported === null) return false;
  const reportedMs = reported.windowMs ?? stated?.windowMs ?? assumedWindowMs(name);
  return limit * reportedMs < reported.limit * windowMs;
}

export interface ReportTerms {
  /** Until the window ends, milliseconds; `null` = not stated. */
  readonly leftMs: number | null;
  readonly learn: boolean;
  /** Units that the response's call took from the meter. */
  readonly cost: number;
  readonly now: number;
}

/**
 * Applies the quota that a response states. If it states no window, the former one stays, or the window is learned from what is
 * left of it.
 */
export function applyReport(
  meter: Meter,
  learned: ReportedQuota,
  { leftMs, learn, cost, now }: ReportTerms,
): void {
  const known =
    meter.reported?.limit === learned.limit || leftMs === null ? (meter.reported?.windowMs ?? null) : null;
  meter.reported = { ...learned, windowMs: learned.windowMs ?? learnedWindowMs(known, leftMs) };
  enforce(meter, { learn, answered: cost }, now);
}

/**
 * Puts limit and window in force. If there was no limit before, or a higher one, the level is cut off at the new limit, because the
 * upstream counts no more than its limit. A raised limit gives no more room than the upstream is known to have: under the lower
 * limit the level was that of the lower quota only.
 */
function enforce(
  meter: Meter,
  { learn, answered }: { readonly learn: boolean; readonly answered: number },
  now: number,
): void {
  const before = meter.limit;
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
  if (windowMs !== meter.windowMs) meter.log = countedAs(meter, { windowMs }, now);
  meter.limit = limit;
  meter.windowMs = windowMs;
  if (before === null || limit === null || limit <= before) return;
  meter.level = Math.max(
    meter.level,
    Math.min(meter.level + limit - before, levelThere(meter, answered, now)),
  );
}

/**
 * The quota in force: the reported one as soon as there is one, else the stated one. If the operator pinned the limit, the
 * tighter of both counts, for the units at once and for the rate.
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

// The length of a window that no response states, estimated from the time that successive responses state to be left of it (docs/adr/0001).
// A window is never shorter than the time left of it; where calls come all the time, a response right after its start states nearly all of
// it. So the estimate is the shortest usual window that is no shorter than the longest time that was left. It never shrinks as long as the
// limit is the same. If the first response comes late in a window, it is too short until that window ends: calls may then leave too fast for
// the rest of it, but no more calls than the responses state to remain.

const secondMs = 1_000;
const minuteMs = 60_000;
const hourMs = 3_600_000;

/** Windows that upstreams have, ascending. Milliseconds. */
export const usualWindowsMs: readonly number[] = [
  ...[1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 45, 60].map((seconds) => seconds * secondMs),
  ...[2, 3, 5, 10, 15, 20, 30].map((minutes) => minutes * minuteMs),
  hourMs,
];

/**
 * Upstreams state whole seconds, rounded up, and some add one second: the stated time may be this much longer than the window.
 * Milliseconds.
 */
export const roundingMs = 1_000;
/**
 * Up to this stated time the rounding is not subtracted: it is a tenth of the time or more, so that the time could as well be that of
 * a longer window. Milliseconds.
 */
export const roundedFromMs = 10 * secondMs;

/**
 * The estimate, milliseconds; `null` = nothing is known.
 * @param known the estimate before, for the same limit
 * @param leftMs the time until the window ends, as the newest response states it, rounded up; `null` = it states none
 */
export function learnedWindowMs(known: number | null, leftMs: number | null): number | null {
  if (leftMs === null || !(leftMs > 0)) return known;
  const minWindowMs = leftMs > roundedFromMs ? leftMs - roundingMs : leftMs;
  const usual = usualWindowsMs.find((windowMs) => windowMs >= minWindowMs);
  if (usual === undefined) return known;
  return known === null ? usual : Math.max(known, usual);
}
