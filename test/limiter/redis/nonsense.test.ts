/**
 * Replies of the right type and without sense, as a proxy between gateway and Redis, a foreign script or a bug in Sluice
 * would give them. A real redis-server runs scripts of the test's in place of the service's.
 */
import { afterEach, expect, test } from '@jest/globals';
import { bucketKey, ceilingKey, laneKey, ticketId } from '../../../src/ids.ts';
import { connectRedis, type RedisClient } from '../../../src/redis/connection.ts';
import { until } from '../../support/until.ts';
import { onRedis } from '../../support/shared-redis.ts';
import { admission } from '../../support/admission.ts';
import { startReplica, type TestReplica } from '../../support/redis-replica.ts';

const server = onRedis();
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
  `return false`,
  `return 7`,
  `return 'granted'`,
  `return {}`,
  // An unknown word, and a term that is no number.
  `return { 'welcome', 'life', {}, '', '1', '0', '', '' }`,
  `return { 'whole', 'life', {}, '', 'nan', '0', '', '' }`,
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

const all = Object.keys(scripts) as Script[];
test.each(all.flatMap((name) => [[name, 'local'] as const, [name, 'deny'] as const]))(
  'when Redis replies to %s with anything malformed, and whenDown is %s, no call ends in an internal error',
  async (name, mode) => {
    const { replica, spoil } = await replicaWith(name, mode);
    const isAway = mode === 'deny' && (name === 'append' || name === 'begin');
    const isDenied = mode === 'deny' && name === 'consume';
    for (const [at, lua] of nonsense.entries()) {
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
    if (name === 'append') expect(replica.bugs).toHaveLength(1);
    if (name === 'append' && mode === 'local')
      expect(replica.noted).toEqual(expect.arrayContaining(['error reply', 'mode local']));
  },
);
