/**
 * What the scripts add to the policy that they mirror, one promise each, on a real server: time, expiry, errors without a
 * trace, messages, and finding again what was lost. That they decide as the policy does is parity.test.ts.
 */
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { readFileSync } from 'node:fs';
import { bucketKey, laneKey, leaseToken, replicaId, ticketId, type LeaseToken } from '../../../../src/ids.ts';
import { bucketKeys, replicaChannel } from '../../../../src/limiter/redis/protocol/keys.ts';
import type { ReplyOf, StoredAdmission } from '../../../../src/limiter/policy/bucket-events.ts';
import { applyCall } from '../../../../src/limiter/redis/protocol/event-codec.ts';
import type { TimedLesson } from '../../../../src/limiter/policy/lessons.policy.ts';
import type { Reconfiguration, Settlement } from '../../../../src/limiter/limiter.ts';
import { readBatch, type BucketReply } from '../../../../src/limiter/redis/protocol/reply-codec.ts';
import { readMessage, type ReplicaMessage } from '../../../../src/limiter/redis/protocol/message-codec.ts';
import { admission as asked, type AdmissionOptions } from '../../../support/admission.ts';
import { applied } from '../../../support/bucket-store.ts';
import { loadInto, type LoadedScripts } from '../../../support/loaded-scripts.ts';
import { startRedis, type RedisServer } from '../../../support/redis.ts';

let server: RedisServer;
let redis: Redis;
let subscriber: Redis;
let scripts: LoadedScripts;
const heard: { replica: string; message: ReplicaMessage }[] = [];

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy' });
  subscriber = new Redis(server.port, '127.0.0.1');
  await subscriber.psubscribe(replicaChannel(replicaId('*')));
  subscriber.on('pmessage', (_pattern: string, channel: string, text: string) => {
    heard.push({ replica: channel.slice(replicaChannel(replicaId('')).length), message: readMessage(text) });
  });
  scripts = await loadInto(redis, 'library');
});

beforeEach(() => {
  heard.length = 0;
});

afterEach(async () => {
  await redis.flushall();
});

afterAll(async () => {
  subscriber.disconnect();
  redis.disconnect();
  await server.stop();
});

/** A call that arrives when the script runs. */
const one = (
  ticket: string,
  changes: AdmissionOptions = {},
  position: StoredAdmission['position'] = { kind: 'arrival', at: null },
): StoredAdmission => ({
  ...asked(ticket, {
    bucket: 'b',
    maxInFlight: 1,
    limit: 40,
    windowMs: 20_000,
    maxWaitMs: 45_000,
    leaseMs: 30_000,
    ...changes,
  }),
  position,
});

const by = (replica: string, now?: number) => ({
  bucket: bucketKey('b'),
  replica: replicaId(replica),
  ...(now === undefined ? {} : { now }),
});

type Replied<K extends keyof ReplyOf> = Promise<BucketReply & ReplyOf[K]>;

const admit = (replica: string, admission: StoredAdmission, now?: number): Replied<'admit'> =>
  applied<'admit'>(scripts, by(replica, now), { kind: 'admit', admission });

const tick = (replica: string, leases: readonly LeaseToken[] = [], now?: number): Replied<'tick'> =>
  applied<'tick'>(scripts, by(replica, now), { kind: 'tick', leases });

const settle = (
  asking: ReturnType<typeof by>,
  lease: LeaseToken,
  settlement: Settlement,
  lesson: TimedLesson | null = null,
): Replied<'settle'> => applied<'settle'>(scripts, asking, { kind: 'settle', lease, settlement, lesson });

const reconfigure = (
  asking: ReturnType<typeof by>,
  change: Omit<Reconfiguration, 'bucket'>,
): Replied<'reconfigure'> => applied<'reconfigure'>(scripts, asking, { kind: 'reconfigure', ...change });

async function grantOf(replica: string, admission: StoredAdmission, now?: number): Promise<LeaseToken> {
  const reply = await admit(replica, admission, now);
  if (reply.kind !== 'granted') throw new Error(`not granted but ${reply.kind}`);
  return reply.lease;
}

const done = { kind: 'succeeded', spent: null } as const;

const wide = { weight: 1, maxInFlight: null, perMinute: null, ceilingTag: 'none.none' };
const paced = {
  learn: true,
  probe: 0,
  meters: [{ meter: 'requests' as const, limit: 40, windowMs: 20_000 }],
};

test('a script takes the time of its server unless a time is named, and never goes back', async () => {
  const [seconds = '0', micros = '0'] = (await redis.time()).map(String);
  const before = Number(seconds) * 1000 + Number(micros) / 1000;
  const reply = await admit('r1', one('t1'));
  expect(reply.now).toBeGreaterThanOrEqual(before);
  expect(reply.now).toBeLessThan(before + 60_000);
  expect((await admit('r1', one('t2'), reply.now - 500)).now).toBe(reply.now);
});

test('all keys of a bucket expire an hour after their last use, or an hour after a closed bucket opens', async () => {
  const lease = await grantOf('r1', one('t1'), 1_000);
  await admit('r2', one('t2'), 1_000);
  for (const key of bucketKeys(bucketKey('b'))) {
    const life = await redis.pttl(key);
    expect(life).toBeGreaterThan(3_590_000);
    expect(life).toBeLessThanOrEqual(3_600_000);
  }
  const closing = { kind: 'throttled', closeMs: 7_200_000, requeue: true, sleepMs: 0 } as const;
  await settle(by('r1', 1_000), lease, closing);
  for (const key of bucketKeys(bucketKey('b'))) expect(await redis.pttl(key)).toBeGreaterThan(10_790_000);
});

/** For every value in a batch: its path, and the batch with a malformed value there. */
function spoiled(batch: object): { readonly at: string; readonly text: string }[] {
  const found: { at: string; text: string }[] = [];
  const visit = (value: unknown, at: string, put: (other: unknown) => void): void => {
    if (typeof value === 'object' && value !== null) {
      for (const [name, inner] of Object.entries(value)) {
        visit(inner, `${at}.${name}`, (other) => Reflect.set(value, name, other));
      }
    } else if (value !== undefined && typeof value !== 'boolean') {
      put('not:a number=');
      found.push({ at, text: JSON.stringify(batch) });
      put(value);
    }
  };
  visit(batch, '', () => {});
  return found;
}

test('a malformed value anywhere in a batch is an error before anything is written', async () => {
  const entering = { kind: 'admit', admission: one('t1', { document: 'd' }) } as const;
  const lesson: TimedLesson = {
    feedback: {
      meters: [{ meter: 'requests', limit: 1, windowMs: 2, level: { lowest: 1, highest: 1 } }],
      throttle: null,
    },
    sentAt: 998,
    headAt: 999,
  };
  const { keys, argv } = applyCall(by('r1', 1_000), [
    entering,
    {
      kind: 'settle',
      lease: leaseToken('t1.1'),
      settlement: { kind: 'succeeded', spent: { requests: 1 } },
      lesson,
    },
    {
      kind: 'settle',
      lease: leaseToken('t1.1'),
      settlement: { kind: 'throttled', closeMs: 1, requeue: true, sleepMs: 1 },
      lesson: null,
    },
    {
      kind: 'settle',
      lease: leaseToken('t1.1'),
      settlement: { kind: 'returned', sleepMs: 1, because: 'backoff' },
      lesson: null,
    },
    { kind: 'learn', lease: leaseToken('t1.1'), lesson },
    { kind: 'charge', lease: leaseToken('t1.1'), edge: { slots: 1, nextSlotMs: 1 } },
    { kind: 'cancel', ticket: ticketId('t1') },
    { kind: 'forecast', ticket: ticketId('t1') },
    { kind: 'tick', leases: [leaseToken('t1.1')] },
    {
      kind: 'reconfigure',
      setting: entering.admission.setting,
      lanes: [{ ...wide, maxInFlight: 1, lane: laneKey('l') }],
    },
  ]);
  const variants = spoiled(JSON.parse(argv[0]) as object);
  expect(variants.length).toBeGreaterThan(50);
  for (const { at, text } of variants) {
    expect([at, await scripts.run({ keys, argv: [text] }).catch(String)]).toEqual([
      at,
      expect.stringMatching(/sluice: invalid/),
    ]);
    expect(await redis.dbsize()).toBe(0);
  }
});

test('a refused call leaves no ticket, no lane and no replica in Redis', async () => {
  const closed = { maxWaitMs: 10, costs: { requests: 1 } };
  await grantOf('r1', one('t1'), 1_000);
  const full = { maxInFlight: null, costs: { requests: 40 } };
  expect((await admit('r1', one('t2', { ...full, lane: 'm' }), 1_000)).kind).toBe('queued');
  const [, records, order, replicas] = bucketKeys(bucketKey('b'));
  const before = [
    (await redis.hkeys(records)).toSorted(),
    await redis.zrange(order, '0', '-1'),
    await redis.zcard(replicas),
  ];
  const refused = await admit('r9', one('t3', { ...closed, lane: 'n' }), 1_001);
  expect(refused).toMatchObject({ kind: 'refused', reason: 'wait_too_long' });
  const after = [
    (await redis.hkeys(records)).toSorted(),
    await redis.zrange(order, '0', '-1'),
    await redis.zcard(replicas),
  ];
  expect(after).toEqual(before);
});

test('a grant for another replica is published, and repeated with each tick until that replica names the lease', async () => {
  const lease = await grantOf('r1', one('t1'));
  expect((await admit('r2', one('t2'))).kind).toBe('queued');
  const settled = await settle(by('r1'), lease, done);
  expect(settled).toMatchObject({ known: true, grants: [] });
  await subscriber.ping();
  const [first] = heard;
  if (first?.message.kind !== 'grants') throw new Error('no grant was published');
  expect(first).toMatchObject({ replica: 'r2', message: { bucket: 'b', createdAt: settled.createdAt } });
  const [grant] = first.message.grants;
  expect(grant?.ticket).toBe('t2');
  for (const _again of [1, 2]) {
    expect(await tick('r2')).toMatchObject({ grants: [grant], unnamed: 1, waitingHere: 0 });
  }
  expect(await tick('r2', [leaseToken(grant?.lease ?? '')])).toMatchObject({ grants: [], unnamed: 0 });
  const again = await admit('r2', one('t2'));
  expect(again).toMatchObject({ kind: 'granted', lease: grant?.lease });
});

test('a closed bucket is published to replicas with waiting tickets, and to no others', async () => {
  const lease = await grantOf('r1', one('t1'), 1_000);
  await admit('r2', one('t2'), 1_000);
  await tick('r3', [], 1_000);
  const closing = { kind: 'throttled', closeMs: 2_500, requeue: true, sleepMs: 0 } as const;
  const settled = await settle(by('r1', 1_000), lease, closing);
  expect(settled).toMatchObject({ closedMs: 2_500, nextInMs: 2_500 });
  await subscriber.ping();
  expect(heard).toEqual([{ replica: 'r2', message: { kind: 'closed', bucket: 'b', closedMs: 2_500 } }]);
});

test('one replica is chosen to pump next, and another one when that replica does not', async () => {
  const setting = {
    learn: true,
    probe: 0,
    meters: [{ meter: 'requests' as const, limit: 1, windowMs: 1_000 }],
  };
  const paced = { setting, maxInFlight: null };
  await grantOf('r1', one('t1', paced), 1_000);
  const first = await admit('r1', one('t2', paced), 1_010);
  expect(first.isPumpLeader).toBe(true);
  expect((await admit('r2', one('t3', paced), 1_020)).isPumpLeader).toBe(false);
  const dueAt = first.now + (first.nextInMs ?? NaN);
  expect((await tick('r2', [], dueAt + 20)).isPumpLeader).toBe(false);
  expect((await tick('r2', [], dueAt + 40)).isPumpLeader).toBe(true);
  expect((await tick('r1', [], dueAt + 50)).isPumpLeader).toBe(false);
});

test('tickets entered again after a loss of all data keep their positions before calls that arrive meanwhile', async () => {
  const lease = await grantOf('r1', one('t1'));
  const queued = await admit('r1', one('t2'));
  if (queued.kind !== 'queued') throw new Error('not queued');
  await redis.flushall();
  expect(await tick('r1', [lease])).toMatchObject({ createdAt: null, waitingHere: 0 });
  expect(await redis.dbsize()).toBe(0);
  const busy = await grantOf('r2', one('t7'));
  const arriving = await admit('r2', one('t8'));
  const entered = await admit('r1', one('t2', {}, { kind: 'kept', order: queued.order }));
  expect(arriving).toMatchObject({ kind: 'queued', ahead: 0 });
  expect(entered).toMatchObject({ kind: 'queued', ahead: 0, order: queued.order });
  expect(entered.createdAt).not.toBe(queued.createdAt);
  expect(await settle(by('r1'), lease, done)).toMatchObject({ known: false });
  await settle(by('r2'), busy, done);
  await subscriber.ping();
  expect(heard.map(({ replica }) => replica)).toEqual(['r1']);
});

test('a tick reports how many tickets of its replica wait, so that lost ones are noticed', async () => {
  await grantOf('r1', one('t1'), 1_000);
  await admit('r2', one('t2'), 1_000);
  await admit('r2', one('t3', { maxWaitMs: Infinity }), 1_000);
  expect(await tick('r2', [], 1_001)).toMatchObject({ waitingHere: 2, unnamed: 0 });
  await tick('r1', [], 5_000);
  const lease = (await tick('r1', [], 6_500)).grants[0]?.lease ?? '';
  await settle(by('r1', 6_500), leaseToken(lease), done);
  expect(await tick('r2', [], 6_600)).toMatchObject({ waitingHere: 0, unnamed: 0 });
});

test('new settings create no bucket and no lane', async () => {
  const change = { setting: paced, lanes: [{ ...wide, lane: laneKey('unknown') }] };
  expect(await reconfigure(by('r1'), change)).toMatchObject({ createdAt: null });
  expect(await redis.dbsize()).toBe(0);
  await admit('r1', one('t1'));
  await reconfigure(by('r1'), change);
  const [, records] = bucketKeys(bucketKey('b'));
  expect((await redis.hkeys(records)).filter((field) => field.startsWith('l:'))).toEqual(['l:lane']);
});

test('the events of a batch are applied in order at one time, with the replies of single events', async () => {
  const events = [
    { kind: 'admit', admission: one('t1') },
    { kind: 'admit', admission: one('t2') },
    { kind: 'cancel', ticket: ticketId('t2') },
    { kind: 'cancel', ticket: ticketId('t1') },
    { kind: 'tick', leases: [] },
  ] as const;
  const { bucket, replies } = readBatch(await scripts.run(applyCall(by('r1'), events)), events);
  expect(replies).toMatchObject([
    { kind: 'granted' },
    { kind: 'queued', ahead: 0 },
    { kind: 'cancel' },
    { kind: 'cancel' },
    { kind: 'tick', waitingHere: 0 },
  ]);
  expect(bucket).toMatchObject({ unnamed: 1, grants: [] });
});

test('events that a batch leaves out because enough was granted are not applied', async () => {
  const wanted = Array.from({ length: 70 }, (_, n) => one(`t${n}`, { maxInFlight: null, limit: 1_000 }));
  const events = wanted.map((admission) => ({ kind: 'admit', admission }) as const);
  const { replies } = readBatch(await scripts.run(applyCall(by('r1'), events)), events);
  expect(replies).toHaveLength(64);
  const [, records] = bucketKeys(bucketKey('b'));
  const kinds = (await redis.hkeys(records)).map((field) => field[0]);
  expect(kinds.filter((kind) => kind === 'e')).toHaveLength(64);
  expect(kinds.filter((kind) => kind === 't')).toHaveLength(64);
});

test('grants of another replica’s calls that new settings allow are published to it', async () => {
  await admit('r1', one('t1'), 1_000);
  expect((await admit('r2', one('t2'), 1_000)).kind).toBe('queued');
  const change = { setting: paced, lanes: [{ ...wide, lane: laneKey('lane') }] };
  expect((await reconfigure(by('r1', 1_001), change)).grants).toEqual([]);
  await subscriber.ping();
  expect(heard).toMatchObject([{ replica: 'r2', message: { kind: 'grants', grants: [{ ticket: 't2' }] } }]);
});

test('the cost of a document that one replica learned is charged to the calls of another', async () => {
  const points = {
    learn: true,
    probe: 0,
    meters: [{ meter: 'cost' as const, limit: 1_000, windowMs: 10_000 }],
  };
  const asks = { setting: points, costs: { cost: 50 }, document: 'd', maxInFlight: null };
  const lease = await grantOf('r1', one('t1', asks), 1_000);
  expect(await admit('r2', one('t2', { ...asks, lane: 'm' }), 1_000)).toMatchObject({
    kind: 'queued',
    heldBy: 'cost',
  });
  const lesson = {
    feedback: { meters: [], throttle: null, requestedCost: 900 },
    sentAt: 1_098,
    headAt: 1_099,
  };
  await settle(by('r1', 1_100), lease, done, lesson);
  await subscriber.ping();
  expect(heard).toMatchObject([{ replica: 'r2', message: { kind: 'grants', grants: [{ ticket: 't2' }] } }]);
  expect((await tick('r1', [], 1_100)).meters).toMatchObject([{ meter: 'cost', level: 950 }]);
  expect(await admit('r1', one('t3', { ...asks, maxWaitMs: 5_000 }), 1_100)).toMatchObject({
    reason: 'wait_too_long',
    heldBy: 'cost',
  });
});

test('sortable sections order like their numbers and are read back unchanged', async () => {
  const numbers = [
    -Infinity,
    -1e300,
    -3.5,
    -1,
    -1e-9,
    0,
    1e-300,
    0.1,
    1,
    1.5,
    1_700_000_000_000.125,
    Infinity,
  ];
  const source = readFileSync(
    new URL('../../../../src/limiter/redis/lua/sorted.lua', import.meta.url),
    'utf8',
  );
  const lua = `local orderKey = KEYS[1]\n${source}
local out = {}
for i, text in ipairs(ARGV) do
  local digits = sortable(tonumber(text))
  out[i] = digits .. ' ' .. string.format('%.17g', unsortable(digits))
end
return out`;
  const texts = numbers.map((value) => (Number.isFinite(value) ? String(value) : value > 0 ? 'inf' : '-inf'));
  const pairs = ((await redis.eval(lua, 1, 'none', ...texts)) as string[]).map((line) => line.split(' '));
  const digits = pairs.map(([sortable = '']) => sortable);
  expect(digits).toEqual(digits.toSorted());
  expect(new Set(digits).size).toBe(numbers.length);
  const back = pairs.map(([, text]) => Number(text?.replace('inf', 'Infinity')));
  expect(back).toEqual(numbers);
});
