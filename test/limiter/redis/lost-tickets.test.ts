/** Tickets that Redis does not have any more, while the replicas whose calls wait for them are alive. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { ticketId } from '../../../src/ids.ts';
import type { Grant } from '../../../src/limiter/limiter.ts';
import { cancel } from '../../../src/limiter/policy/scheduler.policy.ts';
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
