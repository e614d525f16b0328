/** For how long calls of capped lanes are kept when Redis loses its data, once and again, or is away for a moment. */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { bucketKey, ticketId } from '../../../src/ids.ts';
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

test('a capped lane waits one lease after Redis has lost its data, and a lane without a cap goes on', async () => {
  await busyLane();
  redis.server.flush();
  await redis.pass(recoveredMs);
  const asked = two.limiter.admit(admission('uncapped', { lane: 'uncapped' }));
  await redis.pass(20);
  expect((await asked).kind).toBe('granted');
  await redis.pass(leaseMs - recoveredMs - 1_000);
  expect(granted()).toEqual([]);
  await redis.pass(1_000 + recoveredMs);
  expect(granted()).toEqual(['second']);
});

test('a capped lane waits one lease when Redis loses its data again and again within it', async () => {
  await busyLane();
  for (let loss = 0; loss < 4; loss += 1) {
    redis.server.flush();
    await redis.pass(3_500);
  }
  // One second is left of the first lease, and the last loss was 3.5 s ago.
  expect(granted()).toEqual([]);
  await redis.pass(leaseMs - 4 * 3_500 + recoveredMs);
  expect(granted()).toEqual(['second']);
});

test('a loss after the wait begins another one, because a call has been sent since', async () => {
  await busyLane();
  redis.server.flush();
  await redis.pass(leaseMs + recoveredMs);
  expect(granted()).toEqual(['second']);
  redis.server.flush();
  await redis.pass(leaseMs - 500);
  expect(granted()).toEqual(['second']);
  await redis.pass(500 + recoveredMs);
  expect(granted().toSorted()).toEqual(['second', 'third']);
});

test('a replica that starts while capped lanes wait for a lease ends that wait with the others', async () => {
  await busyLane();
  redis.server.flush();
  await redis.pass(5_000);
  redis.server.flush();
  await redis.pass(3_000);
  const three = await redis.replica('three');
  const asked = Promise.all([
    one.limiter.cancel(bucketKey('bucket'), ticketId('third')),
    two.limiter.cancel(bucketKey('bucket'), ticketId('second')),
    three.limiter.admit(admission('early', oneAtATime)),
  ]);
  await redis.pass(20);
  await asked;
  await redis.pass(leaseMs - 8_000 + recoveredMs);
  expect(three.grants.map(({ ticket }) => ticket)).toEqual(['early']);
  const closing = three.close();
  await redis.pass(1_000);
  await closing;
});

test('a replica that starts on an emptied Redis before the others notice sends no serialized call beside theirs', async () => {
  await busyLane();
  // The next heartbeat of the others is more than half a second ahead: the new replica begins the epoch.
  redis.server.flush();
  const three = await redis.replica('three');
  const asked = three.limiter.admit(admission('early', oneAtATime));
  await redis.pass(20);
  expect((await asked).kind).toBe('queued');
  await redis.pass(leaseMs - 1_000);
  expect(three.grants).toEqual([]);
  const closing = three.close();
  await redis.pass(1_000);
  await closing;
});

test('a grant that Redis loses in the last moment of the wait is not handed over', async () => {
  await busyLane();
  const lostAt = redis.clock.monotonic();
  redis.server.flush();
  // Each replica ends its wait within a tick of this time, in which it cannot know of the second loss.
  while (granted().length === 0 && redis.clock.monotonic() < lostAt + leaseMs - 20) await redis.pass(10);
  redis.server.flush();
  const againAt = redis.clock.monotonic();
  await redis.pass(1_000);
  expect(granted()).toEqual([]);
  while (granted().length === 0 && redis.clock.monotonic() < againAt + 2 * leaseMs) await redis.pass(100);
  await redis.pass(2_000);
  expect(granted()).toHaveLength(1);
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
  expect(granted().toSorted()).toEqual(['second', 'third']);
  expect([...one.lost, ...two.lost]).toEqual(['unavailable', 'unavailable']);
});

describe('a reload while grants are kept from their calls', () => {
  const twoAtATime: AdmissionOptions = { ...oneAtATime, maxInFlight: 2 };

  /** Two calls are under way, and two more of each replica wait, when Redis loses its data. The first two are granted and kept. */
  async function keptGrants(): Promise<void> {
    for (const [replica, ticket] of [
      [one, 'running'],
      [two, 'running-too'],
      [one, 'first'],
      [two, 'second'],
      [one, 'third'],
      [two, 'fourth'],
    ] as const) {
      const asked = replica.limiter.admit(admission(ticket, twoAtATime));
      await redis.pass(20);
      await asked;
    }
    await redis.pass(2_000);
    redis.server.flush();
    await redis.pass(recoveredMs);
    expect(inRedis()).toBe(2);
    expect(granted()).toEqual([]);
  }

  /** Leases that Redis has given. */
  const inRedis = (): number => redis.server.model('bucket').bucket?.leases.size ?? 0;

  async function reload({ limiter }: VirtualReplica, maxInFlight: number | null): Promise<void> {
    const { bucket, lane, setting, weight, perMinute, ceilingTag } = admission('any', oneAtATime);
    const changed = { lane, weight, maxInFlight, perMinute, ceilingTag };
    const reloading = limiter.reconfigure({ bucket, setting, lanes: [changed] });
    await redis.pass(20);
    await reloading;
  }

  test.each([
    ['both replicas', ['one', 'two']],
    ['one replica, while the other goes on with its former settings', ['one']],
    ['the other replica', ['two']],
  ])('which lowers the cap at %s: they are sent one after the other', async (_who, names) => {
    await keptGrants();
    for (const [name, replica] of Object.entries({ one, two })) {
      if (names.includes(name)) await reload(replica, 1);
      await redis.pass(1_000);
    }
    await redis.pass(leaseMs);
    expect(granted()).toEqual(['first']);
    const [first] = one.grants;
    if (first !== undefined) await settled(one, first);
    expect(granted()).toEqual(['first', 'second']);
  });

  test('which raises the cap lets more of them go when the wait is over', async () => {
    await keptGrants();
    for (const replica of [one, two]) await reload(replica, 3);
    await redis.pass(1_000);
    expect(granted()).toEqual([]);
    await redis.pass(leaseMs);
    expect(granted().toSorted()).toEqual(['first', 'second', 'third']);
  });

  test('which removes the cap lets them go at once, before the calls behind them', async () => {
    await keptGrants();
    await reload(two, null);
    await reload(one, null);
    await redis.pass(20);
    expect(one.grants.map(({ ticket }) => ticket)).toEqual(['first', 'third']);
    expect(two.grants.map(({ ticket }) => ticket)).toEqual(['second', 'fourth']);
  });
});
