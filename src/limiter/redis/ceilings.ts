/**
 * Ceilings in Redis for all replicas: rate-limiter-flexible, one script call per slot for minute and day together.
 *
 * Does not own: what this replica does while Redis is unavailable (`ceiling-store.ts`).
 * Invariant: every 60 s window holds at most the ceiling over all replicas (1).
 */
import { RateLimiterRedis, RateLimiterRes } from 'rate-limiter-flexible';
import type { Clock } from '../../clock.ts';
import type { CeilingKey } from '../../ids.ts';
import type { RedisClient } from '../../redis/connection.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { amountOf, listOf, malformed, numberOf } from '../../redis/scripts.ts';
import {
  type CeilingCounts,
  type CeilingRef,
  type CeilingState,
  ceilingWindowMs,
} from '../policy/ceiling.policy.ts';
import { runOwn } from './scripts.ts';

/** A read serves everybody who asks within so many milliseconds: for each call of a crowd one would cost too much. */
const readMs = 50;
/** Ceilings whose reads are kept. Each has as many numbers as the ceiling has sends in a window. */
const maxReads = 100;
/** Of a window with more sends not each is read: a wait is then exact to this part of the ceiling. */
const maxSends = 1_000;
/** Above so many sends in a window no wait is reckoned: whatever the reply claims, memory for it is bounded. */
const maxLog = 1_000_000;
const sendsPerRestore = 500;

/** A send, and how long ago it was. */
export interface PastSend {
  readonly id: string;
  readonly ageMs: number;
}

/** A call that asks for a slot of its ceiling. */
export interface Asking {
  readonly ceiling: CeilingRef;
  /** Names the slot; the same id never takes two. */
  readonly id: string;
  /** How much later than it is counted the call may leave. Milliseconds. */
  readonly lateMs: number;
}

/** A slot as this process counts it: the send time under the minute ceiling, and the end of the day that counts the call; `null` = not taken. */
export interface LocalSlot {
  readonly minute: number | null;
  readonly day: number | null;
}

export interface Taken {
  readonly kind: 'taken';
  /** Of the minute; `null` without one. */
  readonly state: CeilingState | null;
  /** Calls that the daily ceiling allows after this one; `null` = there is none. */
  readonly dayLeft: number | null;
  /** Absent: Redis counts it. */
  readonly local?: LocalSlot;
}

/** `isDaily`: the ceiling of the day refused; else that of the minute did. */
export interface RefusedSlot {
  readonly kind: 'refused';
  readonly waitMs: number;
  readonly isDaily: boolean;
}

/** `unavailable`: Redis is; it may count the slot. */
type RedisTake = Taken | RefusedSlot | { readonly kind: 'unavailable' };

/** What the library passes on: resolved when a slot was taken, rejected otherwise. */
export class SlotResult extends RateLimiterRes {
  readonly reply: RedisTake;

  constructor(reply: RedisTake) {
    super(0, 0, reply.kind === 'taken' ? 1 : 2);
    this.reply = reply;
  }
}

/** The reply in what a `consume` of the library came to. */
export async function replyIn<Reply extends RedisTake>(consumed: Promise<unknown>): Promise<Reply> {
  const result = await consumed.catch((rejected: unknown) => rejected);
  if (result instanceof SlotResult) return result.reply as Reply;
  throw result;
}

export const daySeconds = 86_400;

/** Keys of one ceiling; the hash tag keeps them at one node of a Cluster. */
export const sendsKey = (key: string): string => `sluice:sends:{${key}}`;
export const dayKey = (key: string): string => `sluice:day:{${key}}`;

/** Maximum number of slots that one command takes. */
const maxTogether = 64;
/** Words of the reply for each of them. */
const wordsPerSlot = 4;

interface Asked extends PromiseWithResolvers<SlotResult> {
  readonly asking: Asking;
}

/**
 * The sliding log of `ceiling.policy.ts` on Redis behind rate-limiter-flexible's own API. `_upsert` and `_getRateLimiterRes` are methods
 * of the library that a store overrides. They are private, so the library's version is pinned and `test/limiter/stores.test.ts` checks its
 * behaviour. Its insurance limiter is not used (`ceiling-store.ts`). One script call takes a slot of the minute and of the day's fixed
 * window together; a refusal writes nothing (11).
 */
export class RedisCeilings extends RateLimiterRedis {
  readonly #redis: RedisHealth;
  readonly #clock: Clock;
  /** Those that wait while a command for slots under the same limits is under way: they go together in the next one, in order. */
  readonly #waiting = new Map<string, Asked[]>();
  /** By the monotonic milliseconds at which each was asked for. `null`: Redis is unavailable. */
  readonly #reads = new Map<
    CeilingKey,
    { readonly at: number; readonly read: Promise<CeilingCounts | null> }
  >();

  constructor(client: RedisClient, redis: RedisHealth, clock: Clock) {
    super({ storeClient: client, points: 1, duration: Math.ceil(ceilingWindowMs / 1_000) });
    this.#redis = redis;
    this.#clock = clock;
  }

  /** Takes the slot of this name, once however often it is asked for. */
  async take(asking: Asking): Promise<RedisTake> {
    const { key, perMinute, perDay } = asking.ceiling;
    const limits = `${key} ${perMinute ?? ''} ${perDay ?? ''}`;
    const reply = await replyIn(this.consume(limits, 1, asking));
    // Others have taken slots that a read of a moment ago shows as free.
    if (reply.kind === 'refused') this.#reads.delete(key);
    return reply;
  }

  _upsert(
    limits: string,
    _points: number,
    _ms: number,
    _force: boolean,
    asking: Asking,
  ): Promise<SlotResult> {
    const one = { asking, ...Promise.withResolvers<SlotResult>() };
    const line = this.#waiting.get(limits);
    if (line === undefined) void this.#takeInTurn(limits, one);
    else line.push(one);
    return one.promise;
  }

  /** The library converts what `_upsert` resolves with. Nothing is left to convert here. */
  _getRateLimiterRes(_limits: string, _changed: number, result: SlotResult): SlotResult {
    return result;
  }

  async #takeInTurn(limits: string, first: Asked): Promise<void> {
    const line: Asked[] = [];
    this.#waiting.set(limits, line);
    for (let batch = [first]; batch.length > 0; batch = line.splice(0, maxTogether)) {
      try {
        const replies = await this.#takeAll(
          first.asking.ceiling,
          batch.map(({ asking }) => asking),
        );
        for (const [at, { resolve }] of batch.entries())
          resolve(new SlotResult(replies?.[at] ?? { kind: 'unavailable' }));
      } catch (failure) {
        for (const { reject } of batch) reject(failure);
      }
    }
    this.#waiting.delete(limits);
  }

  /** `null` = Redis is unavailable. */
  #takeAll({ key, perMinute, perDay }: CeilingRef, asked: readonly Asking[]): Promise<RedisTake[] | null> {
    const limits = [String(perMinute ?? ''), String(perDay ?? '')];
    const calls = asked.flatMap(({ id, lateMs }) => [id, String(lateMs)]);
    const argv = [...limits, String(ceilingWindowMs), String(daySeconds), '', ...calls];
    return this.#redis.run('consume', async (client) => {
      const words = listOf(await runOwn(client, 'consume', { keys: [sendsKey(key), dayKey(key)], argv }));
      if (words.length !== wordsPerSlot * asked.length) return malformed();
      return asked.map((_one, at) =>
        takeOf(words.slice(wordsPerSlot * at, wordsPerSlot * (at + 1)), perMinute),
      );
    });
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

  /** Sends and calls as Redis counts them now, or did a moment ago; `null` = it is unavailable. */
  read(key: CeilingKey): Promise<CeilingCounts | null> {
    const at = this.#clock.monotonic();
    const known = this.#reads.get(key);
    if (known !== undefined && at - known.at < readMs) return known.read;
    const read = this.#read(key);
    if (this.#reads.size >= maxReads) this.#reads.clear();
    this.#reads.set(key, { at, read });
    return read;
  }

  async #read(key: CeilingKey): Promise<CeilingCounts | null> {
    const argv = [String(ceilingWindowMs), '', String(maxSends)];
    const reply = await this.#redis.run('other', async (client) =>
      listOf(await runOwn(client, 'slots', { keys: [sendsKey(key), dayKey(key)], argv })).map(numberOf),
    );
    if (reply === null) return null;
    const [live = 0, calls = 0, leftMs = 0, ...agesMs] = reply;
    const at = this.#clock.monotonic();
    const every = Math.max(1, Math.ceil(live / maxSends));
    const log = Array.from(
      { length: Math.min(live, maxLog) },
      (_, n) => at - (agesMs[Math.floor(n / every)] ?? 0),
    );
    return { log, day: leftMs < 0 ? null : { calls, endsAt: at + leftMs } };
  }

  /** Puts sends of the last window back where Redis does not have them. False = Redis is unavailable. */
  async restore(key: CeilingKey, sends: readonly PastSend[]): Promise<boolean> {
    for (let from = 0; from < sends.length; from += sendsPerRestore) {
      const some = sends.slice(from, from + sendsPerRestore);
      const argv = [String(ceilingWindowMs), ...some.flatMap(({ id, ageMs }) => [String(ageMs), id])];
      const missing = await this.#redis.run('other', (client) =>
        runOwn(client, 'restore', { keys: [sendsKey(key)], argv }),
      );
      if (missing === null) return false;
    }
    return true;
  }
}

/** Called inside `RedisHealth.run`, so that a malformed reply counts as no reply. */
function takeOf([kind, count, ms, left]: readonly unknown[], limit: number | null): RedisTake {
  const used = amountOf(count);
  const nextSlotMs = amountOf(ms);
  const dayLeft = left === '' ? null : amountOf(left);
  if (kind === 'day' || kind === 'minute')
    return { kind: 'refused', waitMs: nextSlotMs, isDaily: kind === 'day' };
  if (kind !== 'taken') return malformed();
  const state = limit === null ? null : { limit, remaining: Math.max(0, limit - used), nextSlotMs };
  return { kind, state, dayLeft };
}
