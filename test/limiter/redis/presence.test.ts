/** What replicas share in Redis about themselves: how many there are, and whether it lacks what they had put there. */
import { expect, test } from '@jest/globals';
import { once } from 'node:events';
import { systemClock, systemRandom } from '../../../src/clock.ts';
import { connectRedis } from '../../../src/redis/connection.ts';
import { Presence, replicasKey } from '../../../src/limiter/redis/presence.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { plainRedis } from '../../support/plain-redis.ts';
import { onRedis } from '../../support/shared-redis.ts';

const server = onRedis();

/** Two replicas on one connection that beat when they are asked to, and how often each had a doubt. */
async function twoReplicas() {
  const clock = new FakeClock();
  const connection = connectRedis(
    plainRedis({ nodes: [{ host: '127.0.0.1', port: server.port }], commandTimeoutMs: 2_000 }),
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  server.closes(connection);
  if (!connection.isReady()) await once(connection.client, 'ready');
  const replica = () => {
    let doubts = 0;
    const warnings: unknown[] = [];
    const log = { ...noTelemetry.log, warn: (...[text]: unknown[]) => void warnings.push(text) };
    const telemetry = { ...noTelemetry, log };
    const parts = { connection, clock, random: systemRandom, telemetry, replicas: null };
    const presence = new Presence({ ...parts, onDoubt: () => void (doubts += 1) });
    const beat = (): Promise<void> => presence.beat(connection.client);
    return { beat, count: () => presence.count(), doubts: () => doubts, warnings };
  };
  const later = (ms: number): Promise<boolean> => {
    clock.outside(clock.monotonic() + ms, () => {});
    return clock.run(clock.monotonic() + ms);
  };
  return { one: replica(), two: replica(), later, connection };
}

test('a replica that is the first on an emptied Redis does not count as the only one', async () => {
  const { one, two, later } = await twoReplicas();
  await two.beat();
  await one.beat();
  expect(one.count()).toBe(2);
  // Redis was away for so long.
  await later(20_000);
  await server.probe.flushall();
  await one.beat();
  expect(one.count()).toBe(2);
  for (let seconds = 1; seconds <= 4; seconds += 1) {
    await later(1_000);
    await one.beat();
  }
  expect(one.count()).toBe(2);
  // The other replica stays silent, so this one is the only one.
  await later(1_001);
  await one.beat();
  expect(one.count()).toBe(1);
  await two.beat();
  await one.beat();
  expect(one.count()).toBe(2);
});

test('data that is lost between two heartbeats makes each replica doubt once, and heartbeats alone make none doubt', async () => {
  const { one, two } = await twoReplicas();
  for (let beats = 0; beats < 3; beats += 1) for (const { beat } of [one, two]) await beat();
  expect([one.doubts(), two.doubts()]).toEqual([0, 0]);
  await server.probe.flushall();
  for (let beats = 0; beats < 3; beats += 1) for (const { beat } of [one, two]) await beat();
  expect([one.doubts(), two.doubts()]).toEqual([1, 1]);
});

test('a clock of Redis that is set back makes a replica doubt once, and is no loss of data', async () => {
  const { one } = await twoReplicas();
  await one.beat();
  const [id = '', at = '0'] = await server.probe.zrange(replicasKey, '0', '-1', 'WITHSCORES');
  // What a replica finds when the clock shows an earlier time than at its last heartbeat.
  await server.probe.zadd(replicasKey, String(Number(at) + 300_000), id);
  for (let beats = 0; beats < 3; beats += 1) await one.beat();
  expect([one.doubts(), one.warnings]).toEqual([1, ['the clock of Redis was set back']]);
});

test('every new connection makes a replica doubt: it may lead to another server', async () => {
  const { one, connection } = await twoReplicas();
  await one.beat();
  const isBack = once(connection.client, 'ready');
  await server.probe.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
  await isBack;
  expect(one.doubts()).toBe(1);
});

test('a Redis without memory takes no heartbeat: a replica would count it as usable, and find that it takes no calls', async () => {
  const { one } = await twoReplicas();
  await one.beat();
  await server.probe.config('SET', 'maxmemory', '1');
  await expect(one.beat()).rejects.toThrow(/OOM/);
  await server.probe.config('SET', 'maxmemory', '0');
});

test('a foreign value in the place of the replicas is replaced', async () => {
  const { one, two } = await twoReplicas();
  await server.probe.set(replicasKey, 'foreign');
  await one.beat();
  await two.beat();
  expect(two.count()).toBe(2);
});
