/**
 * Ceilings over all replicas: rate-limiter-flexible on Redis, one script call per place for minute and day together.
 *
 * Owns: names of places, what this replica does while Redis is away (its share, or a refusal), putting its own sends
 * back when Redis lost them. Refuses to own: the windows (`redis-sliding-log.ts`).
 * Keeps: every 60 s window holds at most the ceiling over all replicas (1), also over a loss of Redis' data, as long
 * as the replicas that sent are alive; without Redis nobody is let through unseen.
 */
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';
import type { Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import { ceilingWindowMs } from './ceiling.policy.ts';
import {
  holdAt,
  type CeilingHold,
  type CeilingRef,
  type Ceilings,
  type CeilingState,
  type Place,
  type TakeReply,
} from './ceilings.ts';
import { amountOf, listOf, numberOf } from './malformed-reply.ts';
import { PlaceTaken } from './memory-sliding-log.ts';
import { OwnSends } from './own-sends.ts';
import { runOwn } from './redis-commands.ts';
import type { RedisClient } from './redis-connection.ts';
import {
  leastWaitMs,
  mostWaitMs,
  positionsToRead,
  sentBefore,
  type PlacesRead,
} from './places-read.policy.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import { DayRefusal, dayKey, daySeconds, RedisSlidingLog, sendsKey } from './redis-sliding-log.ts';
import { shareOf, ShareLog } from './share-log.ts';

/** A read of the places is good for this long, and is not repeated sooner than `repeatMs` after. Milliseconds. */
const forecastMs = 250;
const repeatMs = 20;
const restorePerCall = 500;
const retryAwayMs = 1_000;

export interface RedisCeilings extends Ceilings {
  /** Puts this replica's own sends of the last window back, where Redis does not have them. */
  restore(): Promise<void>;
}

export function createRedisCeilings(dependencies: {
  readonly client: RedisClient;
  readonly link: RedisLink;
  readonly clock: Clock;
  readonly replica: { readonly id: string; count(): number };
  readonly whenDown: 'local' | 'deny';
}): RedisCeilings {
  const { client, link, clock, replica, whenDown } = dependencies;
  const share = new ShareLog(clock, () => replica.count());
  const days = new RateLimiterMemory({ points: 1, duration: daySeconds, keyPrefix: 'day' });
  const sends = new OwnSends(clock);
  const logs = new Map<string, RedisSlidingLog>();
  /** Of a taken place: its id in Redis, and its place in the share. */
  const details = new WeakMap<
    Place,
    { readonly id: string; readonly local: number; readonly remote: boolean }
  >();
  const reads = new Map<string, PlacesRead>();
  let places = 0;

  const logFor = ({ perMinute, perDay }: CeilingRef): RedisSlidingLog => {
    const name = `${perMinute ?? ''}/${perDay ?? ''}`;
    let log = logs.get(name);
    if (log === undefined) {
      const insurance = whenDown === 'local' ? share : null;
      logs.set(name, (log = new RedisSlidingLog({ link, client, perMinute, perDay, insurance })));
    }
    return log;
  };

  const taken = async (ceiling: CeilingRef, id: string, res: RateLimiterRes): Promise<TakeReply> => {
    const { key, perMinute, perDay } = ceiling;
    const remote = !(res instanceof PlaceTaken);
    const local = remote ? await share.note(key) : res.place;
    const place: Place = { minute: perMinute === null ? null : places, day: perDay !== null };
    details.set(place, { id, local, remote });
    if (perMinute !== null) sends.add(key, id);
    if (perDay !== null) await days.penalty(key, 1);
    const limit = remote ? (perMinute ?? 0) : share.share(perMinute ?? 0);
    const state = { limit, remaining: res.remainingPoints, nextPlaceMs: res.msBeforeNext };
    return { kind: 'taken', place, state: perMinute === null ? null : state };
  };

  /** Forgets a place that is about to be taken again or goes back. Resolves with its id in Redis, where it has one. */
  const forget = async ({ key, perDay }: CeilingRef, place: Place): Promise<string | null> => {
    const detail = details.get(place);
    if (detail === undefined || !details.delete(place)) return null;
    sends.remove(key, detail.id);
    await share.reward(key, 1, { place: detail.local });
    if (perDay !== null) await days.reward(key, 1);
    return detail.remote ? detail.id : null;
  };

  const refused = (ceiling: CeilingRef, waitMs: number, day: boolean): TakeReply => {
    const full = { limit: ceiling.perMinute ?? 0, remaining: 0, nextPlaceMs: waitMs };
    return { kind: 'refused', waitMs, day, state: day || ceiling.perMinute === null ? null : full };
  };

  /** Milliseconds until the day's share of this replica is there again; 0 = it is. */
  const dayShareMs = async ({ key, perDay }: CeilingRef): Promise<number> => {
    if (perDay === null) return 0;
    const seen = await days.get(key);
    return seen !== null && seen.consumedPoints >= shareOf(perDay, replica.count()) ? seen.msBeforeNext : 0;
  };

  const readPlaces = async (
    { key, perMinute, perDay }: CeilingRef,
    positions: readonly number[],
  ): Promise<PlacesRead & { readonly oldestMs: number }> => {
    const argv = [String(perMinute ?? ''), String(ceilingWindowMs), '', ...positions.map(String)];
    const told = await link.run('other', async (redis) =>
      listOf(await runOwn(redis, 'places', [sendsKey(key), dayKey(key)], argv)).map(numberOf),
    );
    const [live = 0, oldestMs = 0, ofDay = 0, dayMs = 0, ...waits] = told;
    const endsInMs = dayMs < 0 ? daySeconds * 1_000 : dayMs;
    const read = {
      at: clock.monotonic(),
      limit: perMinute,
      live,
      day: perDay === null ? null : { calls: Math.max(0, perDay - ofDay), endsInMs },
      waits: new Map(positions.map((k, index) => [k, waits[index] ?? 0])),
    };
    return { ...read, oldestMs };
  };

  const state = async (ceiling: CeilingRef): Promise<CeilingState | null> => {
    const { key, perMinute } = ceiling;
    if (perMinute === null) return null;
    try {
      const { live, oldestMs } = await readPlaces(ceiling, []);
      return { limit: perMinute, remaining: Math.max(0, perMinute - live), nextPlaceMs: oldestMs };
    } catch (failure) {
      if (!(failure instanceof RedisAway)) throw failure;
      const limit = share.share(perMinute);
      const seen = await share.get(key, { points: limit });
      return { limit, remaining: seen?.remainingPoints ?? limit, nextPlaceMs: seen?.msBeforeNext ?? 0 };
    }
  };

  /** The places as read lately, where that tells enough, or read now. */
  const placesFor = async (
    ceiling: CeilingRef,
    positions: readonly number[],
    withinMs: number | undefined,
  ): Promise<PlacesRead> => {
    const { perMinute, perDay } = ceiling;
    const known = reads.get(ceiling.key);
    const now = clock.monotonic();
    const ageMs = known === undefined ? Infinity : now - known.at;
    if (known?.limit === perMinute && (known.day === null) === (perDay === null) && ageMs < forecastMs) {
      const tells = positions.every((k) => isTold(known, k, now, ageMs < repeatMs ? undefined : withinMs));
      if (tells) return known;
    }
    const read = await readPlaces(ceiling, perMinute === null ? [] : positionsToRead(perMinute, positions));
    if (reads.size > 10_000) reads.clear();
    reads.set(ceiling.key, read);
    return read;
  };

  return {
    async take(ceiling, again, lateMs = 0): Promise<TakeReply> {
      const { key, perMinute, perDay } = ceiling;
      const none: Place = { minute: null, day: false };
      if (perMinute === null && perDay === null) return { kind: 'taken', place: none, state: null };
      places += 1;
      const id = (again === undefined ? null : await forget(ceiling, again)) ?? `${replica.id}.${places}`;
      try {
        if (!link.isUp && whenDown === 'local') {
          const waitMs = await dayShareMs(ceiling);
          if (waitMs > 0) return refused(ceiling, waitMs, true);
        }
        const options = { id, points: perMinute ?? Infinity, lateMs };
        return await taken(ceiling, id, await logFor(ceiling).consume(key, 1, options));
      } catch (failure) {
        if (failure instanceof DayRefusal) return refused(ceiling, failure.msBeforeNext, true);
        if (failure instanceof RateLimiterRes) return refused(ceiling, failure.msBeforeNext, false);
        if (failure instanceof RedisAway)
          throw new Refusal('limiter_unavailable', { retryInMs: retryAwayMs });
        throw failure;
      }
    },

    async giveBack(ceiling: CeilingRef, place: Place): Promise<void> {
      const id = await forget(ceiling, place);
      if (id === null) return;
      const { key } = ceiling;
      try {
        if (ceiling.perMinute !== null) {
          await logFor(ceiling).reward(key, 1, { id });
        } else {
          // Without a log there is no id to give back by: one try, rather too few places than too many.
          await link.run('reward', (redis) => redis.decr(dayKey(key)), { once: true });
        }
      } catch (failure) {
        if (!(failure instanceof RedisAway)) throw failure;
      }
    },

    async forecast(ceiling, positions, { agoMs, withinMs } = {}): Promise<readonly CeilingHold[]> {
      const { key, perMinute, perDay } = ceiling;
      const isNone = perMinute === null && perDay === null;
      if (isNone || positions.length === 0) return positions.map((k) => holdAt(0, k, null));
      const asOf = agoMs === undefined ? Infinity : clock.monotonic() - agoMs;
      try {
        const read = await placesFor(ceiling, positions, withinMs);
        const now = clock.monotonic();
        const sent = read.at > asOf ? sentBefore(read, read.at - asOf) : 0;
        return positions.map((position) => {
          const k = Math.max(1, position - sent);
          return holdAt(leastWaitMs(read, k, now) ?? 0, k, read.day);
        });
      } catch (failure) {
        if (!(failure instanceof RedisAway)) throw failure;
        if (whenDown === 'deny') return positions.map((k) => holdAt(0, k, null));
        const ofMinute = perMinute === null ? null : share.share(perMinute);
        return positions.map((k) =>
          holdAt(ofMinute === null ? 0 : share.placeInMs(key, ofMinute, k, agoMs), k, null),
        );
      }
    },

    state,

    async dayState(ceiling) {
      const { key, perDay } = ceiling;
      if (perDay === null) return null;
      const [used, ttl] = await link
        .run('other', async (redis) => {
          const [told, life] = await Promise.all([redis.get(dayKey(key)), redis.pttl(dayKey(key))]);
          return [amountOf(told ?? 0), numberOf(life)] as const;
        })
        .catch((failure: unknown) => {
          if (failure instanceof RedisAway) return [0, 0] as const;
          throw failure;
        });
      return {
        limit: perDay,
        remaining: Math.max(0, perDay - used),
        nextPlaceMs: Math.max(0, ttl),
      };
    },

    async restore() {
      for (const { key, sends: own } of sends.all()) {
        for (let from = 0; from < own.length; from += restorePerCall) {
          const part = own.slice(from, from + restorePerCall);
          const argv = [String(ceilingWindowMs), ...part.flatMap(({ id, ageMs }) => [String(ageMs), id])];
          await link.run('other', (redis) => runOwn(redis, 'restore', [sendsKey(key)], argv));
        }
      }
    },

    async close() {},
  };
}

/** The read tells when the k-th call finds a place or, with `withinMs`, whether that is within this time. */
function isTold(read: PlacesRead, k: number, now: number, withinMs: number | undefined): boolean {
  const leastMs = leastWaitMs(read, k, now);
  if (leastMs === null || withinMs === undefined || leastMs > withinMs) return leastMs !== null;
  const mostMs = mostWaitMs(read, k, now);
  return mostMs !== null && mostMs <= withinMs;
}
