/** What becomes of the calls of a replica that stands still for a while, and then goes on, beside one that does not. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import type { AdmissionReply, Grant } from '../../../src/limiter/limiter.ts';
import { replicaLifeMs } from '../../../src/limiter/policy/pump.policy.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { startPair, type VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

const leaseMs = 15_000;
/** Each replica has a tick a second. */
const tickMs = 1_000;
const oneAtATime: AdmissionOptions = { lane: 'capped', maxInFlight: 1, maxWaitMs: 600_000 };

let redis: VirtualRedis;
let one: VirtualReplica;
let two: VirtualReplica;
let end: () => Promise<void>;
beforeEach(async () => {
  ({ redis, one, two, close: end } = await startPair());
});
afterEach(() => end());

async function enter({ limiter }: VirtualReplica, ticket: string): Promise<AdmissionReply> {
  const asked = limiter.admit(admission(ticket, { ...oneAtATime, arrivedAt: redis.clock.monotonic() }));
  await redis.pass(20);
  return asked;
}

async function granted(replica: VirtualReplica, ticket: string): Promise<Grant> {
  const reply = await enter(replica, ticket);
  if (reply.kind !== 'granted') throw new Error(`not granted: ${reply.kind}`);
  return reply.grant;
}

async function settled({ limiter }: VirtualReplica, grant: Grant | undefined): Promise<void> {
  if (grant === undefined) throw new Error('not granted');
  const settling = limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
  await redis.pass(20);
  await settling;
}

/** Those that waited and were granted since. */
const left = (): string[] => [...one.grants, ...two.grants].map(({ ticket }) => ticket);

test('a call of a replica that stands still keeps its capped lane for one lease, and then its lease counts as lost', async () => {
  const long = await granted(one, 'long');
  expect((await enter(two, 'second')).kind).toBe('queued');
  await redis.pass(2 * leaseMs);
  redis.still.add('one');
  await redis.pass(leaseMs - tickMs - 500);
  expect(left()).toEqual([]);
  await redis.pass(2 * tickMs + 500);
  expect(left()).toEqual(['second']);
  // Its call must not go on: the lease counts as run out before the lane is given to another one.
  expect(long.expiresAt).toBeLessThan(redis.clock.monotonic());
  redis.still.clear();
  await redis.pass(2 * tickMs);
  await settled(one, long);
  expect(one.lost).toEqual(['expired']);
});

test('calls of a replica that goes on after it was taken for dead wait again, at their former positions', async () => {
  const first = await granted(two, 'first');
  expect((await enter(one, 'second')).kind).toBe('queued');
  await redis.pass(2 * tickMs);
  redis.still.add('one');
  await redis.pass(replicaLifeMs + 2 * tickMs);
  // Redis has forgotten the ticket that waited before this one.
  expect(await enter(two, 'third')).toMatchObject({ kind: 'queued', ahead: 0 });
  redis.still.clear();
  await redis.pass(2 * tickMs);
  await settled(two, first);
  expect(left()).toEqual(['second']);
  await settled(one, one.grants[0]);
  expect(left()).toEqual(['second', 'third']);
});
