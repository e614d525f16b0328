/** Ends of calls for which nobody waits: when they are sent, and with what. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import type { Grant, Settlement } from '../../../src/limiter/limiter.ts';
import { deferMs } from '../../../src/limiter/redis/event-queue.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';
import { batchOf } from '../../simulation/replicas/batch-text.ts';

let redis: VirtualRedis;
let one: VirtualReplica;
/** Kinds of the events of each batch that has reached Redis. */
let batches: string[][];

beforeEach(async () => {
  redis = new VirtualRedis();
  const { server } = redis;
  const execute = server.execute.bind(server);
  server.execute = (command, words) => {
    const kinds = command === 'sluiceApplyV1' ? batchOf(words[4] ?? '').events.map(({ kind }) => kind) : [];
    if (kinds.length > 0 && !kinds.includes('tick')) batches.push(kinds);
    return execute(command, words);
  };
  one = await redis.replica('one');
  batches = [];
});
afterEach(async () => {
  const closing = one.close();
  await redis.pass(1_000);
  await closing;
});

async function granted(ticket: string, options: AdmissionOptions = {}): Promise<Grant> {
  const asked = one.limiter.admit(admission(ticket, { limit: 100, ...options }));
  await redis.pass(20);
  const reply = await asked;
  if (reply.kind !== 'granted') throw new Error(`not granted: ${reply.kind}`);
  batches = [];
  return reply.grant;
}

const succeeded = { kind: 'succeeded', spent: null } as const;
const settle = (grant: Grant, settlement: Settlement = succeeded): void =>
  void one.limiter.settle(grant, settlement, null);

test('the end of a call goes with the next call of its bucket', async () => {
  const first = await granted('first');
  settle(first);
  await redis.pass(1);
  expect(batches).toEqual([]);
  settle(await granted('second'));
  await redis.pass(20);
  const other = await granted('third');
  settle(other);
  void one.limiter.admit(admission('fourth', { limit: 100 }));
  await redis.pass(20);
  expect(batches).toEqual([['settle', 'admit']]);
});

test('the end of a call that no other follows is sent a little later', async () => {
  settle(await granted('alone'));
  await redis.pass(deferMs - 1);
  expect(batches).toEqual([]);
  await redis.pass(2 + redis.toMs);
  expect(batches).toEqual([['settle']]);
});

test.each([
  ['a call of a lane that sends one at a time', { maxInFlight: 1 }, succeeded],
  ['a call that was throttled', {}, { kind: 'throttled', closeMs: 0, requeue: false, sleepMs: 0 }],
  ['a call that was not sent', {}, { kind: 'dropped' }],
] as const)('the end of %s is sent at once', async (_what, options, settlement) => {
  settle(await granted('call', options), settlement);
  await redis.pass(redis.toMs);
  expect(batches).toEqual([['settle']]);
});

test('the end of a call is sent at once while another call of this replica waits for the bucket', async () => {
  const sent = await granted('sent', { limit: 1 });
  void one.limiter.admit(admission('waits', { limit: 1 }));
  await redis.pass(20);
  batches = [];
  settle(sent);
  await redis.pass(redis.toMs);
  expect(batches).toEqual([['settle']]);
});

test('a replica that ends sends the ends of its calls at once', async () => {
  settle(await granted('last'));
  const closing = one.close();
  await redis.pass(redis.toMs);
  expect(batches).toEqual([['settle']]);
  await redis.pass(100);
  await closing;
});
