/**
 * Replies of the right type and without sense, as a proxy between gateway and Redis, a foreign script or a bug in Sluice
 * would give them. A real redis-server runs scripts of the test's in place of the service's.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { bucketKey, ceilingKey, laneKey, ticketId } from '../../../src/ids.ts';
import { bucketKeys } from '../../../src/limiter/redis/protocol/keys.ts';
import { defineCommands } from '../../../src/limiter/redis/protocol/commands.ts';
import { connectRedis } from '../../../src/redis/connection.ts';
import { buildScripts } from '../../../src/limiter/redis/protocol/scripts.ts';
import type { Connect } from '../../../src/limiter/stores.ts';
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

/**
 * A replica to which Redis gives other replies from the moment that `spoil` is called: a command of ceilings or presence
 * (`Consume`), or every batch that has an event of a kind (`admit`). `null`: as before.
 */
async function replicaWith(what: string, whenDown: 'local' | 'deny') {
  const clients: Parameters<typeof defineCommands>[0][] = [];
  const connect: Connect = (...wanted) => {
    const connection = connectRedis(...wanted);
    defineCommands(connection.client);
    clients.push(connection.client);
    return connection;
  };
  const replica = await startReplica(`url: "${server.url}", whenDown: ${whenDown}`, { connect });
  closers.push(() => replica.close());
  const numberOfKeys = keysOf[what] ?? null;
  const spoil = (lua: string | null): void => {
    for (const client of clients) {
      if (numberOfKeys !== null) {
        client.defineCommand(`sluice${what}V1`, { lua: lua ?? '', numberOfKeys });
        replaceFunction(client, what.toLowerCase(), Reflect.get(client, `sluice${what}V1`) as Run);
        continue;
      }
      client.defineCommand('spoilt', { lua: spoilt(what, lua), numberOfKeys: 4 });
      const run = Reflect.get(client, 'spoilt') as Run;
      Reflect.set(client, 'sluiceApplyV1', run);
      replaceFunction(client, 'apply', run);
    }
  };
  return { replica, spoil };
}

type Run = (...words: readonly string[]) => Promise<unknown>;

/** Runs this instead of the function of the library whose name ends so. */
function replaceFunction(client: Parameters<typeof defineCommands>[0], name: string, run: Run): void {
  const others = client.fcall.bind(client);
  Reflect.set(client, 'fcall', (called: string, keys: number, ...words: string[]) =>
    called.endsWith(`_${name}`) ? Reflect.apply(run, client, words) : others(called, keys, ...words),
  );
}

const keysOf: Readonly<Record<string, number>> = {
  Consume: 2,
  Giveback: 2,
  Slots: 2,
  Restore: 1,
  Presence: 3,
};

/** A script that applies batches without such an event and replies with `lua` to the others. */
const spoilt = (kind: string, lua: string | null): string =>
  lua === null
    ? buildScripts().commands.apply.script
    : `if string.find(ARGV[1], '"kind":"${kind}"', 1, true) then return (function() ${lua} end)() end
${buildScripts().commands.apply.script}`;

/** A reply of `apply` with this reply to its one event. */
const replyOf = (words: string, now = '1000'): string =>
  `return '[${now},null,0,1000,true,[],0,[[${words}]]]'`;
const nonsense: readonly (readonly [string, string])[] = [
  ['nothing', `return false`],
  ['a number', `return 7`],
  ['no JSON', `return 'granted'`],
  ['an empty list', `return '[]'`],
  ['no reply to its event', `return '[1000,null,0,1000,true,[],0,[]]'`],
  ['more replies than there are events', `return '[1000,null,0,1000,true,[],0,[[],[]]]'`],
  ['an unknown code', replyOf('"welcome"')],
  ['a grant without its words', replyOf('"granted"')],
  ['a grant whose lease is no word', replyOf('"granted",1,"t 1",20000')],
  ['a grant whose end is no number', replyOf('"granted",1,"t.1","nan"')],
  ['a grant whose end never comes', replyOf('"granted",1,"t.1","inf"')],
  ['a position that is no number', replyOf('"queued",0,0,"inf","queue"')],
  ['a time that is no number', replyOf('"queued",0,0,1,"queue"', '"nan"')],
  ['grants that are none', `return '[1000,null,0,1000,true,["x"],0,[["queued",0,0,1,"queue"]]]'`],
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

describe.each(nonsense)('when Redis replies to an admission with %s', (_what, lua) => {
  test('and whenDown is local, the call goes on with this replica’s share and the bug is logged once', async () => {
    const { replica, spoil } = await replicaWith('admit', 'local');
    spoil(lua);
    await admit(replica, 'early');
    expect(await replica.granted('early')).toMatchObject({ ticket: 'early' });
    await admit(replica, 'late');
    expect(await replica.granted('late')).toMatchObject({ ticket: 'late' });
    expect(replica.noted).toEqual(['mode redis', 'error reply', 'mode local']);
    expect(replica.bugs).toEqual([expect.stringMatching(/wrongly .*"apply".*malformed/)]);
  });

  test('and whenDown is deny, calls are refused with limiter_unavailable and the bug is logged once', async () => {
    const { replica, spoil } = await replicaWith('admit', 'deny');
    spoil(lua);
    for (const ticket of ['one', 'two', 'three']) {
      expect(await admit(replica, ticket)).toMatchObject({ kind: 'refused', reason: 'limiter_unavailable' });
    }
    expect(replica.noted).not.toContain('mode deny');
    expect(replica.bugs).toEqual([expect.stringMatching(/wrongly .*"apply".*malformed/)]);
  });
});

/** Sends every command of a replica to Redis once, and returns the replies. */
async function oneOfEach(replica: TestReplica): Promise<readonly unknown[]> {
  const { limiter, ceilings } = replica;
  const ceiling = { key: ceilingKey(bucket), perMinute: 5, perDay: 100 };
  const lesson = { feedback: { meters: [], throttle: null }, sentAgoMs: 1, headAgoMs: 0 };
  const replies: unknown[] = [];
  const reply = await admit(replica, 'first');
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
    await limiter.charged(grant, { slots: 3, nextSlotMs: 0 });
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

const kinds = ['admit', 'settle', 'learn', 'charge', 'reconfigure', 'cancel', 'tick', 'forecast'];
const ofCeilings = ['Consume', 'Giveback', 'Slots', 'Restore', 'Presence'];
const everyNonsense = [
  ...nonsense.map(([, lua]) => lua),
  `return { 'taken' }`,
  `return { 'perhaps', 1, '0' }`,
  `return { 'taken', 'nan', '0' }`,
  `return { '1', 'first', 'nan', '1', '' }`,
];

describe.each([...kinds, ...ofCeilings])('when Redis replies to %s with anything malformed', (name) => {
  test.each(['local', 'deny'] as const)(
    'and whenDown is %s, no call ends in an internal error',
    async (mode) => {
      const { replica, spoil } = await replicaWith(name, mode);
      for (const [at, lua] of everyNonsense.entries()) {
        bucket = `${name}-${mode}-${at}`;
        spoil(lua);
        const replies = await oneOfEach(replica);
        const refused = mode === 'deny' && name === 'admit' ? 'refused' : 'queued';
        const admitted = replies[0] === 'granted' ? 'granted' : refused;
        expect([replies[0], replies[1]]).toEqual([admitted, refused]);
        const isDenied = mode === 'deny' && name === 'Consume';
        expect(replies.at(-1)).toBe(isDenied ? 'Refusal: limiter_unavailable' : 'taken');
      }
      expect(replica.bugs.filter((bug) => !/wrongly .*malformed/.test(bug))).toEqual([]);
      expect(replica.bugs.length).toBeLessThanOrEqual(1);
    },
  );
});

test('with whenDown: deny, a call that was refused for a malformed reply is taken out of Redis again', async () => {
  const { replica, spoil } = await replicaWith('admit', 'deny');
  const straight = new Redis(server.port, '127.0.0.1');
  closers.push(async () => straight.disconnect());
  const more = { bucket, setting, maxInFlight: 1 };
  await replica.limiter.admit(admission('first', more));
  spoil(`(function() ${buildScripts().commands.apply.script} end)() return 7`);
  const tickets = async (): Promise<string[]> =>
    (await straight.hkeys(bucketKeys(bucketKey(bucket))[1])).filter((field) => field.startsWith('t:'));
  expect(await replica.limiter.admit(admission('second', more))).toMatchObject({ kind: 'refused' });
  while ((await tickets()).length > 1) await new Promise((resolve) => setTimeout(resolve, 5));
  expect(await tickets()).toEqual(['t:first']);
});

// Redis does not count as unavailable then, so there is no recovery at which the settlement would be sent again.
test.each(['returned', 'throttled'] as const)(
  'with whenDown: deny, a call whose return to its lane (%s) got a malformed reply is granted again',
  async (kind) => {
    const { replica, spoil } = await replicaWith('settle', 'deny');
    const reply = await replica.limiter.admit(admission('again', { bucket, setting, maxInFlight: 1 }));
    if (reply.kind !== 'granted') throw new Error(`not granted: ${reply.kind}`);
    spoil('return 7');
    const back =
      kind === 'returned'
        ? { kind, sleepMs: 0, because: 'backoff' as const }
        : { kind, closeMs: 0, requeue: true, sleepMs: 0 };
    await replica.limiter.settle(reply.grant, back, null);
    spoil(null);
    const grant = await replica.granted('again');
    expect(grant.lease).not.toBe(reply.grant.lease);
    await replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
    expect(replica.limiter.snapshot().find((one) => one.bucket === bucket)?.inFlight).toBe(0);
  },
);

test('with whenDown: deny, a call whose re-entry got a malformed reply is entered once more', async () => {
  const { replica, spoil } = await replicaWith('admit', 'deny');
  const straight = new Redis(server.port, '127.0.0.1');
  closers.push(async () => straight.disconnect());
  const slow = { ...setting, meters: [{ meter: 'requests' as const, limit: 1, windowMs: 1_500 }] };
  const more = { bucket, setting: slow };
  expect((await replica.limiter.admit(admission('goes', more))).kind).toBe('granted');
  expect((await replica.limiter.admit(admission('waits', more))).kind).toBe('queued');
  spoil('return 7');
  await straight.flushall();
  while (replica.bugs.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  spoil(null);
  expect(await replica.granted('waits')).toMatchObject({ ticket: 'waits' });
});
