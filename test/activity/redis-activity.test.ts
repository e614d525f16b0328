/** Activity shared through a real Redis: what replicas see of each other, what Redis gets to see, and what its absence does. */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { addArrival, addWait, cellOfText, cellText, emptyCell } from '../../src/activity/cell.ts';
import { Recorder, type ActivityLaneId } from '../../src/activity/recorder.ts';
import { RedisActivity } from '../../src/activity/redis-activity.ts';
import type { LaneCalls } from '../../src/activity/shared.ts';
import { systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { EndedFact } from '../../src/telemetry/events.ts';
import { digest, workspaceLabel } from '../../src/identity.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { gatewayYaml } from '../support/gateway.ts';
import { until } from '../support/until.ts';
import { settableClock, type SettableClock } from '../telemetry/drive.ts';

const hash = `sha256:${'0'.repeat(64)}`;
const keyOf = (label: string, upstream: string) => digest('key', 'activity', upstream, label);
const labelOf = (workspaceId: string) => workspaceLabel('key', workspaceId);
const lane = ['canary-acme', 'canary-lm'] as const;
const laneId = (workspaceId: string = lane[0], upstream: string = lane[1]) => ({ workspaceId, upstream });
const ok: EndedFact = {
  outcome: 'ok',
  code: null,
  heldBy: null,
  waitedMs: 0,
  attempts: 1,
  durationMs: 10,
};

interface Replica {
  readonly name: string;
  readonly shared: RedisActivity;
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
function replica(
  name: string,
  live: readonly (ActivityLaneId & LaneCalls)[] = [],
  { maxLanes = 1_000, labelKey = 'one label key for all' } = {},
): Replica {
  const yaml = `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }\n${gatewayYaml({ upstreams: '  up: { origins: ["https://api.example"], credential: "Bearer one" }' }, { acme: hash.replace(/0/g, 'b') })}`;
  const { redis: settings } = parseSettings(yaml, { path: 'test.yaml', env: {} });
  if (settings === null) throw new Error('no Redis is configured');
  const errors: string[] = [];
  const shared = new RedisActivity({
    settings,
    labelKey,
    clock,
    random: systemRandom,
    replica: name,
    onError: (kind) => void errors.push(kind),
    onCommand: () => {},
  });
  const isShown = (id: string): boolean => id.startsWith('busy-');
  const recorder = new Recorder({ clock, keyOf, labelOf, shared, isShown, live: () => live, maxLanes });
  const made = { name, shared, recorder, errors };
  replicas.push(made);
  return made;
}

/** Publishes until it is stored: the connection may be (again) on its way. */
async function published({ name, recorder }: Replica): Promise<void> {
  const alive = `sluice:{activity}:3:announced:${name}`;
  const reader = new Redis(redis.port, '127.0.0.1');
  try {
    await reader.del(alive);
    for (let tries = 0; tries < 400; tries++) {
      await recorder.publish();
      if ((await reader.exists(alive)) === 1) return;
      await sleep(10);
    }
  } finally {
    reader.disconnect();
  }
  throw new Error(`what ${name} published is not in Redis`);
}

/** Past what is remembered of a read, and past the pause after a failure. */
const later = (): void => clock.advance(6_000);

describe('activity in Redis', () => {
  test('is the sum of two replicas on both, with each call counted once, and the number of replicas', async () => {
    const [one, two] = [replica('one'), replica('two')];
    await published(two);
    one.recorder.arrived(...lane);
    one.recorder.ended(...lane, { ...ok, waitedMs: 40 });
    await published(one);
    later();
    expect(await two.recorder.active([laneId(), laneId('idle')], 60)).toEqual([laneId()]);
    two.recorder.ended(...lane, { ...ok, waitedMs: 2_000.5 });
    await published(two);
    one.recorder.ended(...lane, ok);
    await one.recorder.publish();
    later();
    for (const { recorder, shared } of [one, two]) {
      const sum = await recorder.sum(laneId(), { minutes: 5 });
      expect(sum.counts[0]).toBe(3);
      expect(Math.max(...sum.counts)).toBe(2_040.5);
      const arrivals = await recorder.arrivals(laneId());
      expect(arrivals.reduce((total, n) => total + n, 0)).toBe(1);
      expect(await shared.replicas()).toBe(2);
    }
    expect([...one.errors, ...two.errors]).toEqual([]);
  });

  test('does not count a replica with another label key, because it shares no limit', async () => {
    const [one, two] = [replica('one'), replica('two')];
    const stranger = replica('stranger', [], { labelKey: 'another label key' });
    for (const each of [one, two, stranger]) await published(each);
    later();
    for (const { shared } of [one, two]) expect(await shared.replicas()).toBe(2);
    expect(await stranger.shared.replicas()).toBe(1);
  });

  test('counts the waiting calls of other replicas, until they end or the replica is gone', async () => {
    const [workspaceId, upstream] = lane;
    const busy = { workspaceId, upstream, waiting: 4, inFlight: 1 };
    const calls = [busy];
    const [one, two] = [replica('one', calls), replica('two', [{ ...busy, waiting: 1, inFlight: 0 }])];
    await published(one);
    await published(two);
    later();
    expect(await one.recorder.calls(laneId())).toEqual({ waiting: 5, inFlight: 1 });
    expect(await two.recorder.calls(laneId())).toEqual({ waiting: 5, inFlight: 1 });
    for (const { recorder } of [one, two])
      expect(await recorder.calls({ upstream: lane[1] })).toEqual({ waiting: 5, inFlight: 1 });
    calls.pop();
    await published(one);
    later();
    expect(await two.recorder.calls(laneId())).toEqual({ waiting: 1, inFlight: 0 });
    const reader = new Redis(redis.port, '127.0.0.1');
    expect(await reader.pttl('sluice:{activity}:3:announced:two')).toBeLessThanOrEqual(20_000);
    expect(await reader.pttl('sluice:{activity}:3:announced:two')).toBeGreaterThan(0);
    reader.disconnect();
  });

  test('counts a replica that says something else of itself as one that is there', async () => {
    const one = replica('one');
    await published(one);
    const reader = new Redis(redis.port, '127.0.0.1');
    const [list = ''] = await reader.keys('sluice:{activity}:3:replicas:*');
    const said = ['{', '[]', 'null', '{"calls":[["x",1,1]],"busiest":[]}'];
    for (const [at, text] of said.entries()) {
      await reader.set(`sluice:{activity}:3:announced:stranger-${at}`, text);
      await reader.zadd(list, Math.floor(clock.now() / 60_000), `stranger-${at}`);
    }
    reader.disconnect();
    later();
    expect(await one.shared.replicas()).toBe(1 + said.length);
    expect(await one.recorder.calls(laneId())).toEqual({ waiting: 0, inFlight: 0 });
    expect(one.errors).toEqual([]);
  });

  test('covers an hour across the borders of blocks, and no longer', async () => {
    const [one, two] = [replica('one'), replica('two')];
    for (const minutes of [0, 7, 30, 22]) {
      clock.advance(minutes * 60_000);
      one.recorder.ended(...lane, ok);
      await published(one);
    }
    later();
    expect((await two.recorder.sum(laneId(), { minutes: 60 })).counts[0]).toBe(4);
    expect((await two.recorder.sum(laneId(), { minutes: 52 })).counts[0]).toBe(3);
    expect((await two.recorder.sum(laneId(), { minutes: 21 })).counts[0]).toBe(1);
    clock.advance(10 * 60_000);
    expect((await two.recorder.sum(laneId(), { minutes: 60 })).counts[0]).toBe(2);
  });

  test('reaches the other replica whole, also with hundreds of lanes', async () => {
    const [one, two] = [replica('one'), replica('two')];
    await published(two);
    for (let i = 0; i < 450; i++) one.recorder.ended(`ws-${i}`, 'lm', ok);
    await published(one);
    let seen = 0;
    for (let i = 0; i < 450; i++)
      seen += (await two.recorder.sum(laneId(`ws-${i}`, 'lm'), { minutes: 5 })).counts[0] ?? 0;
    expect(seen).toBe(450);
    expect((await two.shared.active(0)).size).toBe(450);
    expect((await two.recorder.sum({ upstream: 'lm' }, { minutes: 5 })).counts[0]).toBe(450);
  });

  test('covers all calls and the busiest of 2,000 workspaces on three replicas with room for 50 each', async () => {
    const room = { maxLanes: 50 };
    const all = [replica('one', [], room), replica('two', [], room), replica('three', [], room)];
    for (let i = 0; i < 2_000; i++) {
      all[i % 3]?.recorder.ended(`ws-${i}`, 'lm', ok);
      all[(i + 1) % 3]?.recorder.ended(`busy-${i % 10}`, 'lm', ok);
      if ([60, 100, 500, 1_500].includes(i)) for (const each of all) await published(each);
    }
    for (const each of all) await published(each);
    later();
    for (const { shared, recorder } of all) {
      expect((await recorder.sum({ upstream: 'lm' }, { minutes: 60 })).counts[0]).toBe(4_000);
      const busiest = [...(await shared.busiest())].sort(([, a], [, b]) => b - a).slice(0, 10);
      expect(busiest.map(([label]) => label).sort()).toEqual(
        Array.from({ length: 10 }, (_, n) => labelOf(`busy-${n}`)).sort(),
      );
      for (let n = 0; n < 10; n++) {
        const { counts } = await recorder.sum(laneId(`busy-${n}`, 'lm'), { minutes: 60 });
        expect(counts[0]).toBe(200);
      }
    }
  });

  test('expires within 70 minutes, and names no workspace in keys or values', async () => {
    const one = replica('one');
    for (let i = 0; i < 20; i++) one.recorder.ended(`canary-ws-${i}`, `canary-up-${i % 3}`, ok);
    await published(one);
    const reader = new Redis(redis.port, '127.0.0.1');
    const keys = await reader.keys('*');
    expect(keys.length).toBeGreaterThan(20);
    for (const key of keys) {
      const ttl = await reader.ttl(key);
      expect([key, ttl > 0 && ttl <= 4_200]).toEqual([key, true]);
      expect(key).not.toMatch(/canary/);
      const kind = await reader.type(key);
      if (kind === 'hash') {
        for (const [field, value] of Object.entries(await reader.hgetall(key))) {
          expect(field).toMatch(/^one:\d+$/);
          expect(value).toMatch(/^[\d.:;,]+$/);
        }
      } else if (kind === 'zset') {
        for (const member of await reader.zrange(key, '0', '-1'))
          expect(member).toMatch(/^(one|[\w-]{16,64})$/);
        expect((await reader.zrange(key, '0', '-1')).join()).not.toMatch(/canary/);
      } else {
        expect(await reader.get(key)).toMatch(/^\{"calls":\[\],"busiest":\[(\["w_[0-9a-f]{16}",1\],?)*\]\}$/);
      }
    }
    reader.disconnect();
  });

  // Each start counted as an error of Redis, and the live page said `Degraded` for a minute.
  test('is published later by a replica that is still connecting, which is no error', async () => {
    const one = replica('one');
    one.recorder.ended(...lane, ok);
    await one.recorder.publish();
    expect(await one.shared.active(0)).toEqual(new Set());
    await published(one);
    expect(one.errors).toEqual([]);
  });

  test('is that of this replica alone without Redis, which is counted and raises no error', async () => {
    const [one, two] = [replica('one'), replica('two')];
    one.recorder.ended(...lane, ok);
    await published(one);
    const { port } = redis;
    await redis.stop();
    later();
    two.recorder.ended(...lane, ok);
    two.recorder.ended(...lane, ok);
    await two.recorder.publish();
    expect((await two.recorder.sum(laneId(), { minutes: 5 })).counts[0]).toBe(2);
    expect(await two.recorder.active([laneId()], 60)).toHaveLength(1);
    expect(await two.shared.replicas()).toBe(1);
    await until(() => two.errors.includes('connection'));

    // A Redis without data: what could not be stored is stored now.
    redis = await startRedis({ port });
    later();
    await published(two);
    later();
    await published(one);
    later();
    expect((await one.recorder.sum(laneId(), { minutes: 5 })).counts[0]).toBe(3);
  });

  test('is that of all replicas as soon as Redis replies after a failure, without the pause that follows one', async () => {
    const [one, two] = [replica('one'), replica('two')];
    one.recorder.ended(...lane, ok);
    await published(one);
    await published(two);
    await redis.stop();
    expect(await two.shared.active(0)).toEqual(new Set());
    redis = await startRedis({ port: redis.port });
    one.recorder.ended(...lane, ok);
    await published(one);
    await published(two);
    expect(await two.shared.active(0)).toEqual(new Set([keyOf(labelOf(lane[0]), lane[1])]));
  });

  test('is requested once per interval from a Redis that replies with errors, not for every lane', async () => {
    const [one, two] = [replica('one'), replica('two')];
    await published(one);
    await published(two);
    const reader = new Redis(redis.port, '127.0.0.1');
    await reader.call('acl', 'setuser', 'default', '-hgetall');
    reader.disconnect();
    one.errors.length = 0;
    later();
    const sums = Array.from({ length: 50 }, (_, i) =>
      one.recorder.sum(laneId(`ws-${i}`, 'lm'), { minutes: 5 }),
    );
    expect((await Promise.all(sums)).every(({ counts }) => counts.every((n) => n === 0))).toBe(true);
    expect(one.errors).toEqual(['reply']);
  });
});

describe('a cell of activity as text', () => {
  test('is read back unchanged', () => {
    const cell = emptyCell(29_000_000);
    addWait(cell, 1_234.5);
    addArrival(cell, 0, { requests: 1 });
    addArrival(cell, 59, { requests: 1, tokens: 12.5 });
    expect(cellOfText(29_000_000, cellText(cell))).toEqual(cell);
    expect(cellOfText(7, cellText(emptyCell(7)))).toEqual(emptyCell(7));
  });

  test.each([
    '',
    '1;0:1;',
    `${emptyCell(0).counts.length};0:1`,
    `${emptyCell(0).counts.length};999:1;`,
    'x;y;z',
  ])('is ignored when another layout wrote %p', (text) => {
    expect(cellOfText(1, text)).toBeNull();
  });
});
