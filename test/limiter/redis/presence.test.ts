/** What replicas share in Redis about themselves: how many there are, and when the first of them was back after an absence. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { once } from 'node:events';
import { systemClock, systemRandom } from '../../../src/clock.ts';
import { recoveryGraceMs } from '../../../src/limiter/redis/bucket-view.ts';
import { defineCommands, runOwn } from '../../../src/limiter/redis/protocol/commands.ts';
import { connectRedis } from '../../../src/limiter/redis/client/connection.ts';
import { Presence, presenceKeys } from '../../../src/limiter/redis/presence.ts';
import { noTelemetry } from '../../../src/telemetry/noop.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { plainRedis } from '../../support/plain-redis.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';

let server: RedisServer;
let redis: Redis<'legacy'>;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis<'legacy'>(server.port, '127.0.0.1', { replyMapping: 'legacy' });
  defineCommands(redis);
});

afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

test('replicas that come back during the recovery grace wait with the first of them, later ones begin a new grace', async () => {
  /** Milliseconds since the first replica came back, as reported to a replica that comes back at `now`. */
  const back = async (replica: string, now: number): Promise<number> => {
    const argv = [replica, 'run', '', String(now), '1'];
    const reply = await runOwn(redis, 'presence', { keys: presenceKeys, argv });
    return Array.isArray(reply) ? Number(reply[4]) : NaN;
  };
  expect(await back('r1', 10_000)).toBe(0);
  expect(await back('r2', 10_400)).toBe(400);
  expect(await back('r3', 10_000 + recoveryGraceMs - 1)).toBe(recoveryGraceMs - 1);
  // Both replicas lose Redis once more and come back.
  expect(await back('r1', 10_000 + recoveryGraceMs)).toBe(0);
  expect(await back('r2', 10_100 + recoveryGraceMs)).toBe(100);
});

test('a loss within the hold of serialized calls does not begin a new one, and a later loss does', async () => {
  /** Milliseconds since the hold began, as reported to a replica that knows it for so long. */
  const held = async (now: number, knownMs: number | null): Promise<number> => {
    const argv = ['r1', 'run', '5', String(now), '', knownMs === null ? '' : String(knownMs), '15000'];
    const reply = await runOwn(redis, 'presence', { keys: presenceKeys, argv });
    return Array.isArray(reply) ? Number(reply[5]) : NaN;
  };
  await redis.flushall();
  expect(await held(100_000, null)).toBe(0);
  expect(await held(101_000, 1_000)).toBe(1_000);
  await redis.flushall();
  expect(await held(110_000, 10_000)).toBe(10_000);
  // A replica that has not heard of it yet.
  expect(await held(111_000, null)).toBe(11_000);
  await redis.flushall();
  expect(await held(116_000, 16_000)).toBe(0);
  // A replica of the version before began the latest epoch.
  await redis.set(presenceKeys[0], 'run 120000 change');
  expect(await held(121_000, 5_000)).toBe(1_000);
});

test('a replica that is the first on an emptied Redis does not count as the only one', async () => {
  const clock = new FakeClock();
  const connection = connectRedis(
    plainRedis({ nodes: [{ host: '127.0.0.1', port: server.port }] }),
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  defineCommands(connection.client);
  const parts = { connection, clock, random: systemRandom, telemetry: noTelemetry, leaseMs: 15_000 };
  const [one, two] = [new Presence(parts), new Presence(parts)];
  const later = (ms: number): Promise<boolean> => {
    clock.outside(clock.monotonic() + ms, () => {});
    return clock.run(clock.monotonic() + ms);
  };
  try {
    await redis.flushall();
    if (!connection.isReady()) await once(connection.client, 'ready');
    await two.beat(connection.client);
    await one.beat(connection.client);
    expect(one.count()).toBe(2);
    await later(20_000);
    await redis.flushall();
    await one.beat(connection.client, true);
    expect(one.count()).toBe(2);
    await later(4_000);
    await one.beat(connection.client);
    expect(one.count()).toBe(2);
    // The other replica stays silent, so this one is the only one.
    await later(1_001);
    await one.beat(connection.client);
    expect(one.count()).toBe(1);
    await two.beat(connection.client);
    await one.beat(connection.client);
    expect(one.count()).toBe(2);
  } finally {
    connection.close();
  }
});
