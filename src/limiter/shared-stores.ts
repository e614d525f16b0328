/**
 * The stores that all replicas share, in Redis, with what stands in for them while it is away.
 *
 * Owns: what is built, started and ended in which order; who hears of a message, of a loss. Does not own: any decision inside
 * a store.
 */
import type { Clock } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import type { connectRedis, RedisConnection } from '../redis/connection.ts';
import { RedisHealth } from '../redis/health.ts';
import { ceilingKey } from '../ids.ts';
import { malformed, wordOf } from '../redis/malformed-reply.ts';
import { serverFacts } from '../redis/server-info.policy.ts';
import { RedisUnusable, type RedisTrouble } from '../redis/trouble.policy.ts';
import { RedisTroubles } from '../redis/troubles.ts';
import { createMapsIn } from '../replicated/redis-map.ts';
import type { CreateMap } from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { CeilingStore } from './ceiling-store.ts';
import type { RedisContact, WhenDown } from './failover/when-down.ts';
import { defaultLeaseMs } from './limiter.ts';
import { RedisCeilings } from './redis/ceilings.ts';
import { RedisEstimates } from './redis/estimates.ts';
import { createRedisLimiter } from './redis/limiter.ts';
import { Presence } from './redis/presence.ts';
import { watchServer } from './redis/server-watch.ts';
import type { SharedLimiter } from './over-log/limiter.ts';
import type { StoreParts, Stores } from './store-set.ts';

/** How long the start waits for the first contact: longer than the driver tries to connect (2 s), so that why it failed is known. */
const firstContactMs = 2_200;
const readyPollMs = 10;

/** Opens the connections to Redis. The simulation of several replicas gives its own. */
export type Connect = (...wanted: Parameters<typeof connectRedis>) => RedisConnection;

export class SharedStores implements Stores {
  readonly limiter: SharedLimiter;
  readonly ceilings: CeilingStore;
  readonly estimates: RedisEstimates;
  readonly createMap: CreateMap;
  readonly #settings: NonNullable<Settings['redis']>;
  readonly #clock: Clock;
  /** Monotonic milliseconds. */
  readonly #startedAt: number;
  readonly #telemetry: Telemetry;
  readonly #connection: RedisConnection;
  readonly #troubles: RedisTroubles;
  readonly #replica: Presence;
  readonly #redis: RedisHealth;
  readonly #stopWatching: () => void;
  /** Of what replicas say to one another. Messages know neither databases nor key prefixes. */
  readonly #channel: string;
  #restored: Promise<unknown> = Promise.resolve();
  #nextRestore: Promise<unknown> | null = null;
  /** Messages of other replicas reach this one. */
  #isHeard = false;

  constructor(parts: StoreParts, settings: NonNullable<Settings['redis']>, connect: Connect) {
    const { clock, random, telemetry, listener, leaseMs = defaultLeaseMs } = parts;
    const { commandTimeoutMs, replicas } = settings;
    const troubles = new RedisTroubles(telemetry.log, { tls: settings.tls !== null });
    const connection = connect(settings, { clock, random }, (failure) => {
      telemetry.redisError('connection');
      troubles.note(failure);
    });
    const { client } = connection;
    const restoreSends = (): Promise<unknown> => this.#restoreSends();
    const onDoubt = (): void => void restoreSends();
    const replica = new Presence({ connection, clock, random, telemetry, replicas, onDoubt });
    const redis = new RedisHealth({
      connection,
      clock,
      telemetry,
      troubles,
      commandTimeoutMs,
      tripsOnPermanentError: settings.whenDown === 'local',
      check: () => this.#check(),
      beforeResume: restoreSends,
    });
    const ceilings = new RedisCeilings({ client, redis, clock });
    const whenDown = (): WhenDown => this.#whenDown();
    this.#settings = settings;
    this.#clock = clock;
    this.#startedAt = clock.monotonic();
    this.#telemetry = telemetry;
    this.#connection = connection;
    this.#troubles = troubles;
    this.#replica = replica;
    this.#redis = redis;
    const scope = `${settings.database}:${settings.keyPrefix}`;
    this.#channel = `sluice:replicas:${scope}`;
    const replicaCount = (): number => replica.count();
    this.estimates = new RedisEstimates({
      clock,
      replicas: replicaCount,
      tell: (text) => this.#tell('estimates', text),
    });
    this.ceilings = new CeilingStore(clock, {
      redis: ceilings,
      replica: replica.id,
      replicas: replicaCount,
      whenDown,
      onSlotBack: (key) => {
        if (replicaCount() > 1) this.#tell('slot', key);
      },
    });
    this.createMap = createMapsIn(
      {
        scope,
        try: async (run) => {
          const reply = await redis.run('other', run);
          return reply.kind === 'reply' ? reply.value : null;
        },
        listen: (channel, hears) => void connection.subscribe(channel, { ...hears, mayWait: () => true }),
      },
      parts.settings.privacy.labelKey,
    );
    redis.watch({
      onUnavailable: () => telemetry.limiterMode(whenDown()),
      onAvailable: () => telemetry.limiterMode('redis'),
    });
    const { database, keyPrefix } = settings;
    this.limiter = createRedisLimiter({
      clock,
      connection,
      database,
      keyPrefix,
      leaseMs,
      listener,
      random,
      redis,
      restoreSends,
      telemetry,
      whenDown,
      replica: replica.id,
      replicas: replicaCount,
      actsAlone: settings.whenDown === 'local',
    });
    this.#subscribe();
    this.#stopWatching = watchServer(connection, { clock, log: telemetry.log });
  }

  async ready(): Promise<void> {
    await this.#firstContact();
    this.#replica.start(async (beat) => void (await this.#redis.run('other', (open) => beat(open))));
  }

  trouble(): RedisTrouble | null {
    return this.#troubles.now();
  }

  contact(): RedisContact {
    if (this.#replica.hasReachedRedis) return { kind: 'reached' };
    const { replicas, startSeconds } = this.#settings;
    const isAwaited = this.#clock.monotonic() - this.#startedAt < startSeconds * 1_000;
    return { kind: 'never', isAwaited, replicas: this.#whenDown() === 'local' ? replicas : null };
  }

  async close(): Promise<void> {
    this.#stopWatching();
    this.estimates.close();
    this.#replica.close();
    await this.limiter.close();
    await this.ceilings.close();
    await this.#redis.run('other', (client) => this.#replica.leave(client), { once: true });
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
      const { fault } = serverFacts(await this.#connection.info());
      if (fault !== null) throw new RedisUnusable(fault);
      // One node of a Cluster may answer while another does not: failing back now would be followed by the next failover.
      await this.#connection.reachAll();
      await this.#replica.beat(this.#connection.client);
    } catch (failure) {
      this.#troubles.note(failure);
      throw failure;
    }
  }

  async #firstContact(): Promise<void> {
    const until = this.#clock.monotonic() + firstContactMs;
    for (;;) {
      try {
        await this.#check();
        while (!this.#isHeard && this.#clock.monotonic() < until) await this.#pause();
        this.#telemetry.limiterMode('redis');
        return this.#redis.start(true);
      } catch (failure) {
        if (failure instanceof RedisUnusable) throw failure;
        if (this.#clock.monotonic() > until) return this.#startWithout();
        await this.#pause();
      }
    }
  }

  #startWithout(): void {
    this.#redis.start(false);
    const contact = this.contact();
    if (contact.kind === 'reached') return;
    const { replicas } = contact;
    const { startSeconds } = this.#settings;
    const calls = replicas === null ? 'refused' : 'share';
    this.#telemetry.log.warn('Redis has never been reached', { calls, replicas, startSeconds });
  }

  #pause(): Promise<void> {
    return new Promise((resolve) => {
      this.#clock.after(readyPollMs, resolve);
    });
  }

  #subscribe(): void {
    this.#connection.subscribe(this.#channel, {
      onMessage: (text) => this.#hear(text),
      // Grants do not come by it.
      mayWait: () => true,
      onReady: () => {
        this.#isHeard = true;
      },
      onError: () => this.#telemetry.redisError('subscribe'),
    });
  }

  /** A message to the other replicas. Nothing waits for it, and nothing is kept. */
  #tell(subject: 'estimates' | 'slot', text: string): void {
    const message = `${this.#replica.id} ${subject} ${text}`;
    void this.#redis.run('other', (client) => client.publish(this.#channel, message));
  }

  #hear(message: string): void {
    try {
      const [, sender, subject, text = ''] = /^(\S+) (\S+) (.*)$/.exec(message) ?? malformed();
      if (sender === this.#replica.id) return;
      if (subject === 'estimates') this.estimates.hears(text);
      else if (subject === 'slot') this.ceilings.slotIsBack(ceilingKey(wordOf(text)));
      else malformed();
    } catch (failure) {
      this.#telemetry.log.bug('a message of a replica cannot be read', failure);
    }
  }

  /**
   * Puts this replica's sends of the last window back where Redis lacks them. What cannot be put back now is when Redis is available
   * again, before anybody is sent. Whoever asks while that is under way waits for the next time, which is one for all.
   */
  #restoreSends(): Promise<unknown> {
    this.#nextRestore ??= this.#restored.then(() => {
      this.#nextRestore = null;
      this.#restored = this.ceilings
        .restore()
        .catch((failure: unknown) => this.#telemetry.log.bug('sends could not be put back', failure));
      return this.#restored;
    });
    return this.#nextRestore;
  }
}
