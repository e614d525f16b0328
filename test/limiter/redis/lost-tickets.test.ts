/** Tickets that Redis does not have any more, while the replicas whose calls wait for them are alive. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { bucketKey, ticketId } from '../../../src/ids.ts';
import type { AdmissionReply, Grant } from '../../../src/limiter/limiter.ts';
import { cancel } from '../../../src/limiter/policy/scheduler.policy.ts';
import { recoveryGraceMs } from '../../../src/limiter/redis/bucket-view.ts';
import { admission } from '../../support/admission.ts';
import { startPair, type VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

const oneAtATime = { lane: 'capped', maxInFlight: 1, maxWaitMs: 600_000 };
/** A replica ticks once a second, and a ticket that is entered again needs a way to Redis. */
const noticedMs = 2_500;

let redis: VirtualRedis;
let one: VirtualReplica;
let two: VirtualReplica;
let end: () => Promise<void>;
beforeEach(async () => {
  ({ redis, one, two, close: end } = await startPair());
});
afterEach(() => end());

async function enter(replica: VirtualReplica, ticket: string): Promise<Grant | null> {
  const asked = replica.limiter.admit(admission(ticket, oneAtATime));
  await redis.pass(20);
  const reply = await asked;
  return reply.kind === 'granted' ? reply.grant : null;
}

test('a ticket that Redis has lost alone is entered again, at its position', async () => {
  const first = await enter(one, 'first');
  if (first === null) throw new Error('not granted');
  expect([await enter(two, 'second'), await enter(one, 'third')]).toEqual([null, null]);
  await redis.pass(noticedMs);
  const { bucket } = redis.server.model('bucket');
  if (bucket === null) throw new Error('no bucket');
  cancel(bucket, ticketId('second'), redis.server.now());
  expect(bucket.waiting).toBe(1);

  await redis.pass(noticedMs);
  expect(bucket.waiting).toBe(2);
  const settling = one.limiter.settle(first, { kind: 'succeeded', spent: null }, null);
  await redis.pass(1_000);
  await settling;
  expect([one.grants, two.grants].map((grants) => grants.map(({ ticket }) => ticket))).toEqual([
    [],
    ['second'],
  ]);
});

test('a grant that Redis made before a replica had entered its tickets again goes back, however late it is read', async () => {
  const ask = async (replica: VirtualReplica, ticket: string, lane = 'paced'): Promise<AdmissionReply> => {
    const arrivedAt = redis.clock.monotonic();
    const limits = { lane, limit: 1, windowMs: 60_000, maxWaitMs: 600_000, arrivedAt };
    return replica.limiter.admit(admission(ticket, limits));
  };
  const asked = [ask(one, 'first'), ask(two, 'second'), ask(one, 'elsewhere', 'other')];
  await redis.pass(20);
  expect((await Promise.all(asked)).map(({ kind }) => kind)).toEqual(['granted', 'queued', 'queued']);
  await redis.pass(noticedMs);

  redis.still.add('two');
  redis.server.flush();
  for (let passed = 0; redis.server.model('bucket').bucket === null; passed += 10) {
    if (passed > noticedMs) throw new Error('the loss was not noticed');
    await redis.pass(10);
  }
  const cancelling = one.limiter.cancel(bucketKey('bucket'), ticketId('elsewhere'));
  // The other replica notices the loss from a reply, and enters its ticket again after this one has asked for a grant.
  redis.fromMs = 200;
  await redis.pass(recoveryGraceMs - 30 - (redis.fromMs - 15));
  redis.still.clear();
  await redis.pass(redis.fromMs - 15);
  const third = ask(one, 'third');
  await redis.pass(10);
  // Made by a Redis that does not know yet who came before.
  expect(
    [...(redis.server.model('bucket').bucket?.leases.values() ?? [])].map(({ ticket }) => ticket.id),
  ).toEqual(['third']);
  await redis.pass(300);
  await cancelling;
  expect((await third).kind).toBe('queued');
  await redis.pass(noticedMs);
  expect([one.grants, two.grants].map((grants) => grants.map(({ ticket }) => ticket))).toEqual([
    [],
    ['second'],
  ]);
});
