/**
 * Ceilings of one process: the sliding log per minute and rate-limiter-flexible's stock fixed window per day.
 *
 * A call needs both places. The minute is asked first because it refuses most often and without a trace; when the day
 * refuses, the minute's place goes back.
 */
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';
import type { Clock } from '../clock.ts';
import type { CeilingRef, Ceilings, CeilingState, Place, TakeReply } from './ceilings.ts';
import { MemorySlidingLog } from './memory-sliding-log.ts';

const daySeconds = 86_400;

export function createMemoryCeilings(clock: Clock): Ceilings {
  const minutes = new MemorySlidingLog({ clock, points: 0, keyPrefix: 'minute' });
  const days = new Map<number, RateLimiterMemory>();

  const dayLimiter = (perDay: number): RateLimiterMemory => {
    let limiter = days.get(perDay);
    if (limiter === undefined) {
      limiter = new RateLimiterMemory({ points: perDay, duration: daySeconds, keyPrefix: 'day' });
      days.set(perDay, limiter);
    }
    return limiter;
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

  const giveBack = async (ceiling: CeilingRef, place: Place): Promise<void> => {
    if (place.minute !== null) await minutes.reward(ceiling.key, 1, { place: place.minute });
    if (place.day && ceiling.perDay !== null) await dayLimiter(ceiling.perDay).reward(ceiling.key, 1);
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
      try {
        if (ceiling.perDay !== null) await dayLimiter(ceiling.perDay).consume(ceiling.key, 1);
      } catch (refusal) {
        if (!(refusal instanceof RateLimiterRes)) throw refusal;
        if (minute !== null) await minutes.reward(ceiling.key, 1, { place: minute });
        await dayLimiter(ceiling.perDay ?? 0).reward(ceiling.key, 1);
        return { kind: 'refused', waitMs: refusal.msBeforeNext, day: true, state: await read(ceiling) };
      }
      return { kind: 'taken', place: { minute, day: ceiling.perDay !== null }, state };
    },

    giveBack,

    async forecast(ceiling, positions, { agoMs } = {}): Promise<readonly number[]> {
      const { perMinute } = ceiling;
      if (perMinute === null) return positions.map(() => 0);
      return positions.map((k) => minutes.placeInMs(ceiling.key, perMinute, k, agoMs));
    },

    state: read,
    async dayState(ceiling) {
      if (ceiling.perDay === null) return null;
      const seen = await dayLimiter(ceiling.perDay).get(ceiling.key);
      return {
        limit: ceiling.perDay,
        remaining: Math.max(0, ceiling.perDay - (seen?.consumedPoints ?? 0)),
        nextPlaceMs: seen?.msBeforeNext ?? 0,
      };
    },
    async close() {},
  };
}
