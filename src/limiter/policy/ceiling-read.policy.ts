/**
 * What one read of a ceiling's slots shows a moment later, and how much of it has to be read. Sends that nobody here saw may have
 * followed it. Pure.
 */
import { ceilingWindowMs, type DayLeft } from './ceiling.policy.ts';

export interface SlotsRead {
  /** Monotonic milliseconds at which the reply came. */
  readonly at: number;
  /** Slots per window; `null` = the minute has no ceiling. */
  readonly limit: number | null;
  /** Calls counted in the day. What is left of it depends on who asks: a reload may have changed the ceiling since. */
  readonly ofDay: number;
  /** Time from `at` until the day's count starts again at 0, milliseconds. */
  readonly dayEndsInMs: number;
  /** Sends in the window. */
  readonly live: number;
  /** Milliseconds from `at` until the k-th call found a slot, for the k that were asked for. */
  readonly waits: ReadonlyMap<number, number>;
  /** Milliseconds from `at` until the slot of the oldest send comes free. */
  readonly oldestMs: number;
}

/** So many positions at the head of the line, and around the last one that is asked for, are read, too: the next calls ask for those. */
const head = 64;
const around = 16;
/** So many of the newest sends are read, too, because those of the last round trip are among them. */
const newest = 16;

/** The positions to read for somebody who asks for `positions` (1 = the next call), ascending, each once. */
export function positionsToRead(limit: number, positions: readonly number[]): number[] {
  const wanted = new Set(positions);
  const add = (from: number, to: number): void => {
    for (let k = Math.max(1, from); k <= to; k += 1) wanted.add(k);
  };
  add(1, head);
  const last = Math.max(...positions);
  add(last - around, last + around);
  add(limit - newest + 1, limit);
  return [...wanted].toSorted((a, b) => a - b);
}

/**
 * Milliseconds from `now` until the k-th call finds a slot if nobody was sent since the read; `null` = the read does not show it.
 */
export function minWaitMs(read: SlotsRead, k: number, now: number): number | null {
  if (read.limit === null || k <= read.limit - read.live) return 0;
  const waitMs = read.waits.get(k);
  return waitMs === undefined ? null : Math.max(0, waitMs - (now - read.at));
}

/** What is left of the day under this ceiling. */
export const dayLeft = ({ at, ofDay, dayEndsInMs }: SlotsRead, perDay: number, now: number): DayLeft => ({
  calls: Math.max(0, perDay - ofDay),
  endsInMs: Math.max(0, dayEndsInMs - (now - at)),
});

/** Sends counted in the last `ms` before the read, as far as the read shows; rather too many than too few. */
export function sentBefore({ limit, live, waits }: SlotsRead, ms: number): number {
  let sent = 0;
  if (limit === null) return sent;
  while (sent < live && (waits.get(limit - sent) ?? 0) > ceilingWindowMs - ms) sent += 1;
  return sent;
}
