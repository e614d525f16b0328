/** What replicas tell each other about repeats, on a real Redis. Each replica's own clock moves only when the test says so. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { CallAbort } from '../../src/call-abort.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import { Refusal } from '../../src/errors.ts';
import { digest } from '../../src/identity.ts';
import { RedisRepeats } from '../../src/repeats/redis-repeats.ts';
import type { KeptResponse, RepeatKey } from '../../src/repeats/repeat.ts';
import { SharedRepeats, type RepeatDecision } from '../../src/repeats/shared-repeats.ts';
import { manualClock } from '../support/manual-clock.ts';
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
const claimKey = 'sluice:{repeats}:3:claim:name';
const responseKey = 'sluice:{repeat:name}:3:answer';
const response: KeptResponse = {
  status: 200,
  rawFields: [],
  body: Buffer.from('the response'),
  shouldRetry: null,
};
const answered = { kind: 'answered', response, isKept: true } as const;
const bounds = { keepSeconds: 600, maxBytes: 1e6, maxWorkspaceBytes: 1e7, maxTotalBytes: 1e7 };
const renewalMs = 500;

const open: { close(): void }[] = [];
afterEach(() => open.splice(0).forEach((replica) => replica.close()));

function replica(name: string, labelKey = 'a label key') {
  const clock = manualClock();
  const counts = { madeAgain: 0, unreadable: 0 };
  const yaml = `redis: { url: "${server.url}", commandTimeoutMs: 2000 }
privacy: { labelKey: "a label key for tests only" }
upstreams: { api: { origins: ["https://api.example"] } }
workspaces: {}`;
  const { redis: settings } = parseSettings(yaml, { path: 'test.yaml', env: {} });
  if (settings === null) throw new Error('no Redis is configured');
  const repeats = new SharedRepeats({
    clock,
    labelKey,
    redis: new RedisRepeats({ settings, clock: systemClock, random: systemRandom, onError: () => {} }),
    replica: name,
    settings: () => bounds,
    onMadeAgain: () => (counts.madeAgain += 1),
    onUnreadable: () => (counts.unreadable += 1),
    keptResponses: () => [],
  });
  open.push(repeats);
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
    patiently(repeats.find(call, new CallAbort()));
  /** What there is for the repeat of a call without a key that was left. */
  const ofLeft = (call: RepeatKey) => patiently(repeats.ofLeft(call, new CallAbort()));
  return { repeats, find, ofLeft, counts, clock };
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
    b.repeats.ended(key, answered, 600_000);
    expect(await found).toMatchObject({ kind: 'response', response: { status: 200 } });
    expect([a.counts.madeAgain, c.counts.madeAgain]).toEqual([0, 0]);
  });
});

describe('a Redis that lost its data', () => {
  test('gets back the claims of calls under way, and no other replica makes these calls', async () => {
    const [a, b] = [replica('a'), replica('b')];
    expect(await a.find()).toEqual(make);
    await probe.flushall();
    a.clock.advance(renewalMs);
    await until(async () => (await probe.exists(claimKey)) === 1);
    const found = b.find();
    a.repeats.ended(key, answered, 600_000);
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
      await a.repeats.flushed();
    }
    a.repeats.ended(key, answered, 600_000);
    await a.repeats.flushed();
    expect([a.counts, b.counts].map(({ madeAgain }) => madeAgain)).toEqual([1, 0]);
  });

  test('while a call is under way: the repetition is counted also when the call ends before its replica notices the loss', async () => {
    const [a, b] = [replica('a'), replica('b')];
    expect(await a.find()).toEqual(make);
    await probe.flushall();
    expect(await b.find()).toEqual(make);
    a.repeats.ended(key, answered, 600_000);
    await a.repeats.flushed();
    expect([a.counts, b.counts].map(({ madeAgain }) => madeAgain)).toEqual([1, 0]);
  });
});

describe('a kept response in Redis', () => {
  const keep = async () => {
    const a = replica('a');
    await a.find();
    a.repeats.ended(key, answered, 600_000);
    await a.repeats.flushed();
    const sealed = await probe.getBuffer(responseKey);
    if (sealed === null) throw new Error('no response is kept');
    expect(sealed.toString('latin1')).not.toContain('the response');
    return sealed;
  };
  const store = (sealed: Buffer) => probe.set(responseKey, sealed, 'KEEPTTL');

  test('is opened by a replica with the same label key', async () => {
    await keep();
    expect(await replica('b').find()).toEqual({ kind: 'response', response, isReplayed: true });
  });

  test('cannot be opened with another label key or another key of the client, or when it was changed', async () => {
    const sealed = await keep();
    const changed = (at: number): Buffer => {
      const bytes = Buffer.from(sealed);
      bytes.writeUInt8(bytes.readUInt8(at) ^ 1, at);
      return bytes;
    };
    const spoilt = [
      ...[0, 11, 12, 16, 30, sealed.length - 17, sealed.length - 16, sealed.length - 1].map(changed),
      ...[0, 1, 11, 12, 15, 16, 27, 28, 29, sealed.length - 1].map((end) => sealed.subarray(0, end)),
      Buffer.concat([sealed, Buffer.alloc(1)]),
      Buffer.alloc(sealed.length),
    ];
    const b = replica('b');
    for (const bytes of spoilt) {
      await store(bytes);
      expect(await b.find()).toBe('idempotency_conflict');
    }
    expect(b.counts).toEqual({ madeAgain: 0, unreadable: spoilt.length });
    await store(sealed);
    expect(await b.find()).toMatchObject({ kind: 'response' });
    const stranger = replica('c', 'another label key');
    expect(await stranger.find()).toBe('idempotency_conflict');
    expect(stranger.counts.unreadable).toBe(1);
  });
});

test('a kept response that is put back into Redis after its time does not count: the call is made again', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await a.find();
  a.repeats.ended(key, answered, 60_000);
  await a.repeats.flushed();
  const [sealed, claim] = [await probe.getBuffer(responseKey), await probe.get(claimKey)];
  if (sealed === null || claim === null) throw new Error('no response is kept');
  b.clock.advance(30_000);
  expect(await b.find()).toMatchObject({ kind: 'response' });
  b.clock.advance(60_000);
  // As somebody who can write to Redis would.
  await probe.set(responseKey, sealed, 'PX', 600_000);
  await probe.set(claimKey, claim, 'PX', 600_000);
  expect(await b.find()).toEqual(make);
});

test('a call that fails without a result frees its key at once, and only its own claim', async () => {
  const [a, b] = [replica('a'), replica('b')];
  const earlier = { ...key };
  const later = { ...key };
  expect(await a.find(earlier)).toEqual(make);
  a.repeats.left(earlier, 0);
  expect(await a.find(later)).toMatchObject({ kind: 'make' });
  // The earlier call ends after the later one of the same name has begun.
  a.repeats.ended(earlier, { kind: 'failed', failure: null }, 0);
  await a.repeats.flushed();
  expect(await probe.get(claimKey)).toMatch(/held$/);
  const found = b.find();
  a.repeats.ended(later, { kind: 'failed', failure: null }, 0);
  expect(await found).toEqual(make);
});

describe('what clients leave of calls without a key', () => {
  const unnamed = (name: string): RepeatKey => ({ ...key, marker: 'again', name });

  test('is given out once, the oldest first, at whichever replica, and can be taken back', async () => {
    const [a, b] = [replica('a'), replica('b')];
    const lost = (): void => {
      throw new Error('Redis did not take it');
    };
    a.repeats.offer(unnamed('one'), { kind: 'call', name: 'one' }, lost);
    await a.repeats.flushed();
    a.repeats.offer(unnamed('two'), { kind: 'call', name: 'two' }, lost);
    await a.repeats.flushed();
    expect(await b.repeats.takeLeft(unnamed(''))).toEqual({ kind: 'call', name: 'one' });
    expect(await a.repeats.withdraw(unnamed('one'))).toBe(false);
    expect(await a.repeats.withdraw(unnamed('two'))).toBe(true);
    expect(await b.repeats.takeLeft(unnamed(''))).toBeNull();
  });

  test('may be the place of a call that waited: its age goes from clock to clock', async () => {
    const [a, b] = [replica('a'), replica('b')];
    a.clock.advance(5_000);
    a.repeats.offer(unnamed('one'), { kind: 'place', arrivedAt: 1_000 }, () => {});
    await a.repeats.flushed();
    b.clock.advance(100_000);
    const taken = await b.repeats.takeLeft(unnamed(''));
    expect(taken?.kind).toBe('place');
    const ageMs = taken?.kind === 'place' ? b.clock.monotonic() - taken.arrivedAt : 0;
    expect(ageMs).toBeGreaterThanOrEqual(4_000);
    expect(ageMs).toBeLessThan(60_000);
    expect(await probe.keys('*left*')).toEqual([]);
  });

  test('can be had elsewhere, however many repeats at its own replica have left it again', async () => {
    const [a, b] = [replica('a'), replica('b')];
    const call = unnamed('one');
    for (const _client of ['the first', 'its repeat', 'the repeat of that']) {
      a.repeats.abandoned(call);
      await a.repeats.flushed();
    }
    const found = b.ofLeft(unnamed('one'));
    await until(async () => (await probe.exists(claimKey.replace('name', 'one'))) === 1);
    a.repeats.ended(call, answered, 60_000);
    expect(await found).toMatchObject({ response: { status: 200 } });
  });

  test('is made again where its response cannot be given, because no key forbids that', async () => {
    const [a, b] = [replica('a'), replica('b')];
    for (const spoil of [null, Buffer.from('spoilt')]) {
      const call = unnamed(`spoilt: ${spoil !== null}`.replace(' ', ''));
      a.repeats.abandoned(call);
      a.repeats.ended(call, spoil === null ? { ...answered, response: 'too_large' } : answered, 60_000);
      await a.repeats.flushed();
      if (spoil !== null) await probe.set(responseKey.replace('name', call.name), spoil, 'KEEPTTL');
      expect(await b.ofLeft({ ...call })).toBeNull();
    }
  });
});

test('what Redis really holds of kept responses and of those that were too large is no more than what is counted', async () => {
  const used = async (): Promise<number> => {
    let bytes = 0;
    for (const name of await probe.keys('*repeat*'))
      bytes += (await probe.memory('USAGE', name, 'SAMPLES', 0)) ?? 0;
    return bytes;
  };
  const a = replica('a');
  await a.find({ ...key, name: 'first' });
  const before = await used();
  const calls = Array.from({ length: 100 }, (_, at) => ({ ...key, name: digest('label', 'name', `${at}`) }));
  for (const [at, call] of calls.entries()) {
    await a.find(call);
    a.repeats.ended(call, { ...answered, response: at % 2 === 0 ? response : 'too_large' }, 600_000);
  }
  await a.repeats.flushed();
  const counted = Number(await probe.hget('sluice:{repeats}:3:bytes', 'all'));
  expect(counted).toBeGreaterThan(100 * 1_024);
  expect((await used()) - before).toBeLessThanOrEqual(counted);
});

test('a call that was made while Redis did not answer is claimed as soon as it does', async () => {
  const [a, b] = [replica('a'), replica('b')];
  expect(await a.find()).toEqual(make);
  a.repeats.ended(key, { kind: 'failed', failure: null }, 0);
  await a.repeats.flushed();
  await probe.client('PAUSE', 3_000, 'ALL');
  expect(await a.find()).toEqual(make);
  await until(async () => {
    a.clock.advance(renewalMs);
    return (await probe.get(claimKey))?.endsWith('held') === true;
  });
  const found = b.find();
  a.repeats.ended(key, answered, 600_000);
  expect(await found).toMatchObject({ kind: 'response' });
});
