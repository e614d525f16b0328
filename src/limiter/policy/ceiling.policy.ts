/**
 * The workspace's ceiling as a sliding log: the times of the last `limit` sends, each of which frees its slot one
 * window later. Exact in every window, for any interleaving: a fixed window lets twice the limit through around its
 * border, a rate alone cannot have bursts.
 *
 * Pure; `now` is an argument. The Redis script of the ceiling mirrors these functions.
 */
import type { CeilingKey } from '../../ids.ts';
import type { Hold } from '../limiter.ts';
import { dayMs } from '../../time-units.ts';

/**
 * One minute, plus room for the difference between how long two calls are under way: the promise is about what
 * arrives upstream, and an early call that was slow must not meet a late one that was fast in one window.
 */
export const ceilingWindowMs = 60_000 + 150;

export type SlotResult =
  /** `slot` names what to give back. */
  { readonly kind: 'taken'; readonly slot: number } | { readonly kind: 'refused'; readonly waitMs: number };

/**
 * Sends that are within the window: `live` of them, the oldest at `first`. `log` is ascending. What is older is dropped when it is
 * half of the log: dropping moves all that stays, 20 µs for a log of 100,000, which each call would pay for the one before it.
 */
export function expire(log: number[], now: number): { readonly first: number; readonly live: number } {
  const expired = expiredCount(log, now);
  if (expired * 2 < log.length) return { first: expired, live: log.length - expired };
  log.splice(0, expired);
  return { first: 0, live: log.length };
}

/**
 * Takes a slot, or refuses without a trace and says when one frees. A call that may leave up to `lateMs` after now has
 * its slot counted from then: whoever takes the freed slot leaves a whole window after it, however late it left.
 */
export function takeSlot(
  log: number[],
  { limit, lateMs = 0 }: { readonly limit: number; readonly lateMs?: number },
  now: number,
): SlotResult {
  if (expire(log, now).live >= limit) return { kind: 'refused', waitMs: slotInMs(log, { limit, k: 1 }, now) };
  const slot = Math.max(now + lateMs, log.at(-1) ?? now);
  log.push(slot);
  return { kind: 'taken', slot };
}

/** Gives back the very slot that was taken. A slot that is not there any more (expired) changes nothing. */
export function giveSlotBack(log: number[], slot: number): void {
  const at = log.lastIndexOf(slot);
  if (at >= 0) log.splice(at, 1);
}

/**
 * Milliseconds until the `k`-th call from now (1 = the next) finds a slot, if nobody else takes one. Each call takes the
 * slot of the send `limit` before it, which may be one of those that are yet to come. After the limit was lowered more
 * may be in the window than it allows.
 */
export function slotInMs(
  log: readonly number[],
  { limit, k }: { readonly limit: number; readonly k: number },
  now: number,
): number {
  const expired = expiredCount(log, now);
  const live = log.length - expired;
  const behind = live + k - 1 - limit;
  if (behind < 0) return 0;
  const rounds = Math.max(0, Math.ceil((behind - live + 1) / limit));
  const first = behind - rounds * limit;
  return freeInMs(first < 0 ? undefined : log[expired + first], now) + rounds * ceilingWindowMs;
}

/** Milliseconds until a send frees its slot; 0 = it has, or there is none. */
const freeInMs = (sentAt: number | undefined, now: number): number =>
  sentAt === undefined ? 0 : Math.max(0, sentAt + ceilingWindowMs - now);

/** Sends counted after `since`. `log` is ascending. */
export function sentSince(log: readonly number[], since: number): number {
  let from = log.length;
  while (from > 0 && (log[from - 1] ?? 0) > since) from -= 1;
  return log.length - from;
}

/** How many sends at the head of the log have left the window. */
function expiredCount(log: readonly number[], now: number): number {
  let low = 0;
  let high = log.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((log[middle] ?? 0) + ceilingWindowMs <= now) low = middle + 1;
    else high = middle;
  }
  return low;
}

// What the sends of a window and the calls of a day say of a ceiling: the same for what this process counts and for what was read in Redis

/** A ceiling's limits of the minute and of the day. `null` = there is no such limit. */
export interface CeilingLimits {
  readonly perMinute: number | null;
  readonly perDay: number | null;
}

/** A ceiling and its limits. */
export interface CeilingRef extends CeilingLimits {
  readonly key: CeilingKey;
  /** Beside them, slots that are left to other calls under the same ceiling; absent: none. */
  readonly left?: { readonly perMinute: number; readonly perDay: number };
}

/** The ceiling with all its places. */
export const whole = ({ key, perMinute, perDay, left }: CeilingRef): CeilingRef => ({
  key,
  perMinute: perMinute === null ? null : perMinute + (left?.perMinute ?? 0),
  perDay: perDay === null ? null : perDay + (left?.perDay ?? 0),
});

/** What is counted under a ceiling. */
export interface CeilingCounts {
  /** Times of the sends, ascending. */
  readonly log: number[];
  /** `null` = no call was counted. */
  day: { calls: number; readonly endsAt: number } | null;
}

/** State of one limit, for the `RateLimit` fields. */
export interface CeilingState {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until a slot comes free; of a day, until its end. */
  readonly nextSlotMs: number;
}

/** The day that lasts; `null` = none does. */
export const dayOf = ({ day }: CeilingCounts, now: number): CeilingCounts['day'] =>
  day === null || day.endsAt <= now ? null : day;

/** Counts a call, with which a day begins where none lasts. Returns when the day ends. */
export function countOfDay(counts: CeilingCounts, now: number): number {
  counts.day = dayOf(counts, now) ?? { calls: 0, endsAt: now + dayMs };
  counts.day.calls += 1;
  return counts.day.endsAt;
}

/** How many calls are left of a day, and in how many milliseconds the count starts again at 0. */
export function dayLeft(counts: CeilingCounts, perDay: number, now: number) {
  const { calls, endsAt } = dayOf(counts, now) ?? { calls: 0, endsAt: now + dayMs };
  return { calls: Math.max(0, perDay - calls), endsInMs: endsAt - now };
}

/**
 * When calls find a slot, if nobody else takes one: the k-th for each k of `positions`, 1 = the next.
 * @param asOf when the positions were determined: sends since then may be calls that stood before these; `null` = now
 */
export function holdsIn(
  counts: CeilingCounts,
  { perMinute, perDay }: CeilingLimits,
  { positions, asOf, now }: { positions: readonly number[]; asOf: number | null; now: number },
): Hold[] {
  const sent = asOf === null ? 0 : sentSince(counts.log, asOf);
  const day = perDay === null ? null : dayLeft(counts, perDay, now);
  return positions.map((position) => {
    const k = Math.max(1, position - sent);
    const waitMs = perMinute === null ? 0 : slotInMs(counts.log, { limit: perMinute, k }, now);
    return day !== null && k > day.calls && day.endsInMs > waitMs
      ? { waitMs: day.endsInMs, heldBy: 'ceiling_day' }
      : { waitMs, heldBy: 'ceiling_minute' };
  });
}

export function minuteState({ log }: CeilingCounts, limit: number, now: number): CeilingState {
  const { first, live } = expire(log, now);
  return { limit, remaining: Math.max(0, limit - live), nextSlotMs: freeInMs(log[first], now) };
}

export function dayState(counts: CeilingCounts, limit: number, now: number): CeilingState {
  const { calls, endsInMs } = dayLeft(counts, limit, now);
  return { limit, remaining: calls, nextSlotMs: dayOf(counts, now) === null ? 0 : endsInMs };
}
