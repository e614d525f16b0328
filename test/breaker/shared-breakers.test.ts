/** Breakers of several replicas over one Redis: which change wins, which replicas learn of it, and what Redis keeps. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { memoryMs, observationOf } from '../../src/breaker/breaker.policy.ts';
import { Breakers } from '../../src/breaker/breakers.ts';
import { systemRandom } from '../../src/clock.ts';
import { bucketKey } from '../../src/ids.ts';
import { startReplica } from '../support/redis-replica.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { stoppedClock, type SkippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';

let server: RedisServer;
let probe: Redis;
const open: (() => Promise<void>)[] = [];
beforeAll(async () => {
  server = await startRedis();
  probe = new Redis(server.port);
});
afterEach(async () => {
  for (const close of open.splice(0)) await close();
  await probe.flushall();
});
afterAll(async () => {
  probe.disconnect();
  await server.stop();
});

interface Replica {
  readonly breakers: Breakers;
  readonly clock: SkippingClock;
}

async function replica(url = server.url): Promise<Replica> {
  const clock = stoppedClock();
  const stores = await startReplica(`url: "${url}"`);
  const breakers = new Breakers({
    clock,
    random: systemRandom,
    labelKey: 'a label key for tests only',
    createMap: stores.createMap,
    onBreakerOpened: () => {},
    onRefused: () => {},
    onFailure: (failure) => {
      throw failure;
    },
  });
  await breakers.catchUp();
  open.push(async () => {
    breakers.stop();
    await stores.close();
  });
  return { breakers, clock };
}

const subject = {
  upstream: 'u',
  credential: 'c',
  bucket: bucketKey('b'),
  host: 'h',
  model: null,
  operation: 'POST /a',
};
const refused = (status = 402) =>
  observationOf({
    kind: 'answered',
    head: { status },
    feedback: {
      throttle: { kind: 'permanent', reason: 'quota', waitMs: null },
      said: { type: 'insufficient_quota', code: 402 },
    },
  });
/**
 * Status of the refusal of a call, and its pause to the minute: pauses are of 1, 2, 4 … minutes, and Redis, whose clock goes on,
 * tells another replica what is left. `null` = the call may be sent, or be the probe.
 */
const refusal = ({ breakers }: Replica): [status: unknown, minutes: number] | null => {
  const found = breakers.openBreakerRefusal(subject);
  return found === null ? null : [found.details.status, Math.round((found.details.retryInMs ?? 0) / 60_000)];
};
/** `probe`, `sent`, or the status with which the call is refused. */
const pass = ({ breakers }: Replica): Promise<unknown> =>
  breakers.pass(subject).then(
    (probing) => (probing === null ? 'sent' : 'probe'),
    (failure: { readonly details: { readonly status: unknown } }) => failure.details.status,
  );
const keys = (): Promise<string[]> => probe.keys('*{breaker.*');

test('the first refusal opens a breaker for all replicas, and a second one at the same time does not change it', async () => {
  const [one, other] = [await replica(), await replica()];
  one.breakers.observe(subject, null, refused());
  await until(() => refusal(other) !== null);
  expect(refusal(other)).toEqual([402, 1]);
  expect(other.breakers.openBreakerRefusal(subject)?.details.said).toEqual({
    type: 'insufficient_quota',
    code: 402,
  });
  const late = await replica();
  // It is refused with another status, and has the breaker of the first one.
  late.breakers.observe(subject, null, refused(423));
  await until(() => refusal(late)?.[0] === 402);
  expect(refusal(one)).toEqual([402, 1]);
});

test('only one of two replicas that ask at once sends the probe, and a refused probe doubles the pause of both', async () => {
  const replicas = [await replica(), await replica()] as const;
  const [one, other] = replicas;
  one.breakers.observe(subject, null, refused());
  await until(() => refusal(other) !== null);
  for (const { clock } of replicas) clock.skip(60_000);
  const passed = await Promise.all(replicas.map(({ breakers }) => breakers.pass(subject).catch(() => null)));
  const [probing] = passed.filter((each) => each !== null);
  expect(passed.filter((each) => each !== null)).toHaveLength(1);
  const prober = passed[0] === null ? other : one;
  prober.breakers.observe(subject, probing ?? null, refused());
  for (const each of replicas) await until(() => refusal(each)?.[1] === 2);
});

test('a breaker that one replica closes is closed for all, also for one that asks for a probe before it has heard', async () => {
  const [one, other] = [await replica(), await replica()];
  one.breakers.observe(subject, null, refused());
  await until(() => refusal(other) !== null);
  for (const { clock } of [one, other]) clock.skip(60_000);
  // The other asks in the same turn in which this one hears that the upstream accepts calls again.
  one.breakers.closeAllOf('u');
  expect(['sent', 'probe']).toContain(await pass(other));
  await until(() => other.breakers.areClosed || refusal(other) === null);
  expect(one.breakers.areClosed).toBe(true);
});

test('a breaker that was closed can be opened again at once', async () => {
  const [one, other] = [await replica(), await replica()];
  one.breakers.observe(subject, null, refused());
  await until(() => refusal(other) !== null);
  one.breakers.closeAllOf('u');
  await until(() => other.breakers.areClosed);
  one.breakers.observe(subject, null, refused(423));
  await until(() => refusal(other)?.[0] === 423);
});

test('the keys of a breaker expire by themselves', async () => {
  const one = await replica();
  one.breakers.observe(subject, null, refused());
  // The breaker, and the names of all of them.
  await until(async () => (await keys()).length === 2);
  for (const key of await keys()) {
    const leftMs = await probe.pttl(key);
    expect(leftMs).toBeGreaterThan(memoryMs - 10_000);
    expect(leftMs).toBeLessThanOrEqual(memoryMs + 60_000);
  }
});

test('a replica that starts later learns of the breakers that are not closed', async () => {
  const one = await replica();
  one.breakers.observe(subject, null, refused());
  one.breakers.observe({ ...subject, upstream: 'reopened' }, null, refused());
  await until(async () => (await keys()).length === 3);
  one.breakers.closeAllOf('reopened');
  const later = await replica();
  expect(refusal(later)).toEqual([402, 1]);
  await until(() => later.breakers.openBreakerRefusal({ ...subject, upstream: 'reopened' }) === null);
});

test('a breaker that Redis has lost is there again after its probe was refused', async () => {
  const [one, other] = [await replica(), await replica()];
  one.breakers.observe(subject, null, refused());
  await until(async () => (await keys()).length === 2);
  await probe.flushall();
  one.clock.skip(60_000);
  one.breakers.observe(subject, await one.breakers.pass(subject), refused());
  await until(() => refusal(other)?.[1] === 2);
});

test('each replica has its own while Redis does not answer, and they agree when it does again', async () => {
  const own = await startRedis();
  const [one, other] = [await replica(own.url), await replica(own.url)];
  process.kill(own.pid, 'SIGSTOP');
  one.breakers.observe(subject, null, refused());
  expect(refusal(one)).toEqual([402, 1]);
  expect(refusal(other)).toBeNull();
  process.kill(own.pid, 'SIGCONT');
  await until(() => {
    // Known breakers are compared with Redis every 5 s.
    one.clock.skip(5_000);
    return refusal(other) !== null;
  });
  await Promise.all(open.splice(0).map((close) => close()));
  await own.stop();
});
