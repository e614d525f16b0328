/**
 * The sliding log of `ceiling.policy.ts` on Redis behind rate-limiter-flexible's own API: `consume` resolves while
 * places are left and rejects with a `RateLimiterRes` whose `msBeforeNext` is the true wait. One script call, for the
 * day's fixed window too; a refusal writes nothing; a place goes back by its id.
 *
 * Owns: the hooks of the library that a store has (`_upsert`, `_get`, `_delete`, `_getRateLimiterRes`; they are private,
 * so its version is pinned and `test/limiter/contract.ts` holds it to its word). Without Redis the library asks the
 * `insuranceLimiter`, where there is one.
 */
import { type RateLimiterCompatibleAbstract, RateLimiterRedis, RateLimiterRes } from 'rate-limiter-flexible';
import { ceilingWindowMs } from './ceiling.policy.ts';
import { Gathered } from './gathered.ts';
import { amountOf, listOf, malformed } from './malformed-reply.ts';
import { runOwn } from './redis-commands.ts';
import type { RedisClient } from './redis-connection.ts';
import type { RedisLink } from './redis-link.ts';

export const daySeconds = 86_400;

/** Keys of one ceiling; the tag keeps them in one slot of a Cluster. */
export const sendsKey = (key: string): string => `sluice:sends:{${key}}`;
export const dayKey = (key: string): string => `sluice:day:{${key}}`;

const keysOf = (rlKey: string): [sends: string, day: string] => [
  rlKey,
  dayKey(rlKey.slice('sluice:sends:{'.length, -1)),
];

/** Places that one command takes at most. */
const maxTogether = 64;

interface Taking {
  readonly id: string;
  readonly lateMs: number;
}

/** Options of a call. */
export interface RedisLogOptions {
  /** Names the place; the same id never takes two. */
  readonly id?: string;
  /** How much later than Redis counts it the call may leave. Milliseconds. The insurance counts when it answers. */
  readonly lateMs?: number;
  /** For the insurance: the limit whose share counts. */
  readonly points?: number;
}

/** The day is used up; `msBeforeNext` is the time to its end. */
export class DayRefusal extends RateLimiterRes {}

export class RedisSlidingLog extends RateLimiterRedis {
  readonly #link: RedisLink;
  readonly #perMinute: number | null;
  readonly #perDay: number | null;
  readonly #taking = new Gathered<Taking, RateLimiterRes>(
    (key, asked) => this.#take(key, asked),
    maxTogether,
  );

  /** `null` = no such ceiling; at least one of both is set. */
  constructor(options: {
    readonly link: RedisLink;
    readonly client: RedisClient;
    readonly perMinute: number | null;
    readonly perDay: number | null;
    readonly insurance: RateLimiterCompatibleAbstract | null;
  }) {
    super({
      storeClient: options.client,
      points: options.perMinute ?? Number.MAX_SAFE_INTEGER,
      duration: Math.ceil(ceilingWindowMs / 1000),
      keyPrefix: 'sluice:sends',
      ...(options.insurance === null ? {} : { insuranceLimiter: options.insurance }),
    });
    this.#link = options.link;
    this.#perMinute = options.perMinute;
    this.#perDay = options.perDay;
  }

  /** The library's name of a key, with the tag of its slot. */
  override getKey(key: string): string {
    return sendsKey(key);
  }

  /** Takes a place (`points` 1) or gives one back (-1). */
  async _upsert(
    rlKey: string,
    points: number,
    _msDuration: number,
    force: boolean,
    { id, lateMs = 0 }: RedisLogOptions = {},
  ): Promise<RateLimiterRes> {
    if (force) throw new Error('a sliding log has no set or block');
    if (id === undefined || Math.abs(points) !== 1)
      throw new Error('a sliding log takes one named place at a time');
    if (points < 0) {
      const day = this.#perDay === null ? '0' : '1';
      await this.#link.run('reward', async (client) =>
        amountOf(await runOwn(client, 'giveback', keysOf(rlKey), [id, day])),
      );
      return new RateLimiterRes(0, 0, 0, false);
    }
    return this.#taking.ask(rlKey, { id, lateMs });
  }

  /** Calls of one workspace that ask at once ask together; each has its own answer. */
  async #take(rlKey: string, asked: readonly Taking[]): Promise<readonly RateLimiterRes[]> {
    const keys = keysOf(rlKey);
    const limits = [String(this.#perMinute ?? ''), String(this.#perDay ?? '')];
    const calls = asked.flatMap(({ id, lateMs }) => [id, String(lateMs)]);
    const argv = [...limits, String(ceilingWindowMs), String(daySeconds), '', ...calls];
    return this.#link.run('consume', async (client) => {
      const told = listOf(await runOwn(client, 'consume', keys, argv));
      if (told.length !== 3 * asked.length) return malformed();
      return asked.map((_one, at) => this.#read(told.slice(3 * at, 3 * at + 3)));
    });
  }

  async _get(rlKey: string): Promise<RateLimiterRes | null> {
    const argv = [String(this.#perMinute ?? 0), String(ceilingWindowMs), ''];
    return this.#link.run('other', async (client) => {
      const [live, oldestMs] = listOf(await runOwn(client, 'places', [rlKey], argv));
      return amountOf(live) === 0 ? null : this.#read(['taken', live, oldestMs]);
    });
  }

  async _delete(rlKey: string): Promise<boolean> {
    return (await this.#link.run('other', (client) => client.del(rlKey))) > 0;
  }

  /** What `_upsert` and `_get` resolve with is what the library wants already. */
  _getRateLimiterRes(_rlKey: string, _changed: number, read: RateLimiterRes): RateLimiterRes {
    return read;
  }

  /** Read where the command runs, so that a reply without sense counts as no reply. */
  #read(reply: unknown): RateLimiterRes {
    const [kind, count, ms] = listOf(reply);
    const consumed = amountOf(count);
    const msBeforeNext = amountOf(ms);
    // The library refuses what has consumed more than its points.
    if (kind === 'day') return new DayRefusal(0, msBeforeNext, Infinity, false);
    if (kind === 'minute') return new RateLimiterRes(0, msBeforeNext, Infinity, false);
    if (kind !== 'taken') return malformed();
    return new RateLimiterRes(Math.max(0, this.points - consumed), msBeforeNext, consumed, consumed === 1);
  }
}
