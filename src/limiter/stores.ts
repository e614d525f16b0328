/**
 * Chooses where limiter state lives and builds that store: in this process, or in Redis for all replicas.
 *
 * Owns: what is built, started and ended in which order. Does not own: any decision inside a store.
 */
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import type { Telemetry } from '../telemetry/events.ts';
import { embeddedBreakers, type BreakerStore } from './breaker-store.ts';
import { embeddedEstimates, type EstimateStore } from './estimate-store.ts';
import { createEmbeddedQuotas, type QuotaStore } from './quota-store.ts';
import { createEmbeddedControls, type ControlsStore } from './controls-store.ts';
import type { Ceilings } from './ceilings.ts';
import { FailoverCeilings } from './failover/ceilings.ts';
import { FailoverLimiter } from './failover/limiter.ts';
import { livingChannel, replicaChannel } from './redis/protocol/keys.ts';
import { defaultLeaseMs, type Limiter, type LimiterListener } from './limiter.ts';
import { EmbeddedCeilings } from './embedded/ceilings.ts';
import { createMemoryLimiter } from './embedded/limiter.ts';
import { RedisBreakers } from './redis/breakers.ts';
import { RedisEstimates } from './redis/estimates.ts';
import { RedisQuotas } from './redis/quotas.ts';
import { RedisControls } from './redis/controls.ts';
import { RedisCeilings } from './redis/ceilings.ts';
import { defineCommands } from './redis/protocol/commands.ts';
import { connectRedis, type RedisConnection } from './redis/client/connection.ts';
import { createRedisHealth, type RedisHealth } from './redis/client/health.ts';
import type { RedisTrouble } from './redis/client/trouble.policy.ts';
import { RedisTroubles } from './redis/client/troubles.ts';
import { RedisLimiter } from './redis/limiter.ts';
import { RedisUnusable } from './redis/client/redis-unusable.ts';
import { Presence } from './redis/presence.ts';
import { watchServer } from './redis/server-watch.ts';

export { tryRedis } from './redis/trial.ts';

export interface Stores {
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  readonly breakers: BreakerStore;
  readonly quotas: QuotaStore;
  readonly estimates: EstimateStore;
  readonly controls: ControlsStore;
  /**
   * Resolves when calls may be taken. Rejects with a message for the operator when Redis answers but cannot be used. When Redis
   * does not answer, calls are taken in the mode configured for that, and Redis is used as soon as it answers.
   */
  ready(): Promise<void>;
  /** Why Redis is away; `null` while it is not, or where none is configured. */
  trouble(): RedisTrouble | null;
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

/** How long the start waits for the first contact: longer than the driver tries to connect (2 s), so that why it failed is known. */
const firstContactMs = 2_200;
const readyPollMs = 10;

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
  const ceilings = new EmbeddedCeilings(clock);
  telemetry.limiterMode('memory');
  return {
    limiter,
    ceilings,
    breakers: embeddedBreakers,
    quotas: createEmbeddedQuotas(),
    estimates: embeddedEstimates,
    controls: createEmbeddedControls(clock),
    async ready() {},
    trouble: () => null,
    async close() {
      await limiter.close();
      await ceilings.close();
    },
  };
}

function overRedis(
  { clock, random, telemetry, listener, leaseMs = defaultLeaseMs }: StoreParts,
  settings: NonNullable<Settings['redis']>,
  connect: Connect,
): Stores {
  const troubles = new RedisTroubles(telemetry.log, { tls: settings.tls !== null });
  const connection = connect(settings, { clock, random }, (failure) => {
    telemetry.redisError('connection');
    troubles.note(failure);
  });
  const { client } = connection;
  const { whenDown } = settings;
  const replica = new Presence({
    connection,
    clock,
    random,
    telemetry,
    leaseMs,
    livingChannel: livingChannel(settings),
  });
  const check = async (): Promise<void> => {
    try {
      await replica.checkServer();
      // One node of a Cluster may answer while another does not: failing back now would be followed by the next failover.
      await connection.reachAll();
      await replica.beat(client, !redis.isUp);
    } catch (failure) {
      troubles.note(failure);
      throw failure;
    }
  };
  const redis: RedisHealth = createRedisHealth({
    connection,
    clock,
    telemetry,
    troubles,
    commandTimeoutMs: settings.commandTimeoutMs,
    tripsOnPermanentError: whenDown === 'local',
    check,
  });
  const remoteCeilings = new RedisCeilings({ client, redis, clock });
  const breakers = new RedisBreakers(redis, replica);
  const quotas = new RedisQuotas(redis, replica);
  const estimates = new RedisEstimates({ redis, clock, replica });
  const ceilings = new FailoverCeilings({ redis: remoteCeilings, clock, replica, whenDown });
  const limiter = new FailoverLimiter({
    redis,
    clock,
    telemetry,
    listener,
    whenDown,
    leaseMs,
    replicas: () => replica.count(),
    beforeResume: () => ceilings.restore(),
    createRemote: (onStranded) =>
      new RedisLimiter({ redis, replica, clock, telemetry, listener, onStranded }),
  });
  const { remote } = limiter;

  replica.onLoss(() => {
    remote.onLoss();
    // What cannot be put back now is put back when Redis is available again, before anybody is sent.
    ceilings.restore().catch((failure: unknown) => {
      telemetry.log.bug('sends could not be put back', failure);
    });
  });
  const hearOfBreakers = (): Promise<void> =>
    breakers.catchUp().catch((failure: unknown) => {
      telemetry.log.bug('the breakers of other replicas cannot be read', failure);
    });
  let isHeard = false;
  connection.subscribe(replicaChannel(replica.id), {
    onMessage: (text) => {
      try {
        const isOwn = [breakers, quotas, estimates].some((one) => one.hears(text));
        if (!isOwn) remote.hear(text);
      } catch (failure) {
        telemetry.log.bug('a message of a replica cannot be read', failure);
      }
    },
    onReady: () => {
      isHeard = true;
      remote.catchUp();
      void hearOfBreakers();
    },
    onError: () => telemetry.redisError('subscribe'),
  });

  const stopWatching = watchServer(connection, { clock, log: telemetry.log });
  const pause = (): Promise<void> =>
    new Promise((resolve) => {
      clock.after(readyPollMs, resolve);
    });

  return {
    limiter,
    ceilings,
    breakers,
    quotas,
    estimates,
    controls: new RedisControls(redis),
    async ready() {
      const until = clock.monotonic() + firstContactMs;
      for (;;) {
        try {
          await check();
          while (!isHeard && clock.monotonic() < until) await pause();
          telemetry.limiterMode('redis');
          redis.start(true);
          break;
        } catch (failure) {
          if (failure instanceof RedisUnusable) throw failure;
          if (clock.monotonic() > until) {
            redis.start(false);
            break;
          }
          await pause();
        }
      }
      remote.start();
      replica.start(async (beat) => void (await redis.run('other', (open) => beat(open))));
      await hearOfBreakers();
    },
    trouble: () => troubles.now(),
    async close() {
      stopWatching();
      estimates.close();
      replica.close();
      await limiter.close();
      await ceilings.close();
      redis.close();
      connection.close();
    },
  };
}
