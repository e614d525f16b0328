/**
 * The sliding log of `ceiling.policy.ts` on Redis behind rate-limiter-flexible's own API: `consume` resolves while slots are left and
 * rejects otherwise.
 *
 * `_upsert` and `_getRateLimiterRes` are methods of the library that a store overrides. They are private, so the library's version is
 * pinned and `test/limiter/contract.ts` checks its behaviour. Its insurance limiter is not used (`ceiling-store.ts`).
 * Keeps: one script call takes a slot of the minute and of the day's fixed window together; a refusal writes nothing (11).
 */
import { RateLimiterRedis, RateLimiterRes } from 'rate-limiter-flexible';
import { amountOf, listOf, malformed } from '../../redis/malformed-reply.ts';
import type { RedisClient } from '../../redis/connection.ts';
import { unavailable, type RedisHealth, type Unavailable } from '../../redis/health.ts';
import type { CeilingRef } from '../ceilings.ts';
import { ceilingWindowMs } from '../policy/ceiling.policy.ts';
import { Gathered } from './gathered.ts';
import { runOwn } from './scripts.ts';

export const daySeconds = 86_400;

/** Keys of one ceiling; the hash tag keeps them at one node of a Cluster. */
export const sendsKey = (key: string): string => `sluice:sends:{${key}}`;
export const dayKey = (key: string): string => `sluice:day:{${key}}`;

/** Maximum number of slots that one command takes. */
const maxTogether = 64;
/** Words of the reply for each of them. */
const wordsPerSlot = 4;

export type RedisTake =
  | {
      readonly kind: 'taken';
      readonly remaining: number;
      readonly nextSlotMs: number;
      /** Calls that the daily ceiling still allows; `null` = there is none. */
      readonly dayLeft: number | null;
    }
  | { readonly kind: 'refused'; readonly waitMs: number; readonly isDaily: boolean }
  | Unavailable;

interface Taking {
  readonly ceiling: CeilingRef;
  /** Names the slot; the same id never takes two. */
  readonly id: string;
  /** How much later than Redis counts it the call may leave. Milliseconds. */
  readonly lateMs: number;
}

/** What the library passes on: resolved when a slot was taken, rejected otherwise. */
class SlotResult extends RateLimiterRes {
  readonly reply: RedisTake;

  constructor(reply: RedisTake) {
    super(0, 0, reply.kind === 'taken' ? 1 : 2);
    this.reply = reply;
  }
}

export class RedisSlidingLog extends RateLimiterRedis {
  readonly #redis: RedisHealth;
  /** Calls that ask for slots under the same limits at the same time take them with one command. */
  readonly #taking = new Gathered<Taking, SlotResult>((_limits, asked) => this.#takeAll(asked), maxTogether);

  constructor(redis: RedisHealth, storeClient: RedisClient) {
    super({ storeClient, points: 1, duration: Math.ceil(ceilingWindowMs / 1_000) });
    this.#redis = redis;
  }

  async take(asked: Taking): Promise<RedisTake> {
    const { key, perMinute, perDay } = asked.ceiling;
    const limits = `${key} ${perMinute ?? ''} ${perDay ?? ''}`;
    const result = await this.consume(limits, 1, asked).catch((rejected: unknown) => rejected);
    if (result instanceof SlotResult) return result.reply;
    throw result;
  }

  _upsert(limits: string, _points: number, _ms: number, _force: boolean, asked: Taking): Promise<SlotResult> {
    return this.#taking.ask(limits, asked);
  }

  /** The library converts what `_upsert` resolves with. Nothing is left to convert here. */
  _getRateLimiterRes(_limits: string, _changed: number, result: SlotResult): SlotResult {
    return result;
  }

  async #takeAll(asked: readonly Taking[]): Promise<readonly SlotResult[]> {
    const [first] = asked;
    if (first === undefined) return [];
    const { key, perMinute, perDay } = first.ceiling;
    const limits = [String(perMinute ?? ''), String(perDay ?? '')];
    const calls = asked.flatMap(({ id, lateMs }) => [id, String(lateMs)]);
    const argv = [...limits, String(ceilingWindowMs), String(daySeconds), '', ...calls];
    const reply = await this.#redis.run('consume', async (client) => {
      const words = listOf(await runOwn(client, 'consume', { keys: [sendsKey(key), dayKey(key)], argv }));
      if (words.length !== wordsPerSlot * asked.length) return malformed();
      return asked.map((_one, at) =>
        takeOf(words.slice(wordsPerSlot * at, wordsPerSlot * (at + 1)), perMinute),
      );
    });
    const taken = reply.kind === 'reply' ? reply.value : asked.map(() => unavailable);
    return taken.map((each) => new SlotResult(each));
  }
}

/** Called inside `RedisHealth.run`, so that a malformed reply counts as no reply. */
function takeOf([kind, count, ms, left]: readonly unknown[], perMinute: number | null): RedisTake {
  const used = amountOf(count);
  const nextSlotMs = amountOf(ms);
  const dayLeft = left === '' ? null : amountOf(left);
  if (kind === 'day' || kind === 'minute')
    return { kind: 'refused', waitMs: nextSlotMs, isDaily: kind === 'day' };
  if (kind !== 'taken') return malformed();
  return { kind, remaining: Math.max(0, (perMinute ?? used) - used), nextSlotMs, dayLeft };
}
