/**
 * The sliding log of `ceiling.policy.ts` on Redis behind rate-limiter-flexible's own API: `consume` resolves while
 * slots are left and rejects with a `SlotResult` whose `msBeforeNext` is the true wait.
 *
 * Owns: the methods of the library that a store overrides (`_upsert`, `_get`, `_delete`, `_getRateLimiterRes`). They are private, so
 * the library's version is pinned and `test/limiter/contract.ts` checks its behaviour. Does not own: the scripts (`lua/`), what is
 * asked while Redis is unavailable (`limiter/failover/`; the library's insurance limiter is not used).
 * Keeps: one script call takes a slot of the minute and of the day's fixed window together; a refusal writes nothing (11); a slot is
 * given back by its id.
 */
import { RateLimiterRedis, RateLimiterRes } from 'rate-limiter-flexible';
import { ceilingWindowMs } from '../policy/ceiling.policy.ts';
import { Gathered } from './gathered.ts';
import { amountOf, listOf, malformed } from '../../redis/malformed-reply.ts';
import { runOwn } from './scripts.ts';
import type { RedisClient } from '../../redis/connection.ts';
import type { RedisHealth } from '../../redis/health.ts';

export const daySeconds = 86_400;

/** Keys of one ceiling; the hash tag keeps them at one node of a Cluster. */
export const sendsKey = (key: string): string => `sluice:sends:{${key}}`;
export const dayKey = (key: string): string => `sluice:day:{${key}}`;

const keysOf = (rlKey: string): [sends: string, day: string] => [
  rlKey,
  dayKey(rlKey.slice('sluice:sends:{'.length, -1)),
];

/** Maximum number of slots that one command takes. */
const maxTogether = 64;
/** Words of the reply for each of them. */
const wordsPerSlot = 4;

interface Taking {
  readonly id: string;
  readonly lateMs: number;
}

/** Options of one `consume` or `reward`. */
export interface RedisLogOptions {
  /** Names the slot; the same id never takes two. */
  readonly id?: string;
  /** How much later than Redis counts it the call may leave. Milliseconds. */
  readonly lateMs?: number;
}

interface Slots {
  readonly remaining: number;
  readonly nextMs: number;
  readonly used: number;
  readonly dayLeft: number | null;
}

/** What the library passes on when a slot was asked for: resolved when it was taken, rejected otherwise. */
export class SlotResult extends RateLimiterRes {
  readonly outcome: 'taken' | 'minute' | 'day' | 'unavailable';
  /** Calls that the daily ceiling still allows; `null` = there is none. */
  readonly dayLeft: number | null;

  constructor(outcome: SlotResult['outcome'], { remaining, nextMs, used, dayLeft }: Slots) {
    super(remaining, nextMs, used, used === 1);
    this.outcome = outcome;
    this.dayLeft = dayLeft;
  }
}

export class RedisSlidingLog extends RateLimiterRedis {
  readonly #redis: RedisHealth;
  readonly #perMinute: number | null;
  readonly #perDay: number | null;
  readonly #taking = new Gathered<Taking, SlotResult>((key, asked) => this.#take(key, asked), maxTogether);

  /** `null` = no such ceiling; at least one of both is set. */
  constructor(options: {
    readonly redis: RedisHealth;
    readonly client: RedisClient;
    readonly perMinute: number | null;
    readonly perDay: number | null;
  }) {
    super({
      storeClient: options.client,
      points: options.perMinute ?? Number.MAX_SAFE_INTEGER,
      duration: Math.ceil(ceilingWindowMs / 1000),
      keyPrefix: 'sluice:sends',
    });
    this.#redis = options.redis;
    this.#perMinute = options.perMinute;
    this.#perDay = options.perDay;
  }

  /** The key in Redis that the library uses for a ceiling, with its hash tag. */
  override getKey(key: string): string {
    return sendsKey(key);
  }

  /** Takes a slot (`points` 1) or gives one back (-1). */
  async _upsert(
    rlKey: string,
    points: number,
    _msDuration: number,
    force: boolean,
    { id, lateMs = 0 }: RedisLogOptions = {},
  ): Promise<RateLimiterRes> {
    if (force) throw new Error('a sliding log has no set or block');
    if (id === undefined || Math.abs(points) !== 1)
      throw new Error('a sliding log takes one named slot at a time');
    if (points > 0) return this.#taking.ask(rlKey, { id, lateMs });
    const day = this.#perDay === null ? '0' : '1';
    await this.#redis.run('reward', async (client) =>
      amountOf(await runOwn(client, 'giveback', { keys: keysOf(rlKey), argv: [id, day] })),
    );
    return new RateLimiterRes(0, 0, 0, false);
  }

  /** Takes slots for calls that ask at the same time with one command; each call has a reply of its own. */
  async #take(rlKey: string, asked: readonly Taking[]): Promise<readonly SlotResult[]> {
    const keys = keysOf(rlKey);
    const limits = [String(this.#perMinute ?? ''), String(this.#perDay ?? '')];
    const calls = asked.flatMap(({ id, lateMs }) => [id, String(lateMs)]);
    const argv = [...limits, String(ceilingWindowMs), String(daySeconds), '', ...calls];
    const reply = await this.#redis.run('consume', async (client) => {
      const words = listOf(await runOwn(client, 'consume', { keys, argv }));
      if (words.length !== wordsPerSlot * asked.length) return malformed();
      return asked.map((_one, at) => this.#read(words.slice(wordsPerSlot * at, wordsPerSlot * (at + 1))));
    });
    return reply.kind === 'reply' ? reply.value : asked.map(() => this.#refusal('unavailable', 0));
  }

  async _get(rlKey: string): Promise<RateLimiterRes | null> {
    const argv = [String(this.#perMinute ?? ''), String(ceilingWindowMs), ''];
    const reply = await this.#redis.run('other', async (client) => {
      const [live, oldestMs] = listOf(await runOwn(client, 'slots', { keys: [rlKey], argv }));
      return amountOf(live) === 0 ? null : this.#read(['taken', live, oldestMs, '']);
    });
    return reply.kind === 'reply' ? reply.value : this.#refusal('unavailable', 0);
  }

  async _delete(rlKey: string): Promise<boolean> {
    const reply = await this.#redis.run('other', (client) => client.del(rlKey));
    return reply.kind === 'reply' && reply.value > 0;
  }

  /** The library converts what `_upsert` and `_get` resolve with. Nothing is left to convert here. */
  _getRateLimiterRes(_rlKey: string, _changed: number, read: RateLimiterRes): RateLimiterRes {
    return read;
  }

  /** A result that the library rejects, because it has used more than its points. */
  #refusal(outcome: SlotResult['outcome'], nextMs: number): SlotResult {
    return new SlotResult(outcome, { remaining: 0, nextMs, used: this.points + 1, dayLeft: null });
  }

  /** Called inside `RedisHealth.run`, so that a malformed reply counts as no reply. */
  #read(reply: unknown): SlotResult {
    const [kind, count, ms, left] = listOf(reply);
    const used = amountOf(count);
    const nextMs = amountOf(ms);
    const dayLeft = left === '' ? null : amountOf(left);
    if (kind === 'day' || kind === 'minute') return this.#refusal(kind, nextMs);
    if (kind !== 'taken') return malformed();
    return new SlotResult('taken', { remaining: Math.max(0, this.points - used), nextMs, used, dayLeft });
  }
}
