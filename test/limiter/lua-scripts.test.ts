/**
 * What the scripts add to the policy they mirror, one promise each, on a real server: time, expiry, errors without a
 * trace, messages, and finding again what was lost. That they decide as the policy does is parity.test.ts.
 */
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { bucketKeys, replicaChannel } from '../../src/limiter/keys.ts';
import {
  admitCall,
  loadScripts,
  readAdmit,
  readLease,
  readReconfigure,
  readMessage,
  readTick,
  reconfigureCall,
  settleCall,
  tickCall,
  type AdmitReply,
  type ReplicaMessage,
  type ScriptCall,
  type StoredAdmission,
  type TickReply,
} from '../../src/limiter/scripts.ts';
import { admission as asked, type AdmissionWish } from '../support/admission.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

let server: RedisServer;
let redis: Redis;
let subscriber: Redis;
const hashes = new Map<string, string>();
const heard: { replica: string; message: ReplicaMessage }[] = [];

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy' });
  subscriber = new Redis(server.port, '127.0.0.1');
  await subscriber.psubscribe(replicaChannel('*'));
  subscriber.on('pmessage', (_pattern: string, channel: string, text: string) => {
    heard.push({ replica: channel.slice(replicaChannel('').length), message: readMessage(text) });
  });
  for (const { name, lua } of loadScripts()) {
    await redis.script('LOAD', lua);
    hashes.set(name, createHash('sha1').update(lua).digest('hex'));
  }
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

const run = async ({ script, keys, argv }: ScriptCall): Promise<unknown> =>
  redis.evalsha(hashes.get(script) ?? '', keys.length, ...keys, ...argv);

/** A call that arrives when the script runs. */
const one = (
  ticket: string,
  changes: AdmissionWish = {},
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
  bucket: 'b',
  replica,
  ...(now === undefined ? {} : { now }),
});

async function admit(replica: string, admission: StoredAdmission, now?: number): Promise<AdmitReply> {
  return readAdmit(await run(admitCall(by(replica, now), admission)), admission);
}

async function tick(replica: string, leases: readonly string[] = [], now?: number): Promise<TickReply> {
  return readTick(await run(tickCall(by(replica, now), leases)));
}

async function grantOf(replica: string, admission: StoredAdmission, now?: number): Promise<string> {
  const reply = await admit(replica, admission, now);
  if (reply.code !== 'granted') throw new Error(`not granted but ${reply.code}`);
  return reply.grant.lease;
}

const done = { kind: 'succeeded', spent: null } as const;

test("the server's own clock counts unless a time is named", async () => {
  const [seconds = '0', micros = '0'] = (await redis.time()).map(String);
  const before = Number(seconds) * 1000 + Number(micros) / 1000;
  const reply = await admit('r1', one('t1'));
  expect(reply.now).toBeGreaterThanOrEqual(before);
  expect(reply.now).toBeLessThan(before + 60_000);
  expect((await admit('r1', one('t2'), reply.now - 500)).now).toBe(reply.now);
});

test('an hour after the last use nothing is left, and not before a closed bucket opens', async () => {
  const lease = await grantOf('r1', one('t1'), 1_000);
  await admit('r2', one('t2'), 1_000);
  for (const key of bucketKeys('b')) {
    const life = await redis.pttl(key);
    expect(life).toBeGreaterThan(3_590_000);
    expect(life).toBeLessThanOrEqual(3_600_000);
  }
  const closing = { kind: 'throttled', closeMs: 7_200_000, requeue: true, sleepMs: 0 } as const;
  await run(settleCall(by('r1', 1_000), lease, closing, null));
  for (const key of bucketKeys('b')) expect(await redis.pttl(key)).toBeGreaterThan(10_790_000);
});

test('what is malformed is an error before anything is written', async () => {
  const call = admitCall(by('r1'), one('t1'));
  const header = readFileSync(new URL('../../src/limiter/lua/admit.lua', import.meta.url), 'utf8');
  const placeOf = (what: string): number => Number(new RegExp(`(\\d+) ${what}`).exec(header)?.[1] ?? NaN) - 1;
  const lists = [placeOf('costs'), placeOf('stated meters')];
  for (let at = 0; at < call.argv.length; at += 1) {
    // Whatever is not '1' is a no.
    if (at === placeOf('learn')) continue;
    const argv = call.argv.map((text, place) => (place === at ? 'not:a number=' : text));
    if (lists.includes(at)) argv[at] = 'bogus=1 bogus:1:1';
    await expect(run({ ...call, argv })).rejects.toThrow(/sluice: invalid/);
    expect(await redis.dbsize()).toBe(0);
  }
  const settle = settleCall(by('r1'), 't1.1', done, null);
  const argv = settle.argv.map((text, at) => (at === 3 ? 'finished' : text));
  await expect(run({ ...settle, argv })).rejects.toThrow(/sluice: invalid kind/);
});

test('a refused call leaves no ticket, no lane and no replica', async () => {
  const closed = { maxWaitMs: 10, costs: { requests: 1 } };
  await grantOf('r1', one('t1'), 1_000);
  const full = { maxInFlight: null, costs: { requests: 40 } };
  expect((await admit('r1', one('t2', { ...full, lane: 'm' }), 1_000)).code).toBe('queued');
  const [, records, order, replicas] = bucketKeys('b');
  const before = [
    await redis.hkeys(records),
    await redis.zrange(order, '0', '-1'),
    await redis.zcard(replicas),
  ];
  const refused = await admit('r9', one('t3', { ...closed, lane: 'n' }), 1_001);
  expect(refused.code).toBe('wait_too_long');
  const after = [
    await redis.hkeys(records),
    await redis.zrange(order, '0', '-1'),
    await redis.zcard(replicas),
  ];
  expect(after).toEqual(before);
});

test('another replica hears of its grant, and is told again until it names the lease', async () => {
  const lease = await grantOf('r1', one('t1'));
  expect((await admit('r2', one('t2'))).code).toBe('queued');
  const settled = readLease(await run(settleCall(by('r1'), lease, done, null)));
  expect(settled).toMatchObject({ leaseKnown: true, grants: [] });
  await subscriber.ping();
  const [first] = heard;
  if (first?.message.kind !== 'grants') throw new Error('nobody was told');
  expect(first).toMatchObject({ replica: 'r2', message: { bucket: 'b', born: settled.born } });
  const [grant] = first.message.grants;
  expect(grant?.ticket).toBe('t2');
  for (const _again of [1, 2]) {
    expect(await tick('r2')).toMatchObject({ grants: [grant], unnamed: 1, waitingHere: 0 });
  }
  expect(await tick('r2', [grant?.lease ?? ''])).toMatchObject({ grants: [], unnamed: 0 });
  const again = await admit('r2', one('t2'));
  expect(again).toMatchObject({ code: 'granted', grant: { lease: grant?.lease } });
});

test('replicas with waiting tickets hear that the bucket has closed, others do not', async () => {
  const lease = await grantOf('r1', one('t1'), 1_000);
  await admit('r2', one('t2'), 1_000);
  await tick('r3', [], 1_000);
  const closing = { kind: 'throttled', closeMs: 2_500, requeue: true, sleepMs: 0 } as const;
  const settled = readLease(await run(settleCall(by('r1', 1_000), lease, closing, null)));
  expect(settled).toMatchObject({ closedMs: 2_500, nextInMs: 2_500 });
  await subscriber.ping();
  expect(heard).toEqual([{ replica: 'r2', message: { kind: 'closed', bucket: 'b', closedMs: 2_500 } }]);
});

test('one replica is told to pump next, and another when the first one does not', async () => {
  const setting = {
    learn: true,
    probe: 0,
    meters: [{ meter: 'requests' as const, limit: 1, windowMs: 1_000 }],
  };
  const paced = { setting, maxInFlight: null };
  await grantOf('r1', one('t1', paced), 1_000);
  const first = await admit('r1', one('t2', paced), 1_010);
  expect(first.leads).toBe(true);
  expect((await admit('r2', one('t3', paced), 1_020)).leads).toBe(false);
  const dueAt = first.now + (first.nextInMs ?? NaN);
  expect((await tick('r2', [], dueAt + 20)).leads).toBe(false);
  expect((await tick('r2', [], dueAt + 40)).leads).toBe(true);
  expect((await tick('r1', [], dueAt + 50)).leads).toBe(false);
});

test('after everything was lost, tickets entered again keep their places before newcomers', async () => {
  const lease = await grantOf('r1', one('t1'));
  const queued = await admit('r1', one('t2'));
  if (queued.code !== 'queued') throw new Error('not queued');
  await redis.flushall();
  expect(await tick('r1', [lease])).toMatchObject({ born: null, waitingHere: 0 });
  expect(await redis.dbsize()).toBe(0);
  const busy = await grantOf('r2', one('t7'));
  const newcomer = await admit('r2', one('t8'));
  const entered = await admit('r1', one('t2', {}, { kind: 'kept', order: queued.order }));
  expect(newcomer).toMatchObject({ code: 'queued', ahead: 0 });
  expect(entered).toMatchObject({ code: 'queued', ahead: 0, order: queued.order });
  expect(entered.born).not.toBe(queued.born);
  expect(readLease(await run(settleCall(by('r1'), lease, done, null))).leaseKnown).toBe(false);
  await run(settleCall(by('r2'), busy, done, null));
  await subscriber.ping();
  expect(heard.map(({ replica }) => replica)).toEqual(['r1']);
});

test('a replica that lost some of its tickets can tell from the counts', async () => {
  await grantOf('r1', one('t1'), 1_000);
  await admit('r2', one('t2'), 1_000);
  await admit('r2', one('t3', { maxWaitMs: Infinity }), 1_000);
  expect(await tick('r2', [], 1_001)).toMatchObject({ waitingHere: 2, unnamed: 0, waiting: 2 });
  await tick('r1', [], 5_000);
  const lease = (await tick('r1', [], 6_500)).grants[0]?.lease ?? '';
  await run(settleCall(by('r1', 6_500), lease, done, null));
  expect(await tick('r2', [], 6_600)).toMatchObject({ waitingHere: 0, unnamed: 0, waiting: 0 });
});

const wide = { weight: 1, maxInFlight: null, perMinute: null, ceiling: 'none.none' };
const paced = {
  learn: true,
  probe: 0,
  meters: [{ meter: 'requests' as const, limit: 40, windowMs: 20_000 }],
};

test('new settings make no bucket and no lane, and what is malformed among them is an error before anything is written', async () => {
  const change = { setting: paced, lanes: [{ ...wide, lane: 'unknown' }] };
  const call = reconfigureCall(by('r1'), change);
  expect(readReconfigure(await run(call))).toMatchObject({ born: null });
  expect(await redis.dbsize()).toBe(0);
  for (let at = 6; at < call.argv.length; at += 1) {
    const argv = call.argv.map((text, place) => (place === at ? 'not:a number=' : text));
    await expect(run({ ...call, argv })).rejects.toThrow(/sluice: invalid/);
  }
  await admit('r1', one('t1'));
  readReconfigure(await run(call));
  const [, records] = bucketKeys('b');
  expect((await redis.hkeys(records)).filter((field) => field.startsWith('l:'))).toEqual(['l:lane']);
});

test('calls of another replica that go on under new settings hear of their grants', async () => {
  await admit('r1', one('t1'), 1_000);
  expect((await admit('r2', one('t2'), 1_000)).code).toBe('queued');
  const change = { setting: paced, lanes: [{ ...wide, lane: 'lane' }] };
  expect(readReconfigure(await run(reconfigureCall(by('r1', 1_001), change))).grants).toEqual([]);
  await subscriber.ping();
  expect(heard).toMatchObject([{ replica: 'r2', message: { kind: 'grants', grants: [{ ticket: 't2' }] } }]);
});

test('what one replica was told of a document is charged to the calls of another', async () => {
  const points = {
    learn: true,
    probe: 0,
    meters: [{ meter: 'cost' as const, limit: 1_000, windowMs: 10_000 }],
  };
  const asks = { setting: points, costs: { cost: 50 }, document: 'd', maxInFlight: null };
  const lease = await grantOf('r1', one('t1', asks), 1_000);
  expect(await admit('r2', one('t2', { ...asks, lane: 'm' }), 1_000)).toMatchObject({
    code: 'queued',
    heldBy: 'cost',
  });
  const lesson = { feedback: { meters: [], throttle: null, requestedCost: 900 }, sentAgoMs: 1, headAgoMs: 0 };
  await run(settleCall(by('r1', 1_100), lease, done, lesson));
  await subscriber.ping();
  expect(heard).toMatchObject([{ replica: 'r2', message: { kind: 'grants', grants: [{ ticket: 't2' }] } }]);
  expect((await tick('r1', [], 1_100)).meters).toMatchObject([{ meter: 'cost', level: 950 }]);
  expect(await admit('r1', one('t3', { ...asks, maxWaitMs: 5_000 }), 1_100)).toMatchObject({
    code: 'wait_too_long',
    heldBy: 'cost',
  });
});

test('sections sort as the numbers do, and give them back', async () => {
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
  const source = readFileSync(new URL('../../src/limiter/lua/sorted.lua', import.meta.url), 'utf8');
  const lua = `local orderKey = KEYS[1]\n${source}
local out = {}
for i, text in ipairs(ARGV) do
  local digits = sortable(tonumber(text))
  out[i] = digits .. ' ' .. string.format('%.17g', unsortable(digits))
end
return out`;
  const texts = numbers.map((value) => (Number.isFinite(value) ? String(value) : value > 0 ? 'inf' : '-inf'));
  const pairs = ((await redis.eval(lua, 1, 'none', ...texts)) as string[]).map((line) => line.split(' '));
  const digits = pairs.map(([sortable]) => sortable);
  expect(digits).toEqual(digits.toSorted());
  expect(new Set(digits).size).toBe(numbers.length);
  const back = pairs.map(([, text]) => Number(text?.replace('inf', 'Infinity')));
  expect(back).toEqual(numbers);
});
