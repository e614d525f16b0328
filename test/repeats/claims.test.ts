/** What replicas tell each other about repeats, on a real Redis. Each replica's own clock moves only when the test says so. */
import { describe, expect, test } from '@jest/globals';
import { CallAbort } from '../../src/call-abort.ts';
import { Refusal } from '../../src/errors.ts';
import { claimCodec, entryOf } from '../../src/repeats/claim.ts';
import { Claims, type RepeatDecision } from '../../src/repeats/claims.ts';
import { LeftCalls, type Offers } from '../../src/repeats/left-calls.ts';
import type { KeptResponse, RepeatKey } from '../../src/repeats/repeat.ts';
import { RedisMap } from '../../src/replicated/redis-map.ts';
import { MemoryMap } from '../../src/replicated/shared-map.ts';
import { manualClock } from '../support/manual-clock.ts';
import { noTelemetry } from '../support/no-telemetry.ts';
import { onRedis } from '../support/shared-redis.ts';
import { until } from '../support/until.ts';

const server = onRedis();
const inRedis = (name = 'name'): string => `sluice:{repeat.4:${name}}`;

const key: RepeatKey = {
  marker: 'key',
  name: 'name',
  fingerprint: 'fingerprint',
  owner: 'owner',
  upstream: 'api',
  secret: { workspaceId: 'workspace', key: 'the key' },
};
const response: KeptResponse = {
  status: 200,
  rawFields: [],
  body: Buffer.from('the response'),
  shouldRetry: null,
};
const answered = { kind: 'answered', response, isKept: true } as const;
const failed = { kind: 'failed', failure: null } as const;
const renewalMs = 500;

function replica(name: string, { labelKey = 'a label key', redis = server.connect() } = {}) {
  const clock = manualClock();
  const counts = { madeAgain: 0, unreadable: 0 };
  const map = new RedisMap({ redis, name: 'repeat.4', labelKey, codec: claimCodec });
  const telemetry = {
    madeAgain: () => void (counts.madeAgain += 1),
    log: { ...noTelemetry.log, warn: () => void (counts.unreadable += 1) },
  };
  const claims = new Claims({ clock, map, replica: name, telemetry });
  const offers = new RedisMap<Offers>({ redis, name: 'left.4', labelKey });
  const left = new LeftCalls({ clock, replica: name, map: offers, meanwhile: new MemoryMap(clock) });
  server.closes(claims);
  /** Pauses of this replica end as soon as they begin. */
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
  return {
    claims,
    left,
    counts,
    clock,
    /** What there is for the call. */
    find: (call: RepeatKey = key): Promise<RepeatDecision | string> =>
      patiently(claims.find(call, new CallAbort())),
    /** What there is for the repeat of a call without a key that was left. */
    ofLeft: (call: RepeatKey) => patiently(claims.ofAnother(call, new CallAbort())),
    /** The call ends, and Redis knows. */
    async ends(how: Parameters<Claims['ended']>[1] = answered, call = key, keepMs = 600_000): Promise<void> {
      claims.ended(call, how, keepMs);
      await claims.flushed();
    },
    stateNow: async (): Promise<string | null> => {
      const read = await map.read(entryOf(key));
      return read.kind === 'entry' ? read.value.state.kind : null;
    },
  };
}

const make = { kind: 'make', arrivedAt: null };

describe('the claim of a replica that is gone', () => {
  test('passes to exactly one repeat, also one that comes after the replica has gone, and the repetition is counted', async () => {
    const [a, b, c] = [replica('a'), replica('b'), replica('c')];
    expect(await a.find()).toEqual(make);
    expect(await server.probe.pttl(inRedis())).toBeGreaterThan(60_000);
    await server.probe.pexpire(inRedis(), 60_000);
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
    await server.probe.flushall();
    a.clock.advance(renewalMs);
    await until(async () => (await server.probe.exists(inRedis())) === 1);
    const found = b.find();
    a.claims.ended(key, answered, 600_000);
    expect(await found).toMatchObject({ kind: 'response' });
    expect([a.counts, b.counts].map(({ madeAgain }) => madeAgain)).toEqual([0, 0]);
  });

  test('while a call is under way: if another replica makes the call, too, the repetition is counted once', async () => {
    const [a, b] = [replica('a'), replica('b')];
    expect(await a.find()).toEqual(make);
    await server.probe.flushall();
    expect(await b.find()).toEqual(make);
    for (const _ of [1, 2]) {
      a.clock.advance(renewalMs);
      await a.claims.flushed();
    }
    await a.ends();
    expect([a.counts, b.counts].map(({ madeAgain }) => madeAgain)).toEqual([1, 0]);
  });
});

test('a replica that was stopped and finds its call made again by another one does not count that once more', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await a.find();
  await server.probe.pexpire(inRedis(), 60_000);
  expect(await b.find()).toEqual(make);
  a.clock.advance(renewalMs);
  await a.claims.flushed();
  expect([a.counts, b.counts].map(({ madeAgain }) => madeAgain)).toEqual([0, 1]);
});

describe('a kept response in Redis', () => {
  const keep = async () => {
    const a = replica('a');
    await a.find();
    await a.ends();
    const sealed = await server.probe.getBuffer(inRedis());
    if (sealed === null) throw new Error('no response is kept');
    expect(sealed.toString('latin1')).not.toContain('the response');
    return sealed;
  };
  const store = (sealed: Buffer) => server.probe.set(inRedis(), sealed, 'KEEPTTL');

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
    const stranger = replica('c', { labelKey: 'another label key' });
    expect(await stranger.find()).toBe('idempotency_conflict');
    expect(stranger.counts.unreadable).toBe(1);
  });

  test('is deleted when its replica keeps it no longer, and only by that replica', async () => {
    const [a, b] = [replica('a'), replica('b')];
    await a.find();
    await a.ends();
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
  await a.ends(answered, key, 60_000);
  const sealed = await server.probe.getBuffer(inRedis());
  if (sealed === null) throw new Error('no response is kept');
  b.clock.advance(30_000);
  expect(await b.find()).toMatchObject({ kind: 'response' });
  b.clock.advance(60_000);
  // As somebody who can write to Redis would.
  await server.probe.set(inRedis(), sealed, 'PX', 600_000);
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
  await a.ends(failed, earlier);
  expect(await a.stateNow()).toBe('held');
  const found = b.find();
  a.claims.ended(later, failed, 0);
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
    const { left } = replica('a', { redis: server.connect({ port: 1 }) });
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
    await until(async () => (await server.probe.exists(inRedis('one'))) === 1);
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
      if (spoil !== null) await server.probe.set(inRedis(call.name), spoil, 'KEEPTTL');
      expect(await b.ofLeft({ ...call })).toBeNull();
    }
  });
});

test('a call that was made while Redis did not answer is claimed as soon as it does', async () => {
  const [a, b] = [replica('a'), replica('b')];
  expect(await a.find()).toEqual(make);
  await a.ends(failed);
  await server.probe.client('PAUSE', 3_000, 'ALL');
  expect(await a.find()).toEqual(make);
  await until(async () => {
    a.clock.advance(renewalMs);
    return (await a.stateNow()) === 'held';
  });
  const found = b.find();
  a.claims.ended(key, answered, 600_000);
  expect(await found).toMatchObject({ kind: 'response' });
});
