/** Serialized calls go one by one, also when Redis loses its data or is away for a moment. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import type { Grant } from '../../../src/limiter/limiter.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { startPair, type VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

const leaseMs = 15_000;
/** Replicas notice a loss within a tick, and nobody is sent for 1.3 s afterwards. */
const recoveredMs = 3_000;
const oneAtATime: AdmissionOptions = { lane: 'capped', maxInFlight: 1, maxWaitMs: 600_000 };

let redis: VirtualRedis;
let one: VirtualReplica;
let two: VirtualReplica;
let end: () => Promise<void>;
beforeEach(async () => {
  ({ redis, one, two, close: end } = await startPair());
});
afterEach(() => end());

/** A call of `one` is under way, one of each replica waits. */
async function busyLane(): Promise<Grant> {
  const entered: string[] = [];
  let first: Grant | null = null;
  for (const [replica, ticket] of [
    [one, 'first'],
    [two, 'second'],
    [one, 'third'],
  ] as const) {
    const asked = replica.limiter.admit(admission(ticket, oneAtATime));
    await redis.pass(20);
    const reply = await asked;
    entered.push(reply.kind);
    if (reply.kind === 'granted') first = reply.grant;
  }
  expect(entered).toEqual(['granted', 'queued', 'queued']);
  await redis.pass(2_000);
  if (first === null) throw new Error('not granted');
  return first;
}

const granted = (): string[] => [...one.grants, ...two.grants].map(({ ticket }) => ticket);

async function settled({ limiter }: VirtualReplica, grant: Grant): Promise<void> {
  const settling = limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
  await redis.pass(20);
  await settling;
}

test('a replica that starts on an emptied Redis before the others notice sends no serialized call beside theirs', async () => {
  const first = await busyLane();
  // The others notice it when they append next. The new replica knows nothing of them.
  redis.server.flush();
  const three = await redis.replica('three');
  const asked = three.limiter.admit(admission('early', oneAtATime));
  await redis.pass(recoveredMs);
  expect((await asked).kind).toBe('queued');
  await redis.pass(leaseMs - recoveredMs);
  expect(granted()).toEqual([]);
  expect(three.grants).toEqual([]);
  await settled(one, first);
  await redis.pass(1_000);
  expect(granted()).toEqual(['second']);
  const closing = three.close();
  await redis.pass(1_000);
  await closing;
});

test('a call that takes longer than its lease keeps its capped lane busy until it ends', async () => {
  const first = await busyLane();
  await redis.pass(3 * leaseMs);
  expect(granted()).toEqual([]);
  await settled(one, first);
  await redis.pass(1_000);
  expect(granted()).toEqual(['second']);
});

test('a capped lane goes on after an absence that no lease has outlived as soon as its call has ended, and not before', async () => {
  const first = await busyLane();
  redis.isUnavailable = true;
  await redis.pass(4_000);
  expect(one.modes.at(-1)).toBe('local');
  redis.isUnavailable = false;
  await redis.pass(recoveredMs);
  expect(one.modes.at(-1)).toBe('redis');
  expect(granted()).toEqual([]);
  await settled(one, first);
  await redis.pass(1_000);
  expect(granted()).toEqual(['second']);
});

test('a capped lane waits one lease after an absence in which calls may have been sent without Redis', async () => {
  await busyLane();
  redis.isUnavailable = true;
  await redis.pass(leaseMs - 2_000);
  redis.isUnavailable = false;
  const backAt = redis.clock.monotonic();
  while (granted().length === 0 && redis.clock.monotonic() < backAt + 3 * leaseMs) await redis.pass(100);
  expect(redis.clock.monotonic() - backAt).toBeGreaterThanOrEqual(leaseMs - 100);
});

test('a call of a capped lane that leaves without Redis counts as a lost lease, because other replicas may serve the lane', async () => {
  await busyLane();
  redis.isUnavailable = true;
  await redis.pass(leaseMs - 2_000);
  expect([...one.lost, ...two.lost]).toEqual([]);
  await redis.pass(2_000 + recoveredMs);
  // The call that is under way at the other replica keeps that one's calls waiting.
  expect(granted()).toEqual(['second']);
  expect([...one.lost, ...two.lost]).toEqual(['unavailable']);
});
