/**
 * Ceilings in Redis for all replicas: rate-limiter-flexible, one script call per slot for minute and day together.
 *
 * Does not own: the windows (`sliding-log.ts`), what this replica does while Redis is unavailable (`ceiling-store.ts`).
 * Invariant: every 60 s window holds at most the ceiling over all replicas (1).
 */
import type { Clock } from '../../clock.ts';
import type { CeilingKey } from '../../ids.ts';
import type { RedisClient } from '../../redis/connection.ts';
import type { RedisHealth, Unavailable } from '../../redis/health.ts';
import { amountOf, listOf, numberOf } from '../../redis/malformed-reply.ts';
import type { CeilingRef } from '../ceilings.ts';
import type { CeilingView } from '../policy/ceiling-view.policy.ts';
import { ceilingWindowMs } from '../policy/ceiling.policy.ts';
import { runOwn } from './scripts.ts';
import { dayKey, RedisSlidingLog, sendsKey, type RedisTake } from './sliding-log.ts';

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

type Read = (CeilingView & { readonly kind: 'view' }) | Unavailable;

export class RedisCeilings {
  readonly #redis: RedisHealth;
  readonly #clock: Clock;
  readonly #log: RedisSlidingLog;
  /** Monotonic milliseconds at which each was asked for. */
  readonly #reads = new Map<CeilingKey, { readonly at: number; readonly read: Promise<Read> }>();

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

  /** Sends and calls as Redis counts them now, or did a moment ago. */
  read(key: CeilingKey): Promise<Read> {
    const at = this.#clock.monotonic();
    const known = this.#reads.get(key);
    if (known !== undefined && at - known.at < readMs) return known.read;
    const read = this.#read(key);
    if (this.#reads.size >= maxReads) this.#reads.clear();
    this.#reads.set(key, { at, read });
    return read;
  }

  async #read(key: CeilingKey): Promise<Read> {
    const call = {
      keys: [sendsKey(key), dayKey(key)],
      argv: [String(ceilingWindowMs), '', String(maxSends)],
    };
    const reply = await this.#redis.run('other', async (client) =>
      listOf(await runOwn(client, 'slots', call)).map(numberOf),
    );
    if (reply.kind === 'unavailable') return reply;
    const [live = 0, calls = 0, dayMs = 0, ...agesMs] = reply.value;
    const at = this.#clock.monotonic();
    const every = Math.max(1, Math.ceil(live / maxSends));
    const log = Array.from(
      { length: Math.min(live, maxLog) },
      (_, n) => at - (agesMs[Math.floor(n / every)] ?? 0),
    );
    return { kind: 'view', log, day: dayMs < 0 ? null : { calls, endsAt: at + dayMs } };
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
}
