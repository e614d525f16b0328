/**
 * The sliding log of `ceiling.policy.ts` on Redis behind rate-limiter-flexible's own API: `consume` resolves while
 * slots are left and rejects with a `SlotResult` whose `msBeforeNext` is the true wait. One script call, for the day's
 * fixed window too; a refusal writes nothing; a slot goes back by its id.
 *
 * Owns: the hooks of the library that a store has (`_upsert`, `_get`, `_delete`, `_getRateLimiterRes`; they are private,
 * so its version is pinned and `test/limiter/contract.ts` holds it to its word). Does not own: what is asked instead
 * while Redis is unavailable (`failover`); the library's insurance limiter is not used.
 */
import { RateLimiterRedis, RateLimiterRes } from 'rate-limiter-flexible';
import { ceilingWindowMs } from '../policy/ceiling.policy.ts';
import { Gathered } from './gathered.ts';
import { amountOf, listOf, malformed } from './client/malformed-reply.ts';
import { runInLibrary, runOwn } from './protocol/commands.ts';
import type { RedisClient } from './client/connection.ts';
import type { RedisHealth } from './client/health.ts';

export const daySeconds = 86_400;

/** Keys of one ceiling; the tag keeps them in one slot of a Cluster. */
export const sendsKey = (key: string): string => `sluice:sends:{${key}}`;
export const dayKey = (key: string): string => `sluice:day:{${key}}`;

const keysOf = (rlKey: string): [sends: string, day: string] => [
  rlKey,
  dayKey(rlKey.slice('sluice:sends:{'.length, -1)),
];

/** Slots that one command takes at most. */
const maxTogether = 64;

interface Taking {
  readonly id: string;
  readonly lateMs: number;
}

/** Options of a call. */
export interface RedisLogOptions {
  /** Names the slot; the same id never takes two. */
  readonly id?: string;
  /** How much later than Redis counts it the call may leave. Milliseconds. */
  readonly lateMs?: number;
}

/** What the library passes on when a slot was asked for: resolved when it was taken, rejected otherwise. */
export class SlotResult extends RateLimiterRes {
  readonly outcome: 'taken' | 'minute' | 'day' | 'unavailable';

  constructor(outcome: SlotResult['outcome'], slots: { remaining: number; nextMs: number; used: number }) {
    super(slots.remaining, slots.nextMs, slots.used, slots.used === 1);
    this.outcome = outcome;
  }
}

/** The library refuses what has consumed more than its points. */
const refusal = (outcome: SlotResult['outcome'], nextMs: number): SlotResult =>
  new SlotResult(outcome, { remaining: 0, nextMs, used: Infinity });

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

  /** The library's name of a key, with the tag of its slot. */
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

  /** Calls of one workspace that ask at once ask together; each has its own reply. */
  async #take(rlKey: string, asked: readonly Taking[]): Promise<readonly SlotResult[]> {
    const keys = keysOf(rlKey);
    const limits = [String(this.#perMinute ?? ''), String(this.#perDay ?? '')];
    const calls = asked.flatMap(({ id, lateMs }) => [id, String(lateMs)]);
    const argv = [...limits, String(ceilingWindowMs), String(daySeconds), '', ...calls];
    const reply = await this.#redis.run('consume', async (client) => {
      const words = listOf(await runInLibrary(client, 'consume', { keys, argv }));
      if (words.length !== 3 * asked.length) return malformed();
      return asked.map((_one, at) => this.#read(words.slice(3 * at, 3 * at + 3)));
    });
    return reply.kind === 'reply' ? reply.value : asked.map(() => refusal('unavailable', 0));
  }

  async _get(rlKey: string): Promise<RateLimiterRes | null> {
    const argv = [String(this.#perMinute ?? 0), String(ceilingWindowMs), ''];
    const reply = await this.#redis.run('other', async (client) => {
      const [live, oldestMs] = listOf(await runOwn(client, 'slots', { keys: [rlKey], argv }));
      return amountOf(live) === 0 ? null : this.#read(['taken', live, oldestMs]);
    });
    return reply.kind === 'reply' ? reply.value : refusal('unavailable', 0);
  }

  async _delete(rlKey: string): Promise<boolean> {
    const reply = await this.#redis.run('other', (client) => client.del(rlKey));
    return reply.kind === 'reply' && reply.value > 0;
  }

  /** What `_upsert` and `_get` resolve with is what the library wants already. */
  _getRateLimiterRes(_rlKey: string, _changed: number, read: RateLimiterRes): RateLimiterRes {
    return read;
  }

  /** Read where the command runs, so that a reply that cannot be read counts as no reply. */
  #read(reply: unknown): SlotResult {
    const [kind, count, ms] = listOf(reply);
    const used = amountOf(count);
    const nextMs = amountOf(ms);
    if (kind === 'day' || kind === 'minute') return refusal(kind, nextMs);
    if (kind !== 'taken') return malformed();
    return new SlotResult('taken', { remaining: Math.max(0, this.points - used), nextMs, used });
  }
}
