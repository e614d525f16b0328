/** Calls of a capped lane when Redis loses its data, or is away for a moment: they leave one after the other all the same. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import type { Grant } from '../../../src/limiter/limiter.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { startPair, type VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

const leaseMs = 15_000;
/** In this time replicas notice a loss, and have said what they have under way. */
const recoveredMs = 3_000;
const oneAtATime: AdmissionOptions = { lane: 'capped', maxInFlight: 1, maxWaitMs: 600_000 };

let redis: VirtualRedis;
let one: VirtualReplica;
let two: VirtualReplica;
let end: () => Promise<void>;
/** The call of `one` that is under way. One of each replica waits behind it. */
let first: Grant;
beforeEach(async () => {
  ({ redis, one, two, close: end } = await startPair());
  const kinds: string[] = [];
  for (const [replica, ticket] of [
    [one, 'first'],
    [two, 'second'],
    [one, 'third'],
  ] as const) {
    const reply = await enter(replica, ticket);
    kinds.push(reply.kind);
    if (reply.kind === 'granted') first = reply.grant;
  }
  expect(kinds).toEqual(['granted', 'queued', 'queued']);
  await redis.pass(2_000);
});
afterEach(() => end());

async function enter({ limiter }: VirtualReplica, ticket: string, options = oneAtATime) {
  const asked = limiter.admit(admission(ticket, { ...options, arrivedAt: redis.clock.monotonic() }));
  await redis.pass(20);
  return asked;
}

/** Calls that waited and were granted since. */
const granted = (): string[] => [...one.grants, ...two.grants].map(({ ticket }) => ticket);

/** The next call is granted when the one under way has ended, and not before; no lease counts as lost. */
async function goesOn(): Promise<void> {
  expect(granted()).toEqual([]);
  void one.limiter.settle(first, { kind: 'succeeded', spent: null }, null);
  await redis.pass(1_000);
  expect(granted()).toEqual(['second']);
  expect([...one.lost, ...two.lost]).toEqual([]);
}

test('a call that takes longer than its lease keeps its lane until it ends', async () => {
  await redis.pass(3 * leaseMs);
  await goesOn();
});

test('a call keeps its lane until it ends when Redis loses its data once and again, and a lane without a cap goes on', async () => {
  for (let loss = 0; loss < 4; loss += 1) {
    redis.server.flush();
    await redis.pass(recoveredMs);
    expect((await enter(two, `uncapped${loss}`, { lane: 'uncapped' })).kind).toBe('granted');
  }
  await redis.pass(leaseMs);
  await goesOn();
});

test.each([4_000, leaseMs - 2_000])('a call keeps its lane over an absence of Redis of %d ms', async (ms) => {
  redis.isUnavailable = true;
  await redis.pass(ms);
  expect(one.modes.at(-1)).toBe('local');
  redis.isUnavailable = false;
  await redis.pass(recoveredMs);
  expect(one.modes.at(-1)).toBe('redis');
  await goesOn();
});

test.each([
  ['starts on', true],
  ['has started before it comes to', false],
])(
  'a replica that %s an emptied Redis sends no call of the lane beside the one under way',
  async (_how, isLater) => {
    if (isLater) redis.server.flush();
    const three = await redis.replica('three');
    if (!isLater) redis.server.flush();
    void three.limiter
      .admit(admission('early', { ...oneAtATime, arrivedAt: redis.clock.monotonic() }))
      .then((reply) => reply.kind === 'granted' && three.grants.push(reply.grant));
    await redis.pass(leaseMs);
    expect(three.grants).toEqual([]);
    await goesOn();
    const closing = three.close();
    await redis.pass(1_000);
    await closing;
  },
);
