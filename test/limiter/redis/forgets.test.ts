/** Buckets that expire in Redis because no call uses them, and what replicas conclude from it. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { ceilingKey, replicaId } from '../../../src/ids.ts';
import type { MeterName } from '../../../src/call.ts';
import type { Admission, Grant, Lesson } from '../../../src/limiter/limiter.ts';
import { BucketSessions } from '../../../src/limiter/redis/bucket-sessions.ts';
import { dayKey } from '../../../src/limiter/redis/sliding-log.ts';
import { StoreClock } from '../../../src/limiter/redis/store-clock.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { admission } from '../../support/admission.ts';
import { startReplica, type TestReplica } from '../../support/redis-replica.ts';

const setting = (probe: number, ...meters: readonly MeterName[]) => ({
  meters: meters.map((meter) => ({ meter, limit: 6_000, windowMs: 60_000 })),
  learn: true,
  probe,
});

describe('in Redis, a bucket', () => {
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
  const replicas: TestReplica[] = [];
  afterEach(async () => {
    for (const replica of replicas.splice(0)) await replica.close();
  });
  const start = async (): Promise<TestReplica> => {
    const replica = await startReplica(`url: "${server.url}", commandTimeoutMs: 2000`);
    replicas.push(replica);
    return replica;
  };
  const granted = async (replica: TestReplica, ...asked: Parameters<typeof admission>): Promise<Grant> => {
    const reply = await replica.limiter.admit(admission(...asked));
    if (reply.kind !== 'granted') throw new Error(`not granted: ${reply.kind}`);
    return reply.grant;
  };
  /** Milliseconds until each of the bucket's keys expires. */
  const lives = async (bucket: string): Promise<number[]> => {
    const keys = await straight.keys(`sluice:{${bucket}}:*`);
    return Promise.all(keys.map((key) => straight.pttl(key)));
  };
  const taught: Lesson = {
    feedback: {
      meters: [{ meter: 'requests', limit: 60, windowMs: 60_000, level: { lowest: 1, highest: 1 } }],
      throttle: null,
    },
    sentAgoMs: 5,
    headAgoMs: 1,
  };

  test.each([
    ['no call was sent', 1, 5_000, 'dropped', null],
    ['calls were sent without teaching it anything', 1, 60_000, 'succeeded', null],
    ['calls were sent that taught it a limit', 1, 3_600_000, 'succeeded', taught],
  ] as const)(
    'to which %s expires when nothing of it is left to know',
    async (what, probe, lifeMs, kind, lesson) => {
      const replica = await start();
      const bucket = what.replaceAll(' ', '-');
      const grant = await granted(replica, `t-${bucket}`, { bucket, setting: setting(probe, 'requests') });
      expect(Math.min(...(await lives(bucket)))).toBeGreaterThan(3_000_000);
      await replica.limiter.settle(grant, kind === 'dropped' ? { kind } : { kind, spent: null }, lesson);
      const left = await lives(bucket);
      expect(left.length).toBeGreaterThan(0);
      expect(Math.max(...left)).toBeLessThanOrEqual(lifeMs);
      expect(Math.min(...left)).toBeGreaterThan(lifeMs - 2_500);
    },
  );

  test('lives until the units of its calls have drained', async () => {
    const replica = await start();
    const more = { bucket: 'full', setting: setting(0, 'requests_day'), costs: { requests_day: 18_000 } };
    const stated = { ...more.setting, meters: [{ meter: 'requests_day', limit: 24_000, windowMs: 240_000 }] };
    const grant = await granted(replica, 'full', { ...more, setting: stated as typeof more.setting });
    await replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
    expect(Math.min(...(await lives('full')))).toBeGreaterThan(170_000);
    expect(Math.max(...(await lives('full')))).toBeLessThan(190_000);
  });

  test.each([
    ['is not there any more', 0],
    ['is there', 1],
  ])(
    'has no part in the count of a day that %s: a call goes back to it, and no count is created',
    async (_what, before) => {
      const { ceilings } = await start();
      const ceiling = { key: ceilingKey(`day${before}`), perMinute: null, perDay: 1 };
      const taken = await ceilings.take(ceiling);
      if (taken.kind !== 'taken') throw new Error('no slot');
      // The day has ended, or Redis has lost its data.
      if (before === 0) await straight.del(dayKey(ceiling.key));
      await ceilings.giveSlotBack(ceiling, taken.slot);
      expect(await straight.get(dayKey(ceiling.key))).toBe(before === 0 ? null : '0');
      const kinds = [(await ceilings.take(ceiling)).kind, (await ceilings.take(ceiling)).kind];
      expect(kinds).toEqual(['taken', 'refused']);
    },
  );

  test('that has expired counts as new: no loss is counted, and a capped lane does not wait for a lease', async () => {
    const [a, b] = [await start(), await start()];
    const more = { bucket: 'expired', maxInFlight: 1, setting: setting(0, 'requests') };
    for (const [ticket, replica] of [
      ['a1', a],
      ['b1', b],
    ] as const) {
      const grant = await granted(replica, ticket, more);
      await replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
    }
    await straight.del(await straight.keys('sluice:{expired}:*'));
    const again = await granted(a, 'a2', more);
    await a.limiter.settle(again, { kind: 'succeeded', spent: null }, null);
    await granted(b, 'b2', more);
    expect([...a.noted, ...b.noted].filter((word) => word.startsWith('lost'))).toEqual([]);
  });

  test('that has expired counts as new after a reload, too: a capped lane does not wait for a lease', async () => {
    const replica = await start();
    const more = { bucket: 'reloaded', maxInFlight: 1, setting: setting(0, 'requests') };
    const grant = await granted(replica, 'r1', more);
    await replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
    await straight.del(await straight.keys('sluice:{reloaded}:*'));
    const { bucket, lane, weight, perMinute, ceilingTag } = admission('r', more);
    const changed = { lane, weight, maxInFlight: 2, perMinute, ceilingTag };
    await replica.limiter.reconfigure({ bucket, setting: more.setting, lanes: [changed] });
    await granted(replica, 'r2', { ...more, maxInFlight: 2 });
  });

  test('that has expired counts as new after an operator has opened it, too', async () => {
    const replica = await start();
    const more = { bucket: 'opened', maxInFlight: 1, setting: setting(0, 'requests') };
    const grant = await granted(replica, 'o1', more);
    await replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
    await straight.del(await straight.keys('sluice:{opened}:*'));
    await replica.limiter.open(grant.bucket, null);
    await granted(replica, 'o2', more);
  });

  test('that is gone while calls of this replica are in it counts as lost', async () => {
    const a = await start();
    const more = { bucket: 'lost', maxInFlight: 1, setting: setting(0, 'requests') };
    await granted(a, 'l1', more);
    await straight.del(await straight.keys('sluice:{lost}:*'));
    expect((await a.limiter.admit(admission('l2', more))).kind).toBe('queued');
    expect(a.noted).toContain('lost epoch');
  });
});

describe('a replica', () => {
  /** A limiter whose scripts reply as the test says, each command after `attempts` attempts. */
  function limiterOn(scripts: Readonly<Record<string, () => unknown>>, attempts = 1) {
    const clock = new FakeClock();
    const called: string[] = [];
    const client = Object.fromEntries(
      Object.entries(scripts).map(([name, reply]) => [
        name,
        async (...words: readonly string[]) => {
          called.push(`${name} ${words[4] ?? ''}`);
          return reply();
        },
      ]),
    );
    const limiter = new BucketSessions({
      leaseMs: 15_000,
      redis: {
        isUp: true,
        async run(_command, send) {
          for (let count = 1; ; count += 1) {
            const sentAt = clock.monotonic();
            const value = await send(client as unknown as Redis);
            if (count >= attempts) return { kind: 'reply', value, sentAt, attempts };
          }
        },
        watch: () => () => {},
        start: () => {},
        close: () => {},
      },
      replica: {
        id: replicaId('r'),
        storeClock: new StoreClock(),
        count: () => 1,
        lostAt: () => null,
        heldSince: () => null,
        losses: () => 0,
        backAt: () => null,
        withholdsMs: () => 0,
        beat: async () => {},
        checkServer: async () => {},
        onLoss: () => {},
        start: () => {},
        close: () => {},
      },
      clock,
      telemetry: noTelemetry,
      listener: { onGrant: () => {}, onClosed: () => {} },
      onStranded: () => false,
    });
    return { limiter, clock, called };
  }

  test('drops what it knows of buckets that are no longer used', async () => {
    const { limiter, clock } = limiterOn({
      sluiceApplyV1: () => '[1000,null,0,1,false,[],0,[["wait_too_long",60000,"requests",0]]]',
    });
    const admit = (asked: Admission) => limiter.of(asked.bucket).entry.admit(asked);
    limiter.start();
    for (let at = 0; at < 1_500; at += 1) await admit(admission(`t${at}`, { bucket: `made-up-${at}` }));
    expect(limiter.snapshot()).toHaveLength(1_500);
    await clock.run(50_000);
    await admit(admission('later', { bucket: 'later' }));
    await clock.run(70_000);
    expect(limiter.snapshot().map(({ bucket }) => bucket)).toContain('later');
    expect(limiter.snapshot().length).toBeLessThanOrEqual(1_000);
    await limiter.close();
  });
});
