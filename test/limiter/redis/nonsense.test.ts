/**
 * Replies of the right type and without sense, as a proxy between gateway and Redis, a foreign script or a bug in Sluice
 * would give them. A real redis-server runs scripts of the test's in place of the service's.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { bucketKey, ceilingKey, laneKey, ticketId } from '../../../src/ids.ts';
import { connectRedis, type RedisClient } from '../../../src/redis/connection.ts';
import type { Connect } from '../../../src/limiter/stores.ts';
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
  const connect: Connect = (...wanted) => {
    const connection = connectRedis(...wanted);
    clients.push(connection.client);
    return connection;
  };
  const replica = await startReplica(`url: "${server.url}", whenDown: ${whenDown}`, { connect });
  closers.push(() => replica.close());
  const spoil = (lua: string): void => {
    for (const client of clients)
      client.defineCommand(`sluice_${script}`, { lua, numberOfKeys: scripts[script] });
  };
  return { replica, spoil };
}

const appended = (words: string): string => `return { ${words} }`;
const nonsense: readonly (readonly [string, string])[] = [
  ['nothing', `return false`],
  ['a number', `return 7`],
  ['a word', `return 'granted'`],
  ['an empty list', `return {}`],
  ['an unknown word', appended(`'welcome', 'life', {}, '', '1', '0', '', ''`)],
  ['a term that is no number', appended(`'whole', 'life', {}, '', 'nan', '0', '', ''`)],
];

let buckets = 0;
let bucket = '';
beforeEach(() => {
  bucket = `bucket-${(buckets += 1)}`;
});
const setting = {
  meters: [{ meter: 'requests' as const, limit: 1_000, windowMs: 60_000 }],
  learn: true,
  probe: 0,
};
const admit = (replica: TestReplica, ticket: string) =>
  replica.limiter.admit(admission(ticket, { bucket, setting }));

describe.each(nonsense)('when Redis replies to an append with %s', (_what, lua) => {
  test('and whenDown is local, the call goes on with this replica’s share and the bug is logged once', async () => {
    const { replica, spoil } = await replicaWith('append', 'local');
    spoil(lua);
    for (const ticket of ['early', 'late']) {
      const reply = await admit(replica, ticket);
      if (reply.kind !== 'granted') expect(await replica.granted(ticket)).toMatchObject({ ticket });
    }
    expect(replica.noted).toEqual(expect.arrayContaining(['error reply', 'mode local']));
    expect(replica.bugs).toEqual([expect.stringMatching(/wrongly .*malformed/)]);
  });

  test('and whenDown is deny, calls are refused with limiter_unavailable and the bug is logged once', async () => {
    const { replica, spoil } = await replicaWith('append', 'deny');
    spoil(lua);
    for (const ticket of ['one', 'two', 'three']) {
      expect(await admit(replica, ticket)).toMatchObject({ kind: 'refused', reason: 'limiter_unavailable' });
    }
    expect(replica.bugs).toEqual([expect.stringMatching(/wrongly .*malformed/)]);
  });
});

/** Has every script of a replica run once, and returns the replies. */
async function oneOfEach(replica: TestReplica): Promise<readonly unknown[]> {
  const { limiter, ceilings } = replica;
  const ceiling = { key: ceilingKey(bucket), perMinute: 5, perDay: 100 };
  const lesson = { feedback: { meters: [], throttle: null }, sentAgoMs: 1, headAgoMs: 0 };
  const replies: unknown[] = [];
  const reply = await limiter.admit(admission('first', { bucket, setting, lane: 'serial', maxInFlight: 1 }));
  replies.push(reply.kind);
  const waits = limiter.admit(admission('second', { bucket, setting, lane: 'capped', maxInFlight: 0 }));
  replies.push((await waits).kind);
  replies.push(await limiter.forecast(bucketKey(bucket), ticketId('second')));
  const lane = {
    lane: laneKey('capped'),
    weight: 2,
    maxInFlight: 0,
    perMinute: null,
    ceilingTag: 'none.none',
  };
  await limiter.reconfigure({ bucket: bucketKey(bucket), setting, lanes: [lane] });
  await limiter.cancel(bucketKey(bucket), ticketId('second'));
  const grant = reply.kind === 'granted' ? reply.grant : null;
  if (grant !== null) {
    await limiter.slotTaken(grant, { slots: 3, nextSlotMs: 0 });
    await limiter.learn(grant, lesson);
    await limiter.settle(grant, { kind: 'succeeded', spent: null }, lesson);
  }
  try {
    const taken = await ceilings.take(ceiling);
    replies.push(taken.kind);
    if (taken.kind === 'taken') await ceilings.giveSlotBack(ceiling, taken.slot);
  } catch (failure) {
    replies.push(String(failure));
  }
  const [hold] = await ceilings.forecast(ceiling, [1]);
  const { remaining } = (await ceilings.state(ceiling)) ?? {};
  const day = await ceilings.dayState(ceiling);
  expect([hold?.waitMs, remaining, day?.remaining, day?.nextSlotMs].every(Number.isFinite)).toBe(true);
  return replies;
}

const everyNonsense = [
  ...nonsense.map(([, lua]) => lua),
  `return { 'taken' }`,
  `return { 'perhaps', 1, '0' }`,
  `return { 'taken', 'nan', '0' }`,
  `return { '1', 'first', 'nan', '1', '' }`,
];

describe.each(Object.keys(scripts) as Script[])(
  'when Redis replies to %s with anything malformed',
  (name) => {
    test.each(['local', 'deny'] as const)(
      'and whenDown is %s, no call ends in an internal error',
      async (mode) => {
        const { replica, spoil } = await replicaWith(name, mode);
        for (const [at, lua] of everyNonsense.entries()) {
          bucket = `${name}-${mode}-${at}`;
          spoil(lua);
          const replies = await oneOfEach(replica);
          const isAway = mode === 'deny' && (name === 'append' || name === 'begin');
          expect(['granted', 'queued', ...(isAway ? ['refused'] : [])]).toContain(replies[0]);
          expect(replies[1]).toBe(isAway ? 'refused' : 'queued');
          const isDenied = mode === 'deny' && name === 'consume';
          expect(replies.at(-1)).toBe(isDenied ? 'Refusal: limiter_unavailable' : 'taken');
        }
        // Heartbeats come of themselves.
        if (name === 'presence') await until(() => replica.bugs.length > 0);
        expect(replica.bugs.filter((bug) => !/wrongly .*malformed/.test(bug))).toEqual([]);
        expect(replica.bugs.length).toBeLessThanOrEqual(1);
      },
    );
  },
);
