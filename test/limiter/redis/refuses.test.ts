/** Error replies that no command of Sluice expects: calls go on as without Redis, and none ends in an internal error. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../../src/clock.ts';
import type { Admission } from '../../../src/limiter/limiter.ts';
import { connectRedis } from '../../../src/redis/connection.ts';
import { RedisHealth } from '../../../src/redis/health.ts';
import { RedisTroubles } from '../../../src/redis/troubles.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { admission } from '../../support/admission.ts';
import { redisSettings, startReplica, type TestReplica } from '../../support/redis-replica.ts';

let server: RedisServer;
let straight: Redis;
beforeAll(async () => {
  server = await startRedis();
  straight = new Redis(server.port, '127.0.0.1');
});
afterAll(async () => {
  straight.disconnect();
  await server.stop();
});

const open: TestReplica[] = [];
afterEach(async () => {
  for (const replica of open.splice(0)) await replica.close();
});

async function replicaWith(redis: string): Promise<TestReplica> {
  const replica = await startReplica(redis);
  open.push(replica);
  return replica;
}

/** Every key of the bucket's log holds a text instead of what the log keeps there. */
async function spoil(bucket: string): Promise<void> {
  const keys = await straight.keys(`*${bucket}*`);
  expect(keys.length).toBeGreaterThan(0);
  for (const key of keys) await straight.set(key, 'not ours');
}

const setting = {
  meters: [{ meter: 'requests' as const, limit: 1_000, windowMs: 60_000 }],
  learn: true,
  probe: 0,
};

/** Resolves when the call may go: at once, or on a slow machine with a later message. */
async function enter(replica: TestReplica, wanted: Admission): Promise<void> {
  const { kind } = await replica.limiter.admit(wanted);
  if (kind === 'queued') await replica.granted(wanted.ticket);
  else expect(kind).toBe('granted');
}

test.each(['local', 'deny'])(
  'with whenDown: %s, a call goes on over Redis when the keys of its log have the wrong type: the log begins again',
  async (whenDown) => {
    const replica = await replicaWith(`url: "${server.url}", whenDown: ${whenDown}`);
    const more = { bucket: `spoilt-${whenDown}`, setting };
    await enter(replica, admission('before', more));
    await spoil(more.bucket);
    await enter(replica, admission('after', more));
    expect(replica.noted).toEqual(['mode redis']);
  },
);

test('a command with an unexpected error reply is sent once, makes Redis unavailable at once and is logged as a bug', async () => {
  const { redis } = redisSettings(`url: "${server.url}"`);
  if (redis === null) throw new Error('no Redis is configured');
  const connection = connectRedis(redis, { clock: systemClock, random: systemRandom }, () => {});
  await new Promise((resolve) => connection.client.once('ready', resolve));
  const bugs: string[] = [];
  const health = new RedisHealth({
    connection,
    clock: systemClock,
    telemetry: {
      ...noTelemetry,
      log: { ...noTelemetry.log, bug: (_text, cause) => void bugs.push(String(cause)) },
    },
    troubles: new RedisTroubles(noTelemetry.log, { tls: false }),
    commandTimeoutMs: redis.commandTimeoutMs,
    tripsOnPermanentError: true,
    check: async () => {},
  });
  await straight.set('text', 'not a list');
  let sent = 0;
  const refused = health.run('other', (client) => {
    sent += 1;
    return client.lpush('text', 'more');
  });
  expect(await refused).toEqual({ kind: 'unavailable' });
  expect({ sent, isUp: health.isUp, bugs: bugs.map((bug) => bug.slice(0, 21)) }).toEqual({
    sent: 1,
    isUp: false,
    bugs: ['ReplyError: WRONGTYPE'],
  });
  // Redis is there and is tried again: one wrong key does not make it unavailable for good.
  await new Promise<void>((resolve) => {
    health.watch({ onUnavailable: () => {}, onAvailable: resolve });
  });
  expect(await health.run('other', (client) => client.get('text'))).toMatchObject({
    kind: 'reply',
    value: 'not a list',
  });
  health.close();
  connection.close();
});
