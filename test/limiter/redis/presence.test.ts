/** What replicas share in Redis about themselves: how many there are, and when the first of them was back after an absence. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { once } from 'node:events';
import { systemClock, systemRandom } from '../../../src/clock.ts';
import { livingChannel } from '../../../src/limiter/redis/channels.ts';
import { connectRedis } from '../../../src/redis/connection.ts';
import { Presence, presenceKeys } from '../../../src/limiter/redis/presence.ts';
import { runOwn } from '../../../src/limiter/redis/scripts.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { admission } from '../../support/admission.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { plainRedis } from '../../support/plain-redis.ts';
import { startReplica } from '../../support/redis-replica.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { until } from '../../support/until.ts';

const leaseMs = 15_000;
const recoveryGraceMs = 1_300;
const living = livingChannel({ database: 0, keyPrefix: '' });

let server: RedisServer;
let redis: Redis<'legacy'>;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis<'legacy'>(server.port, '127.0.0.1', { replyMapping: 'legacy' });
});

afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

test('replicas that come back during the recovery grace wait with the first of them, later ones begin a new grace', async () => {
  /** Milliseconds since the first replica came back, as reported to a replica that comes back at `now`. */
  const back = async (replica: string, now: number): Promise<number> => {
    const argv = [replica, '', '', '', String(now), '1'];
    const reply = await runOwn(redis, 'presence', { keys: presenceKeys, argv });
    return Array.isArray(reply) ? Number(reply[6]) : NaN;
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
    const known = ['1', '5', '9'];
    const argv = ['r1', ...known, String(now), '', knownMs === null ? '' : String(knownMs), '15000'];
    const reply = await runOwn(redis, 'presence', { keys: presenceKeys, argv });
    return Array.isArray(reply) ? Number(reply[7]) : NaN;
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
});

test('a replica that is the first on an emptied Redis does not count as the only one', async () => {
  const clock = new FakeClock();
  const connection = connectRedis(
    plainRedis({ nodes: [{ host: '127.0.0.1', port: server.port }], commandTimeoutMs: 2_000 }),
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  const parts = {
    connection,
    clock,
    random: systemRandom,
    telemetry: noTelemetry,
    leaseMs,
    livingChannel: living,
  };
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

test.each([
  ['a key of another type', (key: string) => redis.set(key, 'foreign')],
  ['a list', (key: string) => redis.rpush(key, 'foreign')],
  ['a hash with other fields', (key: string) => redis.hset(key, { foreign: 'x' })],
  ['an order that is no number', (key: string) => redis.hset(key, { order: 'x' })],
  ['a start that is no number', (key: string) => redis.hset(key, { start: 'x' })],
  ['heartbeats that are no number', (key: string) => redis.hset(key, { beats: 'x' })],
  ['a hold that is no number', (key: string) => redis.hset(key, { held: 'x' })],
  ['a doubt that is no number', (key: string) => redis.hset(key, { doubt: 'x' })],
] as const)(
  '%s, written by another application, is replaced at the next heartbeats',
  async (written, write) => {
    let known = ['', '', ''];
    const beat = async (): Promise<string> => {
      const argv = ['r1', ...known, '', '', '', '15000', living];
      const reply = await runOwn(redis, 'presence', { keys: presenceKeys, argv });
      if (!Array.isArray(reply)) throw new Error('no reply');
      const [order, start, , beats] = reply.map(String);
      known = [order ?? '', start ?? '', beats ?? ''];
      return `${order} ${start}`;
    };
    // The record keeps its other fields where only one of them is overwritten.
    const isField = written.includes('no number');
    for (const key of isField ? presenceKeys.slice(0, 1) : presenceKeys) {
      await redis.flushall();
      await beat();
      if (!isField) await redis.del(key);
      await write(key);
      await beat();
      const after = await beat();
      expect(await beat()).toBe(after);
    }
  },
);

describe('a replica that starts', () => {
  const closers: (() => unknown)[] = [];
  beforeEach(async () => {
    await redis.flushall();
    await until(async () => (await counted()) === 0);
  });
  afterEach(async () => {
    for (const close of closers.splice(0).toReversed()) await close();
  });

  /** How many replicas are subscribed to the channel of the living. */
  const counted = async (): Promise<number> => {
    const [, count] = (await redis.call('PUBSUB', 'NUMSUB', living)) as [string, number];
    return count;
  };

  /** So many take milliseconds; if they never come, the test says so before its own limit. */
  async function untilCounted(count: number): Promise<void> {
    const limit = systemClock.monotonic() + 10_000;
    await until(async () => (await counted()) === count || systemClock.monotonic() > limit);
    expect(await counted()).toBe(count);
  }

  /** A replica that beats only when it is asked to. `isHeard`: it has a subscription, as the service gives it one. */
  async function replica({ isHeard = true, keyPrefix = '' } = {}) {
    const connection = connectRedis(
      plainRedis({ nodes: [{ host: '127.0.0.1', port: server.port }], keyPrefix, commandTimeoutMs: 2_000 }),
      { clock: systemClock, random: systemRandom },
      () => {},
    );
    closers.push(() => connection.close());
    if (!connection.isReady()) await once(connection.client, 'ready');
    const presence = new Presence({
      connection,
      clock: systemClock,
      random: systemRandom,
      telemetry: noTelemetry,
      leaseMs,
      livingChannel: livingChannel({ database: 0, keyPrefix }),
    });
    if (isHeard) {
      await new Promise<void>((resolve) => {
        connection.subscribe(presence.id, { onMessage: () => {}, onReady: resolve, onError: () => {} });
      });
    }
    return { presence, connection, beat: () => presence.beat(connection.client) };
  }

  /** Two replicas that live, and of which the others can know. */
  async function livingPair() {
    const both = [await replica(), await replica()] as const;
    for (const { beat } of both) await beat();
    await untilCounted(2);
    return both;
  }

  test('on an emptied Redis, before the others have noticed, learns of the loss and holds serialized calls', async () => {
    const [one, two] = await livingPair();
    await redis.flushall();
    const third = await replica();
    await third.beat();
    expect(third.presence.losses()).toBe(1);
    expect(third.presence.heldSince()).not.toBeNull();
    // The loss is the same one for those who notice it later.
    for (const { beat, presence } of [one, two, third]) {
      await beat();
      expect(presence.losses()).toBe(1);
    }
  });

  test('where no other replica runs takes an empty Redis for a first start, as do those that start beside it, and sends serialized calls', async () => {
    const all = await Promise.all([replica(), replica(), replica()]);
    await Promise.all(all.map(({ beat }) => beat()));
    for (const { beat } of all) await beat();
    for (const { presence } of all) {
      expect(presence.losses()).toBe(0);
      expect(presence.heldSince()).toBeNull();
    }
    const service = await startReplica(`url: "${server.url}"`);
    closers.push(() => service.close());
    expect((await service.limiter.admit(admission('t', { maxInFlight: 1 }))).kind).toBe('granted');
  });

  test('under another key prefix takes its empty data for a first start, although replicas run under other prefixes', async () => {
    await livingPair();
    const other = await replica({ keyPrefix: 'other:' });
    await other.beat();
    expect(other.presence.losses()).toBe(0);
  });

  test('while another one is cut off learns of the loss when that one is back', async () => {
    const hidden = await replica({ isHeard: false });
    await hidden.beat();
    await redis.flushall();
    const fresh = await replica();
    await fresh.beat();
    expect(fresh.presence.losses()).toBe(0);
    await hidden.beat();
    for (let beats = 0; beats < 2; beats += 1) {
      await fresh.beat();
      expect(fresh.presence.losses()).toBe(1);
      expect(fresh.presence.heldSince()).not.toBeNull();
    }
  });

  test('is seen again by others after its connections were cut', async () => {
    const [one] = await livingPair();
    await redis.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await untilCounted(2);
    expect(one.connection.isReady()).toBe(true);
  });
});
