/**
 * Ceilings in Redis for all replicas: rate-limiter-flexible, one script call per slot for minute and day together.
 *
 * Owns: asking Redis, reading slots a little ahead for forecasts. Does not own: the windows (`sliding-log.ts`),
 * what this replica does while Redis is unavailable (`ceiling-store.ts`).
 * Invariant: every 60 s window holds at most the ceiling over all replicas (1).
 */
import type { Clock } from '../../clock.ts';
import { ceilingWindowMs, holdAt, type CeilingHold } from '../policy/ceiling.policy.ts';
import type { CeilingKey, CeilingRef, CeilingState } from '../ceilings.ts';
import { amountOf, listOf, numberOf } from '../../redis/malformed-reply.ts';
import {
  dayLeft,
  minWaitMs,
  positionsToRead,
  sentBefore,
  type SlotsRead,
} from '../policy/ceiling-read.policy.ts';
import { runOwn } from './scripts.ts';
import type { RedisClient } from '../../redis/connection.ts';
import type { RedisHealth, Unavailable } from '../../redis/health.ts';
import { dayKey, daySeconds, RedisSlidingLog, sendsKey, type RedisTake } from './sliding-log.ts';

/** A read of the slots serves everybody who asks within so many milliseconds: for each call of a crowd one would cost too much. */
const readMs = 20;
const maxReads = 10_000;
const sendsPerRestore = 500;

/** A send, and how long ago it was. */
export interface PastSend {
  readonly id: string;
  readonly ageMs: number;
}

export class RedisCeilings {
  readonly #redis: RedisHealth;
  readonly #clock: Clock;
  readonly #log: RedisSlidingLog;
  readonly #reads = new Map<CeilingKey, SlotsRead>();

  constructor(parts: { readonly client: RedisClient; readonly redis: RedisHealth; readonly clock: Clock }) {
    this.#redis = parts.redis;
    this.#clock = parts.clock;
    this.#log = new RedisSlidingLog(parts.redis, parts.client);
  }

  /** Takes the slot of this name, once however often it is asked for. `lateMs`: as in the port. */
  async take(ceiling: CeilingRef, id: string, lateMs: number): Promise<RedisTake> {
    const reply = await this.#log.take({ ceiling, id, lateMs });
    // Others have taken slots that a read of a moment ago shows as free.
    if (reply.kind === 'refused') this.#reads.delete(ceiling.key);
    return reply;
  }

  /** While Redis is unavailable the slot stays taken: the ceiling then allows too few sends, never too many. */
  async giveSlotBack({ key, perMinute, perDay }: CeilingRef, id: string): Promise<void> {
    // The day is a plain counter without ids: a repeated decrement would count twice, so it is tried once.
    const isOfDayOnly = perMinute === null;
    const argv = [isOfDayOnly ? '' : id, perDay === null ? '0' : '1'];
    const call = { keys: [sendsKey(key), dayKey(key)], argv };
    const giveBack = async (client: RedisClient): Promise<number> =>
      amountOf(await runOwn(client, 'giveback', call));
    await this.#redis.run('reward', giveBack, { once: isOfDayOnly });
  }

  async forecast(
    ceiling: CeilingRef,
    positions: readonly number[],
    agoMs?: number,
  ): Promise<readonly CeilingHold[] | Unavailable> {
    const asOf = agoMs === undefined ? null : this.#clock.monotonic() - agoMs;
    const read = await this.#slotsFor(ceiling, positions);
    if ('kind' in read) return read;
    const now = this.#clock.monotonic();
    const sent = asOf !== null && read.at > asOf ? sentBefore(read, read.at - asOf) : 0;
    return positions.map((position) => {
      const k = Math.max(1, position - sent);
      const day = ceiling.perDay === null ? null : dayLeft(read, ceiling.perDay, now);
      return holdAt(minWaitMs(read, k, now) ?? 0, k, day);
    });
  }

  async state(ceiling: CeilingRef, perMinute: number): Promise<CeilingState | Unavailable> {
    const read = await this.#slotsFor(ceiling, []);
    if ('kind' in read) return read;
    const { at, live, oldestMs } = read;
    const nextSlotMs = Math.max(0, oldestMs - (this.#clock.monotonic() - at));
    return { limit: perMinute, remaining: Math.max(0, perMinute - live), nextSlotMs };
  }

  async dayState(ceiling: CeilingRef, perDay: number): Promise<CeilingState | Unavailable> {
    const read = await this.#slotsFor(ceiling, []);
    if ('kind' in read) return read;
    const { calls, endsInMs } = dayLeft(read, perDay, this.#clock.monotonic());
    return { limit: perDay, remaining: calls, nextSlotMs: read.ofDay === 0 ? 0 : endsInMs };
  }

  /** Puts sends of the last window back where Redis does not have them. False = Redis is unavailable. */
  async restore(key: CeilingKey, sends: readonly PastSend[]): Promise<boolean> {
    for (let from = 0; from < sends.length; from += sendsPerRestore) {
      const some = sends.slice(from, from + sendsPerRestore);
      const argv = [String(ceilingWindowMs), ...some.flatMap(({ id, ageMs }) => [String(ageMs), id])];
      const reply = await this.#redis.run('other', (client) =>
        runOwn(client, 'restore', { keys: [sendsKey(key)], argv }),
      );
      if (reply.kind === 'unavailable') return false;
    }
    return true;
  }

  /** The slots as read a moment ago, or read now. */
  async #slotsFor(ceiling: CeilingRef, positions: readonly number[]): Promise<SlotsRead | Unavailable> {
    const { key, perMinute } = ceiling;
    const known = this.#reads.get(key);
    const now = this.#clock.monotonic();
    const isGood = known !== undefined && known.limit === perMinute && now - known.at < readMs;
    if (isGood && positions.every((k) => minWaitMs(known, k, now) !== null)) return known;
    const wanted = perMinute === null || positions.length === 0 ? [] : positionsToRead(perMinute, positions);
    const read = await this.#read(ceiling, wanted);
    if ('kind' in read) return read;
    if (this.#reads.size > maxReads) this.#reads.clear();
    this.#reads.set(key, read);
    return read;
  }

  async #read(
    { key, perMinute }: CeilingRef,
    positions: readonly number[],
  ): Promise<SlotsRead | Unavailable> {
    const argv = [String(perMinute ?? ''), String(ceilingWindowMs), '', ...positions.map(String)];
    const reply = await this.#redis.run('other', async (client) =>
      listOf(await runOwn(client, 'slots', { keys: [sendsKey(key), dayKey(key)], argv })).map(numberOf),
    );
    if (reply.kind === 'unavailable') return reply;
    const [live = 0, oldestMs = 0, ofDay = 0, dayMs = 0, ...waits] = reply.value;
    return {
      at: this.#clock.monotonic(),
      limit: perMinute,
      live,
      ofDay,
      dayEndsInMs: dayMs < 0 ? daySeconds * 1_000 : dayMs,
      waits: new Map(positions.map((k, index) => [k, waits[index] ?? 0])),
      oldestMs,
    };
  }
}
