/**
 * The length of a window that no answer states, from what successive answers say is left of it (docs/adr/0010).
 *
 * Owns: the estimate. Does not own: windows that answers state, or that the operator states (`meter-quota.policy.ts`). Pure.
 *
 * A window is never shorter than what is left of it, and where calls come all the time the answers right after its start say
 * all of it. So the estimate is the shortest usual window that is no shorter than the most that was left: it grows with the
 * answers and never shrinks, as long as the limit is the same. A first answer late in a window makes it too short, until that
 * window ends: calls may then leave too fast for the rest of it, but no more of them than the answers say remain.
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

/** Whole seconds are rounded up, and by some once more: what is left may be stated as one second more than the whole. */
const roundingMs = 1_000;
/** Where the rounding is at least a tenth of the window, it cannot be distinguished from a longer window. */
const roundedFromMs = 10 * secondMs;

/**
 * Milliseconds; `null` = nothing is known. `known` was learned before, for the same limit; `leftMs` is the time until the
 * window ends as the newest answer states it, rounded up.
 */
export function learnedWindowMs(known: number | null, leftMs: number | null): number | null {
  if (leftMs === null || !(leftMs > 0)) return known;
  const least = leftMs > roundedFromMs ? leftMs - roundingMs : leftMs;
  const usual = usualWindowsMs.find((windowMs) => windowMs >= least);
  if (usual === undefined) return known;
  return known === null ? usual : Math.max(known, usual);
}
