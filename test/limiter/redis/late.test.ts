/** Calls for which Redis was late: their admission is sent again, and they keep the position of their arrival. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { bucketKey, ticketId } from '../../../src/ids.ts';
import type { Admission } from '../../../src/limiter/limiter.ts';
import { systemClock, systemRandom } from '../../../src/clock.ts';
import type { Settings } from '../../../src/config/settings.ts';
import { defineCommands } from '../../../src/limiter/redis/protocol/commands.ts';
import { connectRedis, type RedisClient, type RedisConnection } from '../../../src/redis/connection.ts';
import type { RedisHealth } from '../../../src/redis/health.ts';
import { BucketSessions } from '../../../src/limiter/redis/bucket-sessions.ts';
import { Presence } from '../../../src/limiter/redis/presence.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { admission } from '../../support/admission.ts';
import { redisSettings } from '../../support/redis-replica.ts';

let server: RedisServer;
let connection: RedisConnection;

beforeAll(async () => {
  server = await startRedis();
  const { redis } = redisSettings(`url: "${server.url}", commandTimeoutMs: 2000`);
  connection = connectRedis(
    redis as NonNullable<Settings['redis']>,
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  defineCommands(connection.client);
  await new Promise((resolve) => connection.client.once('ready', resolve));
});
afterAll(async () => {
  connection.close();
  await server.stop();
});

/** A replica on the shared connection; with `late`, the first attempt of every admission is lost and the second waits for `late`. */
async function replicaOn(late: Promise<void> | null): Promise<BucketSessions> {
  const redis: RedisHealth = {
    isUp: true,
    async run<T>(command: string, send: (client: RedisClient) => Promise<T>) {
      const isLate = command === 'apply' && late !== null;
      if (isLate) await late;
      const sentAt = systemClock.monotonic();
      return { kind: 'reply', value: await send(connection.client), sentAt, attempts: isLate ? 2 : 1 };
    },
    watch: () => () => {},
    start: () => {},
    close: () => {},
  };
  const leaseMs = 15_000;
  const shared = { clock: systemClock, telemetry: noTelemetry };
  const replica = new Presence({
    ...shared,
    connection,
    random: systemRandom,
    leaseMs,
    livingChannel: 'living',
  });
  await replica.beat(connection.client);
  const listener = { onGrant: () => {}, onClosed: () => {} };
  return new BucketSessions({ ...shared, redis, replica, listener, leaseMs, onStranded: () => false });
}

const admit = (replica: BucketSessions, asked: Admission) => replica.of(asked.bucket).entry.admit(asked);

test('a call whose admission had to be sent twice has the position of its arrival, before later calls', async () => {
  const more = { bucket: 'late', maxInFlight: 1 };
  let arrive = (): void => {};
  const begunAt = systemClock.monotonic();
  const inTime = await replicaOn(null);
  const late = await replicaOn(new Promise((resolve) => (arrive = resolve)));
  // A replica knows the clock of Redis as exactly as its first round trips were short.
  const apartMs = 20 + systemClock.monotonic() - begunAt;
  const pause = (): Promise<void> => new Promise((resolve) => void systemClock.after(apartMs, resolve));
  expect((await admit(inTime, admission('holder', more))).kind).toBe('granted');
  expect(await admit(inTime, admission('before', more))).toMatchObject({ kind: 'queued', ahead: 0 });
  await pause();
  const first = admit(late, admission('first', more));
  await pause();
  expect(await admit(inTime, admission('second', more))).toMatchObject({ kind: 'queued', ahead: 1 });
  arrive();
  expect(await first).toMatchObject({ kind: 'queued', ahead: 1 });
  expect(await inTime.known(bucketKey('late'))?.forecast(ticketId('second'))).toMatchObject({ ahead: 2 });
  await Promise.all([inTime.close(), late.close()]);
});

test('a call whose admission had to be sent twice is refused like any other when it would wait too long', async () => {
  const setting = {
    meters: [{ meter: 'requests' as const, limit: 1, windowMs: 60_000 }],
    learn: true,
    probe: 0,
  };
  const more = { bucket: 'long', setting, maxWaitMs: 1_000 };
  const inTime = await replicaOn(null);
  const late = await replicaOn(Promise.resolve());
  expect((await admit(inTime, admission('only', more))).kind).toBe('granted');
  expect(await admit(late, admission('more', more))).toMatchObject({
    kind: 'refused',
    reason: 'wait_too_long',
  });
  await Promise.all([inTime.close(), late.close()]);
});
