/** What replicas tell each other about repeats, on a real Redis. Each replica's own clock moves only when the test says so. */
import { expect, test } from '@jest/globals';
import { Refusal } from '../../src/errors.ts';
import { Claims } from '../../src/repeats/claims.ts';
import type { RepeatKey } from '../../src/repeats/repeat.ts';
import { createMapsIn } from '../../src/replicated/redis-map.ts';
import { manualClock } from '../support/manual-clock.ts';
import { onRedis } from '../support/shared-redis.ts';
import { until } from '../support/until.ts';

const server = onRedis();
const inRedis = (name = 'name'): string => `sluice:{repeat.5:${name}}`;

const key: RepeatKey = {
  marker: 'key',
  name: 'name',
  fingerprint: 'fingerprint',
  owner: 'owner',
  upstream: 'api',
  secret: { workspaceId: 'workspace', key: 'the key' },
};
const response = { status: 200, rawFields: [], body: Buffer.from('the response'), shouldRetry: null };
const answered = { kind: 'answered', response, isKept: true } as const;
const failed = { kind: 'failed', failure: null } as const;

function replica(name: string, labelKey = 'a label key') {
  const clock = manualClock();
  const counts = { madeAgain: 0 };
  const telemetry = { count: () => void (counts.madeAgain += 1) };
  const createMap = createMapsIn(server.connect(), labelKey);
  const claims = new Claims({ clock, createMap, replica: name, telemetry });
  server.closes(claims);
  /** Pauses of this replica end as soon as they begin. */
  const patiently = async <T>(finding: Promise<T>): Promise<T | string> => {
    let isFound = false;
    const found = finding
      .catch((failure: unknown) => (failure instanceof Refusal ? failure.code : String(failure)))
      .finally(() => (isFound = true));
    await until(() => {
      clock.advance(100);
      return isFound;
    });
    return found;
  };
  return {
    claims,
    counts,
    clock,
    /** What there is for the call. */
    find: (call = key) => patiently(claims.find(call, new AbortController().signal)),
    /** The call ends, and Redis knows. */
    async ends(how: Parameters<Claims['ended']>[1] = answered, call = key): Promise<void> {
      claims.ended(call, how, 600_000);
      await claims.flushed();
    },
  };
}

const make = { kind: 'make', arrivedAt: null };

test('the claim of a replica that is gone passes to exactly one repeat, also one that comes later, and that is counted', async () => {
  const [a, b, c] = [replica('a'), replica('b'), replica('c')];
  expect(await a.find()).toEqual(make);
  await server.probe.pexpire(inRedis(), 60_000);
  const own = { ...key };
  expect(await b.find(own)).toEqual(make);
  await b.ends(answered, own);
  expect(await c.find()).toMatchObject({ kind: 'response' });
  expect([a, b, c].map(({ counts }) => counts.madeAgain)).toEqual([0, 1, 0]);
});

test('a Redis that lost its data gets back the claims of calls under way', async () => {
  const [a, b] = [replica('a'), replica('b')];
  expect(await a.find()).toEqual(make);
  await server.probe.flushall();
  a.clock.advance(500);
  await until(async () => (await server.probe.exists(inRedis())) === 1);
  const found = b.find();
  await a.ends();
  expect(await found).toMatchObject({ kind: 'response', response: { status: 200 } });
  expect(b.counts.madeAgain).toBe(0);
});

test('a call that was made while Redis did not answer is claimed as soon as it does', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await server.probe.client('PAUSE', 3_000, 'ALL');
  expect(await a.find()).toEqual(make);
  await until(async () => {
    a.clock.advance(500);
    return (await server.probe.exists(inRedis())) === 1;
  });
  const found = b.find();
  await a.ends();
  expect(await found).toMatchObject({ kind: 'response' });
});

test('a kept response is sealed, opened by who has the label key, and deleted by the replica that keeps it', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await a.find();
  await a.ends();
  const sealed = await server.probe.getBuffer(inRedis());
  if (sealed === null) throw new Error('no response is kept');
  expect(sealed.toString('latin1')).not.toContain('the response');
  expect(await b.find()).toEqual({ kind: 'response', response, isReplayed: true });
  expect(await replica('c', 'another label key').find()).toBe('idempotency_conflict');
  await server.probe.set(inRedis(), Buffer.concat([sealed, Buffer.alloc(1)]), 'KEEPTTL');
  expect(await b.find()).toBe('idempotency_conflict');
  await server.probe.set(inRedis(), sealed, 'KEEPTTL');
  b.claims.forget(key);
  await b.claims.flushed();
  expect(await server.probe.exists(inRedis())).toBe(1);
  a.claims.forget(key);
  await a.claims.flushed();
  expect(await server.probe.exists(inRedis())).toBe(0);
});

test('a response that has expired is not given out, also when somebody puts it back', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await a.find();
  await a.ends();
  await server.probe.pexpire(inRedis(), 3_600_000);
  b.clock.advance(500_000);
  expect(await b.find()).toMatchObject({ kind: 'response' });
  b.clock.advance(110_000);
  expect(await b.find()).toEqual(make);
});

test('what a call that is not kept came to is only for those that waited: a refusal, or nothing, which frees its key', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await a.find();
  const refused = b.find({ ...key });
  await until(() => b.clock.monotonic() > 1_000);
  await a.ends({ kind: 'failed', failure: new Refusal('upstream_timeout') });
  expect(await refused).toBe('upstream_timeout');
  const [later, again] = [{ ...key }, { ...key }];
  expect(await a.find(later)).toEqual(make);
  const found = b.find(again);
  await a.ends(failed, later);
  expect(await found).toEqual(make);
});

test('of a call that was left while it waited, the place passes to its repeat', async () => {
  const [a, b] = [replica('a'), replica('b')];
  await a.find();
  a.claims.left(key, 1_234);
  await a.claims.flushed();
  expect(await b.find()).toEqual({ kind: 'make', arrivedAt: 1_234 });
});

test('what many leave of equal calls without a key goes to one each of many that come back, and can be taken back', async () => {
  const replicas = [replica('a').claims, replica('b').claims] as const;
  const names = Array.from({ length: 20 }, (_, n) => `call-${n}`);
  const at = (n: number) => replicas[n % 2 === 0 ? 0 : 1];
  for (const [n, name] of names.entries()) at(n).offer('digest', { name, arrivedAt: n });
  await Promise.all(replicas.map((claims) => claims.flushed()));
  const unnamed = { ...key, fingerprint: 'digest', name: 'call-3' };
  expect(await at(0).withdraw(unnamed)).toBe(true);
  expect(await at(1).withdraw(unnamed)).toBe(false);
  const taken = await Promise.all(names.map((_, n) => at(n).take('digest')));
  const left = names.filter((name) => name !== 'call-3').sort();
  expect(
    taken
      .flatMap((each) => (each === null ? [] : [each.name]))
      .toSorted((a, b) => (a ?? '').localeCompare(b ?? '')),
  ).toEqual(left);
});

test('a call without a key is made again where its response cannot be given, because no key forbids that', async () => {
  const [a, b] = [replica('a'), replica('b')];
  for (const spoil of [null, Buffer.from('spoilt')]) {
    const call: RepeatKey = { ...key, marker: 'again', name: `spoilt-${spoil !== null}` };
    a.claims.abandoned(call);
    await a.ends(spoil === null ? { ...answered, response: 'too_large' } : answered, call);
    if (spoil !== null) await server.probe.set(inRedis(call.name), spoil, 'KEEPTTL');
    expect(await b.find({ ...call })).toEqual(make);
  }
});
