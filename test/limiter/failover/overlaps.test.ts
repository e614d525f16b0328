/**
 * Calls of capped lanes that replicas send without Redis: how long they wait for the calls that Redis has granted, and that only
 * those which may overlap with calls of another replica are counted.
 */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
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
  return (await asked).kind;
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
