/**
 * Replies of the right type and without sense, as a proxy between gateway and Redis, a foreign script or a bug in Sluice
 * would give them. A real redis-server runs scripts of the test's in place of the service's.
 */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import { bucketKey, ceilingKey, laneKey, ticketId } from '../../../src/ids.ts';
import { connectRedis, type RedisClient } from '../../../src/redis/connection.ts';
import { until } from '../../support/until.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { admission } from '../../support/admission.ts';
import { startReplica, type TestReplica } from '../../support/redis-replica.ts';

let server: RedisServer;
beforeAll(async () => {
  server = await startRedis();
});
afterAll(() => server.stop());

const closers: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});

/** Scripts of the log, of ceilings, presence and the guard of lanes, and how many keys each has. */
const scripts = {
  append: 3,
  begin: 3,
  consume: 2,
  giveback: 2,
  slots: 2,
  restore: 1,
  presence: 1,
  takelane: 1,
  freelane: 1,
} as const;
type Script = keyof typeof scripts;

/** A replica to which Redis gives other replies to one script from the moment that `spoil` is called. */
async function replicaWith(script: Script, whenDown: 'local' | 'deny') {
  const clients: RedisClient[] = [];
  const connect: typeof connectRedis = (...wanted) => {
    const connection = connectRedis(...wanted);
    clients.push(connection.client);
    return connection;
  };
  const replica = await startReplica(`url: "${server.url}", whenDown: ${whenDown}`, { connect });
  closers.push(() => replica.close());
  const spoil = (lua: string): void => {
    const command = { lua, numberOfKeys: scripts[script] };
    for (const client of clients) client.defineCommand(`sluice_${script}`, command);
  };
  return { replica, spoil };
}

const nonsense = [
  ['nothing', `return false`],
  ['a number', `return 7`],
  ['a word', `return 'granted'`],
  ['an empty list', `return {}`],
  ['an unknown word', `return { 'welcome', 'life', {}, '', '1', '0', '', '' }`],
  ['a term that is no number', `return { 'whole', 'life', {}, '', 'nan', '0', '', '' }`],
] as const;
const moreNonsense = [
  `return { 'taken' }`,
  `return { 'perhaps', 1, '0' }`,
  `return { 'taken', 'nan', '0' }`,
  `return { '1', 'first', 'nan', '1', '' }`,
];

const setting = {
  meters: [{ meter: 'requests', limit: 1_000, windowMs: 60_000 }],
  learn: true,
  probe: 0,
} as const;
const isOneBug = [expect.stringMatching(/wrongly .*malformed/)];

describe.each(nonsense)('when Redis replies to an append with %s', (what, lua) => {
  test('and whenDown is local, the call goes on with this replica’s share and the bug is logged once', async () => {
    const { replica, spoil } = await replicaWith('append', 'local');
    spoil(lua);
    for (const ticket of ['early', 'late']) {
      const reply = await replica.limiter.admit(admission(ticket, { bucket: `local ${what}`, setting }));
      if (reply.kind !== 'granted') expect(await replica.granted(ticket)).toMatchObject({ ticket });
    }
    expect(replica.noted).toEqual(expect.arrayContaining(['error reply', 'mode local']));
    expect(replica.bugs).toEqual(isOneBug);
  });

  test('and whenDown is deny, calls are refused with limiter_unavailable and the bug is logged once', async () => {
    const { replica, spoil } = await replicaWith('append', 'deny');
    spoil(lua);
    for (const ticket of ['one', 'two', 'three']) {
      const reply = await replica.limiter.admit(admission(ticket, { bucket: `deny ${what}`, setting }));
      expect(reply).toMatchObject({ kind: 'refused', reason: 'limiter_unavailable' });
    }
    expect(replica.bugs).toEqual(isOneBug);
  });
});

/** Has every script of a replica run once; returns the kinds of the replies to a call, to one that waits, and to one that takes a slot. */
async function oneOfEach({ limiter, ceilings }: TestReplica, name: string): Promise<readonly string[]> {
  const bucket = bucketKey(name);
  const ceiling = { key: ceilingKey(name), perMinute: 5, perDay: 100 };
  const lesson = { feedback: { meters: [], throttle: null }, sentAgoMs: 1, headAgoMs: 0 };
  const ask = (ticket: string, lane: string, maxInFlight: number) =>
    limiter.admit(admission(ticket, { bucket: name, setting, lane, maxInFlight }));
  const first = await ask('first', 'serial', 1);
  const second = await ask('second', 'capped', 0);
  await limiter.forecast(bucket, ticketId('second'));
  const lane = {
    lane: laneKey('capped'),
    weight: 2,
    maxInFlight: 0,
    perMinute: null,
    ceilingTag: 'none.none',
  };
  await limiter.reconfigure({ bucket, setting, lanes: [lane] });
  await limiter.cancel(bucket, ticketId('second'));
  if (first.kind === 'granted') {
    await limiter.slotTaken(first.grant, { slots: 3, nextSlotMs: 0 });
    await limiter.learn(first.grant, lesson);
    await limiter.settle(first.grant, { kind: 'succeeded', spent: null }, lesson);
  }
  const taken = await ceilings
    .take(ceiling)
    .catch((failure: unknown) => ({ kind: String(failure) }) as const);
  if ('slot' in taken) await ceilings.giveSlotBack(ceiling, taken.slot);
  const [hold] = await ceilings.forecast(ceiling, [1]);
  const [minute, day] = [await ceilings.state(ceiling), await ceilings.dayState(ceiling)];
  expect([hold?.waitMs, minute?.remaining, day?.remaining, day?.nextSlotMs].every(Number.isFinite)).toBe(
    true,
  );
  return [first.kind, second.kind, taken.kind];
}

describe.each(Object.keys(scripts) as Script[])(
  'when Redis replies to %s with anything malformed',
  (name) => {
    test.each(['local', 'deny'] as const)(
      'and whenDown is %s, no call ends in an internal error',
      async (mode) => {
        const { replica, spoil } = await replicaWith(name, mode);
        const isAway = mode === 'deny' && (name === 'append' || name === 'begin');
        const isDenied = mode === 'deny' && name === 'consume';
        for (const [at, lua] of [...nonsense.map((each) => each[1]), ...moreNonsense].entries()) {
          spoil(lua);
          const [first, second, taken] = await oneOfEach(replica, `${name}-${mode}-${at}`);
          expect(['granted', 'queued', ...(isAway ? ['refused'] : [])]).toContain(first);
          expect(second).toBe(isAway ? 'refused' : 'queued');
          expect(taken).toBe(isDenied ? 'Refusal: limiter_unavailable' : 'taken');
        }
        // Heartbeats come of themselves.
        if (name === 'presence') await until(() => replica.bugs.length > 0);
        expect(replica.bugs.filter((bug) => !/wrongly .*malformed/.test(bug))).toEqual([]);
        expect(replica.bugs.length).toBeLessThanOrEqual(1);
      },
    );
  },
);
