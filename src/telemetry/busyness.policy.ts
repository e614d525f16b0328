/**
 * How busy a workspace has been lately, as one number, and when one is clearly busier than another. Pure.
 *
 * The number is a count of calls in which a call weighs half after {@link halfLifeMinutes}: about what the last hour
 * shows, without a memory of the hour.
 */

/** Age at which a call counts half, minutes. */
const halfLifeMinutes = 30;

/** What a count that was right at minute `from` is worth at minute `to`; a clock that stepped back changes nothing. */
export function decayed(count: number, from: number, to: number): number {
  return to <= from ? count : count * 2 ** ((from - to) / halfLifeMinutes);
}

/**
 * True when `one` is so much busier than `other` that it may take the other's label: twice as busy, and two calls more, so
 * that workspaces of similar traffic, or with next to none, do not take labels from each other for ever.
 */
export const clearlyBusier = (one: number, other: number): boolean => one >= 2 * other + 2;
