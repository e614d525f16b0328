/** Activity shared through a real Redis: what replicas see of each other, what Redis gets to see, and what its absence does. */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { createActivityRecorder, type LaneCalls, type Recorder } from '../../src/activity/recorder.ts';
import { createRedisActivity } from '../../src/activity/redis-activity.ts';
import { systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { gatewayYaml } from '../support/gateway.ts';
import { until } from '../support/until.ts';
import { ended, settableClock, type SettableClock } from '../telemetry/drive.ts';

const hash = `sha256:${'b'.repeat(64)}`;
const labelOf = (workspaceId: string) => workspaceLabel('key', workspaceId);
const lane = ['canary-acme', 'lm'] as const;
const ok = ended();

interface Replica {
  readonly name: string;
  readonly shared: ReturnType<typeof createRedisActivity>;
  readonly recorder: Recorder;
  readonly errors: string[];
}

let redis: RedisServer;
let clock: SettableClock;
const replicas: Replica[] = [];

beforeEach(async () => {
  redis = await startRedis();
  clock = settableClock();
});

afterEach(async () => {
  for (const { shared } of replicas.splice(0)) shared.close();
  await redis.stop();
});

/** A replica's recorder over this test's Redis. */
function replica(name: string, live: readonly LaneCalls[] = [], labelKey = 'one label key for all'): Replica {
  const yaml = `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }\n${gatewayYaml({ upstreams: '  up: { origins: ["https://api.example"], credential: "Bearer one" }' }, { acme: hash })}`;
  const { redis: settings } = parseSettings(yaml, { path: 'test.yaml', env: {} });
  if (settings === null) throw new Error('no Redis is configured');
  const errors: string[] = [];
  const onError = (kind: string) => void errors.push(kind);
  const common = { clock, random: systemRandom, onError, onCommand: () => {} };
  const shared = createRedisActivity({ ...common, settings, labelKey, replica: name });
  const calls = () => live.map((each) => ({ ...each, workspaceId: lane[0], upstream: lane[1] }));
  const made = {
    name,
    shared,
    recorder: createActivityRecorder({ clock, labelOf, shared, live: calls }),
    errors,
  };
  replicas.push(made);
  return made;
}

async function withReader<T>(read: (reader: Redis) => Promise<T>): Promise<T> {
  const reader = new Redis(redis.port, '127.0.0.1');
  try {
    return await read(reader);
  } finally {
    reader.disconnect();
  }
}

/** Whether the replica has said anything of its calls now. */
const hasSaid = async (reader: Redis, name: string): Promise<boolean> => {
  for (const key of await reader.keys('*:live')) if ((await reader.hexists(key, name)) === 1) return true;
  return false;
};

/** Publishes until it is stored: the connection may be (again) on its way. */
const published = ({ name, recorder }: Replica): Promise<void> =>
  withReader(async (reader) => {
    for (const key of await reader.keys('*:live')) await reader.hdel(key, name);
    for (let tries = 0; tries < 400; tries++) {
      await recorder.publish();
      if (await hasSaid(reader, name)) return;
      await sleep(10);
    }
    throw new Error(`what ${name} published is not in Redis`);
  });

/** Past what is remembered of a read. */
const later = (): void => clock.advance(6_000);

/** What a replica knows of the calls of all replicas. */
async function seen({ recorder }: Replica) {
  const hour = await recorder.hour();
  const name = recorder.nameOf(...lane);
  const { calls, waitMs } = hour.sum(name, 60).recent;
  const all = hour.sum(lane[1]);
  return { calls, maxMs: waitMs.max, arrivals: all.arrivals, replicas: hour.replicas, now: hour.calls(name) };
}

test('activity is the sum of three replicas on each, with each call counted once, and the number of replicas', async () => {
  const [one, two, three] = [replica('one'), replica('two'), replica('three')];
  await published(two);
  one.recorder.arrived(...lane, { requests: 1 });
  one.recorder.ended(...lane, { ...ok, waitedMs: 40 });
  await published(one);
  two.recorder.ended(...lane, { ...ok, waitedMs: 2_000.5 });
  await published(two);
  one.recorder.ended(...lane, ok);
  await one.recorder.publish();
  three.recorder.ended(...lane, ok);
  await published(three);
  later();
  for (const each of [one, two, three])
    expect(await seen(each)).toMatchObject({ calls: 4, maxMs: 2_001, arrivals: 1, replicas: 3 });
  expect([one, two, three].flatMap(({ errors }) => errors)).toEqual([]);
});

test('activity does not count a replica with another label key, because it shares no limit', async () => {
  const all = [replica('one'), replica('two'), replica('stranger', [], 'another label key')];
  for (const each of all) await published(each);
  later();
  expect(await Promise.all(all.map(async (each) => (await seen(each)).replicas))).toEqual([2, 2, 1]);
});

test('activity counts the waiting calls of other replicas, until they end or the replica is gone', async () => {
  const calls = [{ waiting: 4, inFlight: 1 }];
  const [one, two] = [replica('one', calls), replica('two', [{ waiting: 1, inFlight: 0 }])];
  await published(one);
  await published(two);
  later();
  for (const each of [one, two]) expect((await seen(each)).now).toEqual({ waiting: 5, inFlight: 1 });
  expect((await one.recorder.hour()).calls('lm')).toEqual({ waiting: 5, inFlight: 1 });
  calls.pop();
  await published(one);
  later();
  expect((await seen(two)).now).toEqual({ waiting: 1, inFlight: 0 });
  clock.advance(20_000);
  await published(two);
  later();
  expect(await seen(two)).toMatchObject({ replicas: 1 });
});

test('activity in Redis expires within 70 minutes, and names no workspace in keys or values', async () => {
  const one = replica('one', [{ waiting: 1, inFlight: 0 }]);
  for (let i = 0; i < 20; i++) one.recorder.ended(`canary-ws-${i}`, `up-${i % 3}`, ok);
  await published(one);
  await withReader(async (reader) => {
    const keys = await reader.keys('*');
    expect(keys).toHaveLength(2);
    for (const key of keys) {
      const ttl = await reader.ttl(key);
      expect([key, ttl > 0 && ttl <= 4_200]).toEqual([key, true]);
      const said = JSON.stringify(await reader.hgetall(key));
      expect(`${key} ${said}`).not.toMatch(/canary/);
      expect(said).toMatch(/^\{"one":".*w_[0-9a-f]{16}/);
    }
  });
});

// Each start counted as an error of Redis, and the live page said `Degraded` for a minute.
test('activity is published later by a replica that is still connecting, which is no error', async () => {
  const [one, two] = [replica('one'), replica('two')];
  one.recorder.ended(...lane, ok);
  await one.recorder.publish();
  expect((await seen(one)).replicas).toBe(1);
  await published(one);
  await published(two);
  later();
  expect((await seen(two)).calls).toBe(1);
  expect(one.errors).toEqual([]);
});

test('activity is that of this replica alone without Redis, which is counted and raises no error', async () => {
  const [one, two] = [replica('one'), replica('two')];
  one.recorder.ended(...lane, ok);
  await published(one);
  const { port } = redis;
  await redis.stop();
  later();
  two.recorder.ended(...lane, ok);
  two.recorder.ended(...lane, ok);
  await two.recorder.publish();
  expect(await seen(two)).toMatchObject({ calls: 2, replicas: 1 });
  await until(() => two.errors.includes('connection'));

  // A Redis without data: what could not be stored is stored now.
  redis = await startRedis({ port });
  await published(two);
  await published(one);
  later();
  expect((await seen(one)).calls).toBe(3);
});

test('activity is asked for once per interval from a Redis that replies with errors, not for every reader', async () => {
  const [one, two] = [replica('one'), replica('two')];
  await published(one);
  await published(two);
  await withReader((reader) => reader.call('acl', 'setuser', 'default', '-hgetall'));
  one.errors.length = 0;
  later();
  const all = await Promise.all(Array.from({ length: 50 }, () => seen(one)));
  expect(all.every(({ calls }) => calls === 0)).toBe(true);
  expect(one.errors).toEqual(['reply']);
});
