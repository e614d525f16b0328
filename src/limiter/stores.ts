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
import { MalformedReply } from '../redis/scripts.ts';
import { type RedisTrouble, RedisUnusable, requireUsable } from '../redis/trouble.policy.ts';
import { createMapsIn } from '../replicated/redis-map.ts';
import { type CreateMap, MemoryMap } from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { type Ceilings, CeilingStore } from './ceiling-store.ts';
import { defaultLeaseMs, type LimiterListener, type RedisContact, type WhenDown } from './limiter.ts';
import { RedisLaneGuard } from './over-log/lane-guard.ts';
import { createEmbeddedLimiter, type Limiter, SharedLimiter } from './over-log/limiter.ts';
import type { LogEvent } from './over-log/fold.ts';
import { RedisCeilings } from './redis/ceilings.ts';
import { Presence } from './redis/presence.ts';

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
    : storesInRedis(parts, parts.settings.redis, connect);

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
const foldVersion = '36';

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
function storesInRedis(parts: StoreParts, settings: RedisSettings, connect: Connect): Stores {
  const { clock, random, telemetry, listener, leaseMs = defaultLeaseMs } = parts;
  const { log } = telemetry;
  const { database, keyPrefix, replicas: maxReplicas, startSeconds } = settings;
  // Messages know neither databases nor key prefixes.
  const scope = `${database}:${keyPrefix}`;
  const channel = `sluice:replicas:${scope}`;
  const startedAt = clock.monotonic();
  /** Messages of other replicas reach this one. */
  let isHeard = false;
  let restored: Promise<unknown> = Promise.resolve();
  let nextRestore: Promise<unknown> | null = null;

  /**
   * Puts this replica's sends of the last window back where Redis lacks them. What cannot be put back now is when Redis is available
   * again, before anybody is sent. Whoever asks while that is under way waits for the next time, which is one for all.
   */
  const restoreSends = (): Promise<unknown> =>
    (nextRestore ??= restored.then(() => {
      nextRestore = null;
      restored = ceilings
        .restore()
        .catch((failure: unknown) => log.bug('sends could not be put back', failure));
      return restored;
    }));
  /** Calls are refused while nobody, neither Redis nor the operator, has said how many replicas share the limits. */
  const whenDown = (): WhenDown =>
    maxReplicas === null && !replica.hasReachedRedis ? 'deny' : settings.whenDown;
  /** Rejects while Redis, or a node of its Cluster, cannot be used. */
  const check = async (): Promise<void> => {
    try {
      requireUsable(await connection.info());
      // One node of a Cluster may answer while another does not: failing back now would be followed by the next failover.
      await connection.reachAll();
      await replica.beat(connection.client);
    } catch (failure) {
      redis.note(failure);
      throw failure;
    }
  };
  const contact = (): RedisContact => {
    if (replica.hasReachedRedis) return { kind: 'reached' };
    const isAwaited = clock.monotonic() - startedAt < startSeconds * 1_000;
    return { kind: 'never', isAwaited, replicas: whenDown() === 'local' ? maxReplicas : null };
  };

  const connection = connect(settings, { clock, random }, (failure) => {
    telemetry.count('sluice_redis_errors_total', { kind: 'connection' });
    redis.note(failure);
  });
  const replica = new Presence({
    connection,
    clock,
    random,
    telemetry,
    replicas: maxReplicas,
    onDoubt: () => void restoreSends(),
  });
  const redis = new RedisHealth({
    connection,
    clock,
    telemetry,
    commandTimeoutMs: settings.commandTimeoutMs,
    tripsOnPermanentError: settings.whenDown === 'local',
    check,
    beforeResume: restoreSends,
  });
  redis.watch({
    onUnavailable: () => telemetry.limiterMode(whenDown()),
    onAvailable: () => telemetry.limiterMode('redis'),
  });
  const shared = { replica: replica.id, replicas: () => replica.count(), whenDown };
  const ceilings = new CeilingStore(clock, {
    ...shared,
    redis: new RedisCeilings(connection.client, redis, clock),
    // Tells the other replicas that a slot of this ceiling is free again. Nothing waits for it, and nothing is kept.
    onSlotBack: (key) => {
      if (replica.count() > 1)
        void redis.run('other', (open) => open.publish(channel, `${replica.id} slot ${key}`));
    },
  });
  const limiter = new SharedLimiter({
    ...shared,
    clock,
    leaseMs,
    listener,
    restoreSends,
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
  // Grants do not come by these messages.
  const mayWait = (): boolean => true;
  connection.subscribe(channel, {
    onMessage: (message) => {
      const [, sender, key] = /^(\S+) slot ([\w.-]+)$/.exec(message) ?? [];
      if (key === undefined) log.bug('a message of a replica cannot be read', new MalformedReply());
      else if (sender !== replica.id) ceilings.slotIsBack(ceilingKey(key));
    },
    mayWait,
    onReady: () => {
      isHeard = true;
    },
  });

  const firstContact = async (): Promise<void> => {
    const until = clock.monotonic() + firstContactMs;
    const pause = (): Promise<void> => new Promise((resolve) => void clock.after(readyPollMs, resolve));
    for (;;) {
      try {
        await check();
        while (!isHeard && clock.monotonic() < until) await pause();
        telemetry.limiterMode('redis');
        return;
      } catch (failure) {
        if (failure instanceof RedisUnusable) throw failure;
        if (clock.monotonic() > until) break;
        await pause();
      }
    }
    redis.startsAway();
    const found = contact();
    if (found.kind === 'reached') return;
    const calls = found.replicas === null ? 'refused' : 'share';
    log.warn('Redis has never been reached', { calls, replicas: found.replicas, startSeconds });
  };

  return {
    limiter,
    ceilings,
    createMap: createMapsIn(
      {
        scope,
        try: (run) => redis.run('other', run),
        listen: (of, onMessage) => void connection.subscribe(of, { onMessage, onReady() {}, mayWait }),
      },
      parts.settings.privacy.labelKey,
    ),
    ready: async () => {
      await firstContact();
      replica.start(async (beat) => void (await redis.run('other', beat)));
    },
    trouble: () => redis.trouble(),
    contact,
    close: async () => {
      replica.close();
      await limiter.close();
      await redis.run('other', (open) => replica.leave(open), { once: true });
      redis.close();
      connection.close();
    },
  };
}
