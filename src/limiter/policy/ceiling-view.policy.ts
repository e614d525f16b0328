/**
 * What the sends of a window and the calls of a day say of a ceiling. Pure: the same for what this process counts and for what was read
 * in Redis.
 */
import {
  ceilingWindowMs,
  expire,
  holdAt,
  sentSince,
  slotInMs,
  type CeilingHold,
  type DayLeft,
} from './ceiling.policy.ts';

/** A ceiling's limits of the minute and of the day. `null` = there is no such limit. */
export interface CeilingLimits {
  readonly perMinute: number | null;
  readonly perDay: number | null;
}

export interface CeilingView {
  /** Times of the sends, ascending. */
  readonly log: number[];
  /** `null` = no call was counted. */
  readonly day: { readonly calls: number; readonly endsAt: number } | null;
}

/** State of one limit, for the `RateLimit` fields. */
export interface CeilingState {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until a slot comes free; of a day, until its end. */
  readonly nextSlotMs: number;
}

const dayMs = 86_400_000;

export function dayLeft({ day }: CeilingView, perDay: number, now: number): DayLeft {
  if (day === null) return { calls: perDay, endsInMs: dayMs };
  return { calls: Math.max(0, perDay - day.calls), endsInMs: Math.max(0, day.endsAt - now) };
}

/**
 * When calls find a slot, if nobody else takes one: the k-th for each k of `positions`, 1 = the next.
 * @param asOf when the positions were determined: sends since then may be calls that stood before these; `null` = now
 */
export function holdsIn(
  view: CeilingView,
  { perMinute, perDay }: CeilingLimits,
  {
    positions,
    asOf,
    now,
  }: { readonly positions: readonly number[]; readonly asOf: number | null; readonly now: number },
): CeilingHold[] {
  const sent = asOf === null ? 0 : sentSince(view.log, asOf);
  const day = perDay === null ? null : dayLeft(view, perDay, now);
  return positions.map((position) => {
    const k = Math.max(1, position - sent);
    return holdAt(perMinute === null ? 0 : slotInMs(view.log, { limit: perMinute, k }, now), k, day);
  });
}

export function minuteState({ log }: CeilingView, limit: number, now: number): CeilingState {
  const { first, live } = expire(log, now);
  const oldest = log[first];
  const nextSlotMs = oldest === undefined ? 0 : Math.max(0, oldest + ceilingWindowMs - now);
  return { limit, remaining: Math.max(0, limit - live), nextSlotMs };
}

export function dayState(view: CeilingView, limit: number, now: number): CeilingState {
  const { calls, endsInMs } = dayLeft(view, limit, now);
  return { limit, remaining: calls, nextSlotMs: view.day === null ? 0 : endsInMs };
}
