/**
 * Calls of capped lanes that replicas send without Redis: how long they wait for the calls that Redis has granted, and that only
 * those which may overlap with calls of another replica are counted.
 */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

const leaseMs = 15_000;
/** A heartbeat, once a second, notices within half a second that Redis is unavailable. */
const noticedMs = 2_500;
const oneAtATime: AdmissionOptions = { lane: 'capped', maxInFlight: 1, maxWaitMs: 600_000 };

let redis: VirtualRedis;
let one: VirtualReplica;
beforeEach(async () => {
  redis = new VirtualRedis();
  one = await redis.replica('one');
});
afterEach(async () => {
  await closed(one);
});

async function closed(replica: VirtualReplica): Promise<void> {
  const closing = replica.close();
  await redis.pass(1_000);
  await closing;
}

async function loseRedis(): Promise<void> {
  redis.isUnavailable = true;
  await redis.pass(noticedMs);
  expect(one.modes.at(-1)).toBe('local');
}

/** The limiter's immediate reply to an arriving call: the kind of it. */
async function enter(
  { limiter }: VirtualReplica,
  ticket: string,
  options: AdmissionOptions,
): Promise<string> {
  const asked = limiter.admit(admission(ticket, { ...options, arrivedAt: redis.clock.monotonic() }));
  await redis.pass(20);
  const reply = await asked;
  if (reply.kind === 'granted' && limiter === one.limiter) one.grants.push(reply.grant);
  return reply.kind;
}

const granted = (): string[] => one.grants.map(({ ticket }) => ticket);

test('a capped lane sends nothing without Redis before the calls that Redis granted have ended or lost their leases', async () => {
  const two = await redis.replica('two');
  expect(await enter(two, 'of-redis', oneAtATime)).toBe('granted');
  expect(await enter(one, 'waits', oneAtATime)).toBe('queued');
  await loseRedis();
  expect(await enter(one, 'later', oneAtATime)).toBe('queued');
  await redis.pass(leaseMs - noticedMs - 20);
  expect(granted()).toEqual([]);
  await redis.pass(noticedMs);
  expect(granted()).toEqual(['waits']);
  await closed(two);
});

test('a call of a lane without a cap that is sent without Redis does not count as a lost lease', async () => {
  const two = await redis.replica('two');
  await redis.pass(1_500);
  await loseRedis();
  await enter(one, 'uncapped', { lane: 'uncapped' });
  await enter(one, 'capped', oneAtATime);
  await redis.pass(leaseMs);
  expect(granted()).toEqual(['uncapped', 'capped']);
  expect(one.lost).toEqual(['unavailable']);
  await closed(two);
});

test('a call of a capped lane that the only replica sends without Redis does not count as a lost lease', async () => {
  await redis.pass(1_500);
  await loseRedis();
  await enter(one, 'capped', oneAtATime);
  await redis.pass(leaseMs);
  expect(granted()).toEqual(['capped']);
  expect(one.lost).toEqual([]);
});

describe('a reload while calls of a capped lane wait without Redis for the leases that Redis has given', () => {
  async function reload(maxInFlight: number | null): Promise<void> {
    const { bucket, lane, setting, weight, perMinute, ceilingTag } = admission('any', oneAtATime);
    const changed = { lane, weight, maxInFlight, perMinute, ceilingTag };
    await one.limiter.reconfigure({ bucket, setting, lanes: [changed] });
  }

  beforeEach(async () => {
    await redis.pass(1_500);
    await loseRedis();
    for (const ticket of ['first', 'second', 'third'])
      await enter(one, ticket, { ...oneAtATime, maxInFlight: 2 });
    expect(granted()).toEqual([]);
  });

  test('which lowers the cap: they are sent one after the other', async () => {
    await reload(1);
    await redis.pass(leaseMs);
    expect(granted()).toEqual(['first']);
    const [first] = one.grants;
    if (first !== undefined) await one.limiter.settle(first, { kind: 'succeeded', spent: null }, null);
    expect(granted()).toEqual(['first', 'second']);
  });

  test('which raises the cap: more of them are sent when the wait is over', async () => {
    await reload(3);
    expect(granted()).toEqual([]);
    await redis.pass(leaseMs);
    expect(granted()).toEqual(['first', 'second', 'third']);
  });

  test('which removes the cap: they are sent at once, before the calls behind them', async () => {
    await reload(null);
    expect(granted()).toEqual(['first', 'second', 'third']);
  });
});
