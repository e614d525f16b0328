/** What replicas tell each other about repeats, on a real Redis. Each replica's own clock moves only when the test says so. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { CallAbort } from '../../src/call-abort.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { Refusal } from '../../src/errors.ts';
import { claimCodec, entryOf } from '../../src/repeats/claim.ts';
import { Claims, type RepeatDecision } from '../../src/repeats/claims.ts';
import { LeftCalls, type Offers } from '../../src/repeats/left-calls.ts';
import type { KeptResponse, RepeatKey } from '../../src/repeats/repeat.ts';
import { RedisMap } from '../../src/replicated/redis-map.ts';
import { MemoryMap } from '../../src/replicated/shared-map.ts';
import { SharedRedis } from '../../src/replicated/shared-redis.ts';
import { manualClock } from '../support/manual-clock.ts';
import { noTelemetry } from '../support/no-telemetry.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

let server: RedisServer;
let probe: Redis;
beforeAll(async () => {
  server = await startRedis();
  probe = new Redis(server.port);
});
afterAll(async () => {
  probe.disconnect();
  await server.stop();
});
beforeEach(() => probe.flushall());

const key: RepeatKey = {
  marker: 'key',
  name: 'name',
  fingerprint: 'fingerprint',
  owner: 'owner',
  upstream: 'api',
  secret: { workspaceId: 'workspace', key: 'the key' },
};
const claimKey = 'sluice:{repeat.4:name}';
const response: KeptResponse = {
  status: 200,
  rawFields: [],
  body: Buffer.from('the response'),
  shouldRetry: null,
};
const answered = { kind: 'answered', response, isKept: true } as const;
const renewalMs = 500;

const open: { close(): void }[] = [];
afterEach(() => open.splice(0).forEach((replica) => replica.close()));

function replica(name: string, labelKey = 'a label key') {
  const clock = manualClock();
  const counts = { madeAgain: 0, unreadable: 0 };
  const redis = new SharedRedis({
    settings: plainRedis({ nodes: [{ host: '127.0.0.1', port: server.port }] }),
    clock: systemClock,
    random: systemRandom,
    onError: () => {},
  });
  const map = new RedisMap({ redis, name: 'repeat.4', labelKey, codec: claimCodec });
  const claims = new Claims({
    clock,
    map,
    replica: name,
    telemetry: {
      madeAgain: () => void (counts.madeAgain += 1),
      log: { ...noTelemetry.log, warn: () => void (counts.unreadable += 1) },
    },
  });
  const left = new LeftCalls({
    clock,
    replica: name,
    map: new RedisMap<Offers>({ redis, name: 'left.4', labelKey }),
    meanwhile: new MemoryMap(clock),
  });
  open.push(claims, redis);
  const stateNow = async (): Promise<string | null> => {
    const read = await map.read(entryOf(key));
    return read.kind === 'entry' ? read.value.state.kind : null;
  };
  const patiently = async <T>(finding: Promise<T>): Promise<T | string> => {
    let isFound = false;
    const found = finding
      .catch((failure: unknown) => (failure instanceof Refusal ? failure.code : String(failure)))
      .finally(() => (isFound = true));
    await until(() => {
      clock.advance(25);
      return isFound;
    });
    return found;
  };
  /** What there is for the call; pauses of this replica end as soon as they begin. */
  const find = (call: RepeatKey = key): Promise<RepeatDecision | string> =>
    patiently(claims.find(call, new CallAbort()));
  /** What there is for the repeat of a call without a key that was left. */
  const ofLeft = (call: RepeatKey) => patiently(claims.ofAnother(call, new CallAbort()));
  return { claims, left, find, ofLeft, stateNow, counts, clock };
}

const make = { kind: 'make', arrivedAt: null };

describe('the claim of a replica that is gone', () => {
  test('passes to exactly one repeat, also one that comes after the replica has gone, and the repetition is counted', async () => {
    const [a, b, c] = [replica('a'), replica('b'), replica('c')];
    expect(await a.find()).toEqual(make);
    expect(await probe.pttl(claimKey)).toBeGreaterThan(60_000);
    await probe.pexpire(claimKey, 60_000);
    expect(await b.find()).toEqual(make);
    expect(b.counts.madeAgain).toBe(1);
    const found = c.find();
    b.claims.ended(key, answered, 600_000);
    expect(await found).toMatchObject({ kind: 'response', response: { status: 200 } });
    expect([a.counts.madeAgain, c.counts.madeAgain]).toEqual([0, 0]);
  });
});

describe('a Redis that lost its data', () => {
  test('gets back the claims of calls under way, and no other replica makes these calls then', async () => {
    const [a, b] = [replica('a'), replica('b')];
    expect(await a.find()).toEqual(make);
    await probe.flushall();
    a.clock.advance(renewalMs);
    await until(async () => (await probe.exists(claimKey)) === 1);
    const found = b.find();
    a.claims.ended(key, answered, 600_000);
    expect(await found).toMatchObject({ kind: 'response' });
    expect([a.counts, b.counts].map(({ madeAgain }) => madeAgain)).toEqual([0, 0]);
  });

  test('while a call is under way: if another replica makes the call, too, the repetition is counted once', async () => {
    const [a, b] = [replica('a'), replica('b')];
    expect(await a.find()).toEqual(make);
    await probe.flushall();
    expect(await b.find()).toEqual(make);
    for (const _ of [1, 2]) {
      a.clock.advance(renewalMs);
      await a.claims.flushed();
    }
    a.claims.ended(key, answered, 600_000);
    await a.claims.flushed();
    expect([a.counts, b.counts].map(({ madeAgain }) => madeAgain)).toEqual([1, 0]);
  });
});

test('a replica that was stopped and finds its call made again by another one does not count that once more', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await a.find();
  await probe.pexpire(claimKey, 60_000);
  expect(await b.find()).toEqual(make);
  a.clock.advance(renewalMs);
  await a.claims.flushed();
  expect([a.counts, b.counts].map(({ madeAgain }) => madeAgain)).toEqual([0, 1]);
});

describe('a kept response in Redis', () => {
  const keep = async () => {
    const a = replica('a');
    await a.find();
    a.claims.ended(key, answered, 600_000);
    await a.claims.flushed();
    const sealed = await probe.getBuffer(claimKey);
    if (sealed === null) throw new Error('no response is kept');
    expect(sealed.toString('latin1')).not.toContain('the response');
    return sealed;
  };
  const store = (sealed: Buffer) => probe.set(claimKey, sealed, 'KEEPTTL');

  test('is opened by a replica with the same label key', async () => {
    await keep();
    expect(await replica('b').find()).toEqual({ kind: 'response', response, isReplayed: true });
  });

  test('that is spoilt, or of another label key, gives a conflict: the call has run', async () => {
    const sealed = await keep();
    const b = replica('b');
    await store(Buffer.concat([sealed, Buffer.alloc(1)]));
    expect(await b.find()).toBe('idempotency_conflict');
    expect(b.counts).toEqual({ madeAgain: 0, unreadable: 1 });
    await store(sealed);
    expect(await b.find()).toMatchObject({ kind: 'response' });
    const stranger = replica('c', 'another label key');
    expect(await stranger.find()).toBe('idempotency_conflict');
    expect(stranger.counts.unreadable).toBe(1);
  });

  test('is deleted when its replica keeps it no longer, and only by that replica', async () => {
    const [a, b] = [replica('a'), replica('b')];
    await a.find();
    a.claims.ended(key, answered, 600_000);
    await a.claims.flushed();
    b.claims.forget(key);
    await b.claims.flushed();
    expect(await b.stateNow()).toBe('kept');
    a.claims.forget(key);
    await a.claims.flushed();
    expect(await b.stateNow()).toBeNull();
  });
});

test('a kept response that is put back into Redis after its time does not count: the call is made again', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await a.find();
  a.claims.ended(key, answered, 60_000);
  await a.claims.flushed();
  const sealed = await probe.getBuffer(claimKey);
  if (sealed === null) throw new Error('no response is kept');
  b.clock.advance(30_000);
  expect(await b.find()).toMatchObject({ kind: 'response' });
  b.clock.advance(60_000);
  // As somebody who can write to Redis would.
  await probe.set(claimKey, sealed, 'PX', 600_000);
  expect(await b.find()).toEqual(make);
});

test('a call that fails without a result frees its key at once, and only its own claim', async () => {
  const [a, b] = [replica('a'), replica('b')];
  const earlier = { ...key };
  const later = { ...key };
  expect(await a.find(earlier)).toEqual(make);
  a.claims.left(earlier, 0);
  expect(await a.find(later)).toMatchObject({ kind: 'make' });
  // The earlier call ends after the later one of the same name has begun.
  a.claims.ended(earlier, { kind: 'failed', failure: null }, 0);
  await a.claims.flushed();
  expect(await a.stateNow()).toBe('held');
  const found = b.find();
  a.claims.ended(later, { kind: 'failed', failure: null }, 0);
  expect(await found).toEqual(make);
});

describe('what clients leave of calls without a key', () => {
  const unnamed = (name: string): RepeatKey => ({ ...key, marker: 'again', name });

  test('is given out once, the oldest first, at whichever replica, and can be taken back', async () => {
    const [a, b] = [replica('a'), replica('b')];
    await a.left.offer('digest', { kind: 'call', name: 'one' });
    await a.left.offer('digest', { kind: 'call', name: 'two' });
    expect(await b.left.take('digest')).toEqual({ kind: 'call', name: 'one' });
    expect(await a.left.withdraw('digest', 'one')).toBe(false);
    expect(await a.left.withdraw('digest', 'two')).toBe(true);
    expect(await b.left.take('digest')).toBeNull();
  });

  test('is not lost when many leave equal calls at once, and each goes to one of many that come back at once', async () => {
    const replicas = [replica('a'), replica('b')];
    const names = Array.from({ length: 20 }, (_, n) => `call-${n}`);
    const at = (n: number) => replicas[n % 2]?.left ?? replica('c').left;
    await Promise.all(names.map((name, n) => at(n).offer('digest', { kind: 'call', name })));
    const taken = await Promise.all(names.map((_, n) => at(n).take('digest')));
    expect(taken.map((left) => (left?.kind === 'call' ? left.name : '')).sort()).toEqual(names.sort());
  });

  test('may be the place of a call that waited: its age goes from clock to clock', async () => {
    const [a, b] = [replica('a'), replica('b')];
    a.clock.advance(5_000);
    await a.left.offer('digest', { kind: 'place', arrivedAt: 1_000 });
    b.clock.advance(100_000);
    const taken = await b.left.take('digest');
    expect(taken?.kind).toBe('place');
    const ageMs = taken?.kind === 'place' ? b.clock.monotonic() - taken.arrivedAt : 0;
    expect(ageMs).toBeGreaterThanOrEqual(4_000);
    expect(ageMs).toBeLessThan(60_000);
  });

  test('is kept here while Redis does not answer', async () => {
    const clock = manualClock();
    const settings = plainRedis({ nodes: [{ host: '127.0.0.1', port: 1 }] });
    const away = new SharedRedis({ settings, clock: systemClock, random: systemRandom, onError: () => {} });
    open.push(away);
    const map = new RedisMap<Offers>({ redis: away, name: 'left.4', labelKey: 'a label key' });
    const left = new LeftCalls({ clock, replica: 'a', map, meanwhile: new MemoryMap(clock) });
    await left.offer('digest', { kind: 'call', name: 'one' });
    expect(await left.take('digest')).toEqual({ kind: 'call', name: 'one' });
    expect(await left.take('digest')).toBeNull();
  });

  test('can be had elsewhere, however many repeats at its own replica have left it again', async () => {
    const [a, b] = [replica('a'), replica('b')];
    const call = unnamed('one');
    for (const _client of ['the first', 'its repeat', 'the repeat of that']) {
      a.claims.abandoned(call);
      await a.claims.flushed();
    }
    const found = b.ofLeft(unnamed('one'));
    await until(async () => (await probe.exists(claimKey.replace('name', 'one'))) === 1);
    a.claims.ended(call, answered, 60_000);
    expect(await found).toMatchObject({ response: { status: 200 } });
  });

  test('is made again where its response cannot be given, because no key forbids that', async () => {
    const [a, b] = [replica('a'), replica('b')];
    for (const spoil of [null, Buffer.from('spoilt')]) {
      const call = unnamed(`spoilt: ${spoil !== null}`.replace(' ', ''));
      a.claims.abandoned(call);
      a.claims.ended(call, spoil === null ? { ...answered, response: 'too_large' } : answered, 60_000);
      await a.claims.flushed();
      if (spoil !== null) await probe.set(claimKey.replace('name', call.name), spoil, 'KEEPTTL');
      expect(await b.ofLeft({ ...call })).toBeNull();
    }
  });
});

test('a call that was made while Redis did not answer is claimed as soon as it does', async () => {
  const [a, b] = [replica('a'), replica('b')];
  expect(await a.find()).toEqual(make);
  a.claims.ended(key, { kind: 'failed', failure: null }, 0);
  await a.claims.flushed();
  await probe.client('PAUSE', 3_000, 'ALL');
  expect(await a.find()).toEqual(make);
  await until(async () => {
    a.clock.advance(renewalMs);
    return (await a.stateNow()) === 'held';
  });
  const found = b.find();
  a.claims.ended(key, answered, 600_000);
  expect(await found).toMatchObject({ kind: 'response' });
});
