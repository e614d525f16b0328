/**
 * Chooses where limiter state lives and builds those stores: in this process, or in Redis for all replicas, with what stands in for
 * Redis while it is away.
 */
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import { ceilingKey } from '../ids.ts';
import { RedisLog } from '../log/redis-log.ts';
import { connectRedis, type RedisConnection } from '../redis/connection.ts';
import { RedisHealth } from '../redis/health.ts';
import { malformed, wordOf } from '../redis/malformed-reply.ts';
import { type RedisTrouble, RedisUnusable, requireUsable } from '../redis/trouble.policy.ts';
import { createMapsIn } from '../replicated/redis-map.ts';
import { type CreateMap, MemoryMap } from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { type Ceilings, CeilingStore } from './ceiling-store.ts';
import { defaultLeaseMs, type LimiterListener } from './limiter.ts';
import { RedisLaneGuard } from './over-log/lane-guard.ts';
import { createEmbeddedLimiter, type Limiter, SharedLimiter } from './over-log/limiter.ts';
import type { LogEvent } from './over-log/state.ts';
import { RedisCeilings } from './redis/ceilings.ts';
import { Presence } from './redis/presence.ts';
import type { RedisContact, WhenDown } from './when-down.policy.ts';

export interface Stores {
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  /** Makes a map of small values, which all replicas share. */
  readonly createMap: CreateMap;
  /**
   * Resolves when calls may be taken. Rejects with a message for the operator when Redis answers but cannot be used. When Redis
   * does not answer, calls are taken in the mode configured for that, and Redis is used as soon as it answers.
   */
  ready(): Promise<void>;
  /** Why Redis is away; `null` while it is not, or where none is configured. */
  trouble(): RedisTrouble | null;
  /** Whether this replica has ever reached Redis, and what it does until then. */
  contact(): RedisContact;
  close(): Promise<void>;
}

export interface StoreParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  /** Replaces the life of a lease, milliseconds. */
  readonly leaseMs?: number;
}

export const createStores = (parts: StoreParts, connect: Connect = connectRedis): Stores =>
  parts.settings.redis === null
    ? storesOfProcess(parts)
    : new SharedStores(parts, parts.settings.redis, connect);

function storesOfProcess({ clock, telemetry, listener, leaseMs }: StoreParts): Stores {
  const limiter = createEmbeddedLimiter(clock, listener, {
    leaseMs,
    onLeaseLost: (reason) => telemetry.count('sluice_leases_lost_total', { reason }),
    onFailure: (failure) => telemetry.log.bug('the scheduler failed in a bucket, which was emptied', failure),
  });
  const ceilings = new CeilingStore(clock);
  telemetry.limiterMode('memory');
  return {
    limiter,
    ceilings,
    createMap: () => new MemoryMap(clock),
    async ready() {},
    trouble: () => null,
    contact: () => ({ kind: 'reached' }),
    close: () => limiter.close(),
  };
}

/** Goes up with every change after which equal entries no longer do the same: two folds never read one log. */
const foldVersion = '33';

/** How long the start waits for the first contact: longer than the driver tries to connect (2 s), so that why it failed is known. */
const firstContactMs = 2_200;
const readyPollMs = 10;

/** Opens the connections to Redis. The simulation of several replicas gives its own. */
export type Connect = (...wanted: Parameters<typeof connectRedis>) => RedisConnection;

type RedisSettings = NonNullable<Settings['redis']>;

/**
 * The stores of all replicas, in Redis. Owns what is built, started and ended in which order, and who hears of a message and of a loss;
 * every decision is made inside a store.
 */
class SharedStores implements Stores {
  readonly limiter: SharedLimiter;
  readonly ceilings: CeilingStore;
  readonly createMap: CreateMap;
  readonly #parts: StoreParts;
  readonly #settings: RedisSettings;
  readonly #startedAt: number;
  readonly #connection: RedisConnection;
  readonly #redis: RedisHealth;
  readonly #replica: Presence;
  /** Messages of other replicas reach this one. */
  #isHeard = false;
  #restored: Promise<unknown> = Promise.resolve();
  #nextRestore: Promise<unknown> | null = null;

  constructor(parts: StoreParts, settings: RedisSettings, connect: Connect) {
    const { clock, random, telemetry, listener, leaseMs = defaultLeaseMs } = parts;
    const { log } = telemetry;
    this.#parts = parts;
    this.#settings = settings;
    this.#startedAt = clock.monotonic();
    const connection = connect(settings, { clock, random }, (failure) => {
      telemetry.count('sluice_redis_errors_total', { kind: 'connection' });
      this.#redis.note(failure);
    });
    this.#connection = connection;
    const replica = new Presence({
      connection,
      clock,
      random,
      telemetry,
      replicas: settings.replicas,
      onDoubt: () => void this.#restoreSends(),
    });
    this.#replica = replica;
    const redis = new RedisHealth({
      connection,
      clock,
      telemetry,
      commandTimeoutMs: settings.commandTimeoutMs,
      tripsOnPermanentError: settings.whenDown === 'local',
      check: () => this.#check(),
      beforeResume: () => this.#restoreSends(),
    });
    this.#redis = redis;
    redis.watch({
      onUnavailable: () => telemetry.limiterMode(this.#whenDown()),
      onAvailable: () => telemetry.limiterMode('redis'),
    });
    const shared = {
      replica: replica.id,
      replicas: () => replica.count(),
      whenDown: () => this.#whenDown(),
    };
    // Messages know neither databases nor key prefixes.
    const { database, keyPrefix } = settings;
    const scope = `${database}:${keyPrefix}`;
    const channel = `sluice:replicas:${scope}`;
    this.ceilings = new CeilingStore(clock, {
      ...shared,
      redis: new RedisCeilings({ client: connection.client, redis, clock }),
      // Tells the other replicas that a slot of this ceiling is free again. Nothing waits for it, and nothing is kept.
      onSlotBack: (key) => {
        if (replica.count() > 1)
          void redis.run('other', (open) => open.publish(channel, `${replica.id} slot ${key}`));
      },
    });
    this.limiter = new SharedLimiter({
      ...shared,
      clock,
      leaseMs,
      listener,
      restoreSends: () => this.#restoreSends(),
      guard: new RedisLaneGuard(redis),
      onFailure: (failure) => log.bug('the scheduler failed in a bucket, which was emptied', failure),
      onLeaseLost: (reason) => telemetry.count('sluice_leases_lost_total', { reason }),
      openLog: (key) =>
        new RedisLog<LogEvent>({
          redis,
          connection,
          clock,
          random,
          log,
          actsAlone: settings.whenDown === 'local',
          name: { digest: key, version: foldVersion, database, keyPrefix },
          replica: replica.id,
        }),
    });
    this.createMap = createMapsIn(
      {
        scope,
        try: async (run) => {
          const reply = await redis.run('other', run);
          return reply.kind === 'reply' ? reply.value : null;
        },
        listen: (of, hears) => void connection.subscribe(of, { ...hears, mayWait: () => true }),
      },
      parts.settings.privacy.labelKey,
    );
    connection.subscribe(channel, {
      onMessage: (message) => this.#hear(message),
      // Grants do not come by it.
      mayWait: () => true,
      onReady: () => {
        this.#isHeard = true;
      },
    });
  }

  async ready(): Promise<void> {
    await this.#firstContact();
    this.#replica.start(async (beat) => void (await this.#redis.run('other', (open) => beat(open))));
  }

  trouble(): RedisTrouble | null {
    return this.#redis.trouble();
  }

  contact(): RedisContact {
    if (this.#replica.hasReachedRedis) return { kind: 'reached' };
    const { replicas, startSeconds } = this.#settings;
    const isAwaited = this.#parts.clock.monotonic() - this.#startedAt < startSeconds * 1_000;
    return { kind: 'never', isAwaited, replicas: this.#whenDown() === 'local' ? replicas : null };
  }

  async close(): Promise<void> {
    this.#replica.close();
    await this.limiter.close();
    await this.#redis.run('other', (open) => this.#replica.leave(open), { once: true });
    this.#redis.close();
    this.#connection.close();
  }

  /** Calls are refused while nobody, neither Redis nor the operator, has said how many replicas share the limits. */
  #whenDown(): WhenDown {
    const { replicas, whenDown } = this.#settings;
    return replicas === null && !this.#replica.hasReachedRedis ? 'deny' : whenDown;
  }

  /** Rejects while Redis, or a node of its Cluster, cannot be used. */
  async #check(): Promise<void> {
    try {
      requireUsable(await this.#connection.info());
      // One node of a Cluster may answer while another does not: failing back now would be followed by the next failover.
      await this.#connection.reachAll();
      await this.#replica.beat(this.#connection.client);
    } catch (failure) {
      this.#redis.note(failure);
      throw failure;
    }
  }

  /**
   * Puts this replica's sends of the last window back where Redis lacks them. What cannot be put back now is when Redis is available
   * again, before anybody is sent. Whoever asks while that is under way waits for the next time, which is one for all.
   */
  #restoreSends(): Promise<unknown> {
    const { log } = this.#parts.telemetry;
    this.#nextRestore ??= this.#restored.then(() => {
      this.#nextRestore = null;
      this.#restored = this.ceilings
        .restore()
        .catch((failure: unknown) => log.bug('sends could not be put back', failure));
      return this.#restored;
    });
    return this.#nextRestore;
  }

  #hear(message: string): void {
    try {
      const [, sender, key = ''] = /^(\S+) slot (.*)$/.exec(message) ?? malformed();
      if (sender !== this.#replica.id) this.ceilings.slotIsBack(ceilingKey(wordOf(key)));
    } catch (failure) {
      this.#parts.telemetry.log.bug('a message of a replica cannot be read', failure);
    }
  }

  async #firstContact(): Promise<void> {
    const { clock, telemetry } = this.#parts;
    const until = clock.monotonic() + firstContactMs;
    const pause = (): Promise<void> => new Promise((resolve) => void clock.after(readyPollMs, resolve));
    for (;;) {
      try {
        await this.#check();
        while (!this.#isHeard && clock.monotonic() < until) await pause();
        telemetry.limiterMode('redis');
        return this.#redis.start(true);
      } catch (failure) {
        if (failure instanceof RedisUnusable) throw failure;
        if (clock.monotonic() > until) break;
        await pause();
      }
    }
    this.#redis.start(false);
    const found = this.contact();
    if (found.kind === 'reached') return;
    const calls = found.replicas === null ? 'refused' : 'share';
    const { startSeconds } = this.#settings;
    telemetry.log.warn('Redis has never been reached', { calls, replicas: found.replicas, startSeconds });
  }
}
