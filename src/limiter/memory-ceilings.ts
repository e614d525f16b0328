/**
 * Ceilings of one process: the sliding log per minute and rate-limiter-flexible's stock fixed window per day.
 *
 * A call needs both places. The minute is asked first because it refuses most often and without a trace; when the day
 * refuses, the minute's place goes back.
 */
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';
import type { Clock } from '../clock.ts';
import {
  holdAt,
  type CeilingHold,
  type CeilingRef,
  type Ceilings,
  type CeilingState,
  type DayLeft,
  type Place,
  type TakeReply,
} from './ceilings.ts';
import { MemorySlidingLog } from './memory-sliding-log.ts';

const daySeconds = 86_400;

export function createMemoryCeilings(clock: Clock): Ceilings {
  const minutes = new MemorySlidingLog({ clock, points: 0, keyPrefix: 'minute' });
  // One count per key, whatever the limit is at the moment: it is compared here, so that a limit may change with the count
  // going on.
  const days = new RateLimiterMemory({
    points: Number.MAX_SAFE_INTEGER,
    duration: daySeconds,
    keyPrefix: 'day',
  });

  /** Counts a call of the day, or says how long the day lasts yet. */
  const takeOfDay = async (
    key: string,
    perDay: number,
  ): Promise<{ readonly refusedForMs: number | null }> => {
    const counted = await days.consume(key, 1);
    if (counted.consumedPoints <= perDay) return { refusedForMs: null };
    await days.reward(key, 1);
    return { refusedForMs: counted.msBeforeNext };
  };

  const read = async (ceiling: CeilingRef): Promise<CeilingState | null> => {
    if (ceiling.perMinute === null) return null;
    const seen = await minutes.get(ceiling.key, { points: ceiling.perMinute });
    return {
      limit: ceiling.perMinute,
      remaining: seen?.remainingPoints ?? ceiling.perMinute,
      nextPlaceMs: seen?.msBeforeNext ?? 0,
    };
  };

  const dayLeft = async ({ key, perDay }: CeilingRef): Promise<DayLeft | null> => {
    if (perDay === null) return null;
    const seen = await days.get(key);
    if (seen === null) return { calls: perDay, endsInMs: daySeconds * 1_000 };
    return { calls: Math.max(0, perDay - seen.consumedPoints), endsInMs: seen.msBeforeNext };
  };

  const giveBack = async (ceiling: CeilingRef, place: Place): Promise<void> => {
    if (place.minute !== null) await minutes.reward(ceiling.key, 1, { place: place.minute });
    if (place.day) await days.reward(ceiling.key, 1);
  };

  return {
    async take(ceiling, again, lateMs = 0): Promise<TakeReply> {
      if (again !== undefined) await giveBack(ceiling, again);
      let minute: number | null = null;
      let state: CeilingState | null = null;
      try {
        if (ceiling.perMinute !== null) {
          const taken = await minutes.consume(ceiling.key, 1, { points: ceiling.perMinute, lateMs });
          minute = taken.place;
          state = {
            limit: ceiling.perMinute,
            remaining: taken.remainingPoints,
            nextPlaceMs: taken.msBeforeNext,
          };
        }
      } catch (refusal) {
        if (!(refusal instanceof RateLimiterRes)) throw refusal;
        const full = { limit: ceiling.perMinute ?? 0, remaining: 0, nextPlaceMs: refusal.msBeforeNext };
        return { kind: 'refused', waitMs: refusal.msBeforeNext, day: false, state: full };
      }
      if (ceiling.perDay === null) return { kind: 'taken', place: { minute, day: false }, state };
      const { refusedForMs } = await takeOfDay(ceiling.key, ceiling.perDay);
      if (refusedForMs === null) return { kind: 'taken', place: { minute, day: true }, state };
      if (minute !== null) await minutes.reward(ceiling.key, 1, { place: minute });
      return { kind: 'refused', waitMs: refusedForMs, day: true, state: await read(ceiling) };
    },

    giveBack,

    async forecast(ceiling, positions, { agoMs } = {}): Promise<readonly CeilingHold[]> {
      const { key, perMinute } = ceiling;
      const day = await dayLeft(ceiling);
      return positions.map((k) => {
        const minuteMs = perMinute === null ? 0 : minutes.placeInMs(key, perMinute, k, agoMs);
        return holdAt(minuteMs, k, day);
      });
    },

    state: read,
    async dayState(ceiling) {
      if (ceiling.perDay === null) return null;
      const seen = await days.get(ceiling.key);
      return {
        limit: ceiling.perDay,
        remaining: Math.max(0, ceiling.perDay - (seen?.consumedPoints ?? 0)),
        nextPlaceMs: seen?.msBeforeNext ?? 0,
      };
    },
    async close() {},
  };
}
