/**
 * The length of a window that no response states, estimated from the time that successive responses state to be left of it
 * (docs/adr/0001).
 *
 * Owns: the estimate. Does not own: windows that responses or the operator state (`meter-quota.policy.ts`). Pure.
 *
 * A window is never shorter than the time left of it; where calls come all the time, a response right after its start states nearly
 * all of it. So the estimate is the shortest usual window that is no shorter than the longest time that was left. The estimate grows
 * with the responses, and never shrinks as long as the limit is the same. If the first response comes late in a window, the estimate is
 * too short until that window ends: calls may then leave too fast for the rest of it, but no more calls than the responses state to
 * remain.
 */

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
