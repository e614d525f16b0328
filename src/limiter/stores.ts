/**
 * Chooses where limiter state lives and builds that store: in this process, or in Redis for all replicas.
 *
 * Owns: what is built, started and ended in which order. Refuses to own: any decision inside a store.
 */
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import type { Telemetry } from '../telemetry/events.ts';
import { createAwayLimiter } from './away-limiter.ts';
import type { Ceilings } from './ceilings.ts';
import { replicaChannel } from './keys.ts';
import type { Limiter, LimiterListener } from './limiter.ts';
import { createMemoryCeilings } from './memory-ceilings.ts';
import { createMemoryLimiter } from './memory-limiter.ts';
import { createRedisCeilings } from './redis-ceilings.ts';
import { defineCommands } from './redis-commands.ts';
import { connectRedis, type RedisConnection } from './redis-connection.ts';
import { createRedisLimiter, type RedisLimiter } from './redis-limiter.ts';
import { createRedisLink, RedisAway, type RedisLink } from './redis-link.ts';
import { createReplica, RedisUnusable } from './replica.ts';

export interface Stores {
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  /**
   * Resolves when calls may be taken. Rejects with a message for the operator when Redis is there but cannot be used;
   * a Redis that is not there is waited for later, in the mode chosen for its absence.
   */
  ready(): Promise<void>;
  close(): Promise<void>;
}

export interface StoreParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
}

/** How long the start waits for the first contact. */
const firstContactMs = 2_000;
const lookAgainMs = 10;

/** Opens the connections to Redis, commands defined. The simulation of several replicas gives its own. */
export type Connect = (...wanted: Parameters<typeof connectRedis>) => RedisConnection;

const connectAndDefine: Connect = (...wanted) => {
  const connection = connectRedis(...wanted);
  defineCommands(connection.client);
  return connection;
};

export const createStores = (parts: StoreParts, connect: Connect = connectAndDefine): Stores =>
  parts.settings.redis === null ? embedded(parts) : overRedis(parts, parts.settings.redis, connect);

function embedded({ clock, telemetry, listener }: StoreParts): Stores {
  const limiter = createMemoryLimiter(clock, listener);
  const ceilings = createMemoryCeilings(clock);
  telemetry.limiterMode('memory');
  return {
    limiter,
    ceilings,
    async ready() {},
    async close() {
      await limiter.close();
      await ceilings.close();
    },
  };
}

function overRedis(
  { clock, random, telemetry, listener }: StoreParts,
  settings: NonNullable<Settings['redis']>,
  connect: Connect,
): Stores {
  const connection = connect(settings, { clock, random }, () => telemetry.redisError('connection'));
  const { client } = connection;
  const { whenDown } = settings;
  const replica = createReplica({ connection, clock, random, telemetry });
  const check = async (): Promise<void> => {
    try {
      await replica.look();
    } catch (failure) {
      if (failure instanceof RedisUnusable) telemetry.log.error(failure.message);
      throw failure;
    }
    // One part of a Cluster answers while another is away: to return now would be to leave again at once.
    await connection.reachAll();
    await replica.beat(client, !link.isUp);
  };
  const link: RedisLink = createRedisLink({
    connection,
    clock,
    telemetry,
    commandTimeoutMs: settings.commandTimeoutMs,
    leavesWhenWrong: whenDown === 'local',
    check,
  });
  const ceilings = createRedisCeilings({ client, link, clock, replica, whenDown });
  const built: { remote: RedisLimiter | null } = { remote: null };
  const limiter = createAwayLimiter({
    link,
    clock,
    telemetry,
    listener,
    whenDown,
    replicas: () => replica.count(),
    beforeResume: () => ceilings.restore(),
    remote: (onStranded) =>
      (built.remote = createRedisLimiter({ link, replica, clock, telemetry, listener, onStranded })),
  });
  const { remote } = built;

  replica.onLoss(() => {
    remote?.onLoss();
    ceilings.restore().catch((failure: unknown) => {
      // Noticed on the way back: the sends are put back before anybody is sent again.
      if (!(failure instanceof RedisAway)) telemetry.log.bug('sends could not be put back', failure);
    });
  });
  let isHeard = false;
  connection.subscribe(replicaChannel(replica.id), {
    onMessage: (text) => {
      try {
        remote?.hear(text);
      } catch (failure) {
        telemetry.log.bug('a message of a replica cannot be read', failure);
      }
    },
    onReady: () => {
      isHeard = true;
      remote?.catchUp();
    },
    onError: () => telemetry.redisError('subscribe'),
  });

  const pause = (): Promise<void> =>
    new Promise((resolve) => {
      clock.after(lookAgainMs, resolve);
    });

  return {
    limiter,
    ceilings,
    async ready() {
      const until = clock.monotonic() + firstContactMs;
      for (;;) {
        try {
          await check();
          while (!isHeard && clock.monotonic() < until) await pause();
          telemetry.limiterMode('redis');
          link.start(true);
          break;
        } catch (failure) {
          if (failure instanceof RedisUnusable) throw failure;
          if (clock.monotonic() > until) {
            link.start(false);
            break;
          }
          await pause();
        }
      }
      remote?.start();
      replica.start((beat) => link.run('other', (redis) => beat(redis)));
    },
    async close() {
      replica.close();
      await limiter.close();
      await ceilings.close();
      link.close();
      connection.close();
    },
  };
}
