/** The guard of serialized lanes, in memory and in Redis: the same promises. */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../../src/clock.ts';
import { bucketKey, laneKey, leaseToken } from '../../../src/ids.ts';
import { RedisLaneGuard, type LaneGuard, type Guarded } from '../../../src/limiter/over-log/lane-guard.ts';
import { connectRedis } from '../../../src/redis/connection.ts';
import { RedisHealth } from '../../../src/redis/health.ts';
import { RedisTroubles } from '../../../src/redis/troubles.ts';
import { MemoryLaneGuard } from '../../support/memory-lane-guard.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { redisSettings } from '../../support/redis-replica.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';

const longMs = 600_000;
const shortMs = 20;
let lanes = 0;
/** Two calls of a lane that no other test uses. */
function twoCalls(): readonly [Guarded, Guarded] {
  const lane = { bucket: bucketKey('b'), lane: laneKey(`lane${(lanes += 1)}`) };
  return [
    { ...lane, lease: leaseToken('a.1') },
    { ...lane, lease: leaseToken('b.1') },
  ];
}

function promises(name: string, guard: () => LaneGuard): void {
  describe(`the guard in ${name}`, () => {
    test('lets one call of a lane pass, and the next one after it was freed', async () => {
      const [a, b] = twoCalls();
      expect(await guard().take(a, longMs)).toEqual({ kind: 'taken' });
      const reply = await guard().take(b, longMs);
      // Long before its time is over: most calls free their lane.
      const retryInMs = reply.kind === 'taken by another' ? reply.retryInMs : 0;
      expect(retryInMs > 0 && retryInMs < longMs / 2).toBe(true);
      await guard().free(a);
      expect(await guard().take(b, longMs)).toEqual({ kind: 'taken' });
    });

    test('may be asked again for a call that has the lane, and is freed by that call alone', async () => {
      const [a, b] = twoCalls();
      await guard().take(a, longMs);
      expect(await guard().take(a, longMs)).toEqual({ kind: 'taken' });
      await guard().free(b);
      expect(await guard().take(b, longMs)).toMatchObject({ kind: 'taken by another' });
    });

    test('keeps a lane for its time, and as long again where it is asked again', async () => {
      const [a, b] = twoCalls();
      await guard().take(a, shortMs);
      for (;;) {
        const reply = await guard().take(b, longMs);
        if (reply.kind === 'taken') break;
        expect(reply).toMatchObject({ kind: 'taken by another' });
      }
      await guard().take(b, shortMs);
      while ((await guard().take(a, longMs)).kind !== 'taken');
    });

    test('keeps lanes apart', async () => {
      await guard().take(twoCalls()[0], longMs);
      expect(await guard().take(twoCalls()[1], longMs)).toEqual({ kind: 'taken' });
    });
  });
}

const inMemory = new MemoryLaneGuard(systemClock);
promises('memory', () => inMemory);

describe('with a Redis', () => {
  let server: RedisServer;
  let straight: Redis;
  let guard: LaneGuard;
  let close = (): void => {};
  let isAway = false;
  let comesBack = (): void => {};
  beforeAll(async () => {
    server = await startRedis();
    straight = new Redis(server.port, '127.0.0.1');
    const { redis } = redisSettings(`url: "${server.url}"`);
    if (redis === null) throw new Error('no Redis is configured');
    const connection = connectRedis(redis, { clock: systemClock, random: systemRandom }, () => {});
    await new Promise((resolve) => connection.client.once('ready', resolve));
    const health = new RedisHealth({
      connection,
      clock: systemClock,
      telemetry: noTelemetry,
      troubles: new RedisTroubles(noTelemetry.log, { tls: false }),
      commandTimeoutMs: redis.commandTimeoutMs,
      tripsOnPermanentError: false,
      check: async () => {},
    });
    const away = { kind: 'unavailable' } as const;
    const run: typeof health.run = (...said) => (isAway ? Promise.resolve(away) : health.run(...said));
    const watch: typeof health.watch = ({ onAvailable }) => {
      comesBack = onAvailable;
      return () => {};
    };
    guard = new RedisLaneGuard(Object.assign(Object.create(health) as RedisHealth, { run, watch }));
    close = () => {
      health.close();
      connection.close();
    };
  });
  afterAll(async () => {
    straight.disconnect();
    close();
    await server.stop();
  });

  promises('Redis', () => guard);

  test('the key of a lane expires by itself', async () => {
    const [a] = twoCalls();
    await guard.take(a, longMs);
    const leftMs = await straight.pttl(`sluice:lane:{b}:${a.lane}`);
    expect(leftMs > 0 && leftMs <= longMs).toBe(true);
  });

  test('a lane that was to be freed while Redis was away is free when it is back', async () => {
    const [a, b] = twoCalls();
    await guard.take(a, longMs);
    isAway = true;
    await guard.free(a);
    expect(await guard.take(b, longMs)).toEqual({ kind: 'unavailable' });
    isAway = false;
    comesBack();
    while ((await guard.take(b, longMs)).kind !== 'taken');
  });
});
