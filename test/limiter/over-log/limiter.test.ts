/** The limiter over a log: what a call goes through at one replica, and between two. */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { bucketKey, ceilingKey, ticketId } from '../../../src/ids.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import { createEmbeddedLimiter } from '../../../src/limiter/over-log/limiter.ts';
import type { LaneGuard } from '../../../src/limiter/over-log/lane-guard.ts';
import type { LogEvent } from '../../../src/limiter/over-log/fold.ts';
import type { Entry } from '../../../src/log/log.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { leaseMs, throttled, World, type Replica } from './replicas.ts';

let world: World;
let a: Replica;
let b: Replica;
let said: () => number;
beforeEach(() => {
  world = new World();
  a = world.replica('a');
  b = world.replica('b');
  said = () => world.log.entries.length;
});
afterEach(() => world.close());

const serial = { maxInFlight: 1 } as const;
const bucket = bucketKey('bucket');
const shown = ({ limiter }: Replica) =>
  limiter.snapshot().map(({ waiting, inFlight }) => [waiting, inFlight]);

test('the end of a call is said at once where somebody may wait for what it does, and else with what comes next', async () => {
  const ending = async (ticket: string, options: AdmissionOptions, settlement?: Settlement) => {
    await a.admit(ticket, options);
    await a.settle(ticket, settlement);
    return a.end().urgencies.at(-1);
  };
  expect(await ending('plain', {})).toBe('soon');
  expect(await ending('unsent', {}, { kind: 'dropped' })).toBe('now');
  expect(await ending('capped', { maxInFlight: 2 })).toBe('now');
  const narrow = { bucket: 'narrow', limit: 2 };
  await a.ask(['sent', 'waits'], { ...narrow, costs: { requests: 2 } });
  await a.settle('sent');
  expect(a.end().urgencies.at(-1)).toBe('now');
});

test('of several replicas one ticks when a grant is due', async () => {
  const limit = { limit: 2, windowMs: 1_000 };
  await a.ask(['one', 'two'], limit);
  await b.admit('three', limit);
  const before = said();
  await world.pass(700);
  expect(b.granted()).toEqual(['three']);
  expect(b.grantOf('three').expiresAt - world.clock.monotonic()).toBeLessThanOrEqual(leaseMs);
  const ticks = world.log.entries.slice(before).filter(({ events }) => events[0]?.kind === 'tick');
  expect(ticks.map(({ replica }) => replica)).toEqual(['a']);
});

test('a waiting call is granted in time also when the replica whose turn it is to tick is stopped', async () => {
  const limit = { limit: 1, windowMs: 500 };
  await a.admit('one', limit);
  await b.admit('two', limit);
  a.end().stop();
  await world.pass(700);
  expect(b.granted()).toEqual(['two']);
});

test('a refusal that the copy shows appends nothing', async () => {
  const limit = { limit: 1, windowMs: 60_000 };
  await a.admit('one', limit);
  await a.settle('one');
  const [before, refused] = [said(), { kind: 'refused', reason: 'wait_too_long' }];
  expect(await a.admit('two', { ...limit, maxWaitMs: 10_000 })).toMatchObject(refused);
  expect(said()).toBe(before);
});

test('a call that comes back for what is kept for it is refused by no copy that has not heard of that', async () => {
  await a.admit('one');
  await b.admit('two');
  await a.settle('one', throttled(60_000, false));
  b.end().stop();
  await a.limiter.open(bucket, 0);
  const terms = { ceiling: ceilingKey('c'), waitMs: 0, lastsMs: 10_000, maxReserved: 1, begins: true };
  await a.limiter.reserve(admission('later', { arrivedAt: world.clock.monotonic() }), terms);
  const back = b.admit('back', { reservation: ticketId('later'), maxWaitMs: 1_000 });
  b.end().goOn();
  expect(await back).toMatchObject({ kind: 'granted' });
});

test('a cancelled call is never granted, wherever it stands, and is ahead of nobody', async () => {
  await a.ask(['first', 'waits'], serial);
  void a.admit('enters', serial);
  await a.limiter.cancel(bucket, ticketId('enters'));
  await world.pass(5);
  await b.admit('behind', serial);
  await a.limiter.cancel(bucket, ticketId('waits'));
  expect(await b.limiter.forecast(bucket, ticketId('behind'))).toMatchObject({ ahead: 0 });
  await a.settle('first');
  await b.settle('behind');
  await world.pass(3_000);
  expect([a.granted(), shown(a)]).toEqual([['first'], [[0, 0]]]);
});

/** A replica that asks the guard of a lane for its calls like this. */
const guardedBy = (take: LaneGuard['take']): Replica =>
  world.replica('c', { guard: { take, free: (call) => world.guard.free(call) } });

test('a call that is cancelled while the guard of its lane is asked is not sent, and the lane is free', async () => {
  let agree = (): void => {};
  const agrees = new Promise<void>((done) => (agree = done));
  const c = guardedBy((call, keepMs) => agrees.then(() => world.guard.take(call, keepMs)));
  void c.admit('gone', serial);
  await world.pass(20);
  await c.limiter.cancel(bucket, ticketId('gone'));
  await world.pass(5);
  expect(world.log.entries.at(-1)?.events).toMatchObject([{ event: { settlement: { kind: 'dropped' } } }]);
  agree();
  await world.pass(20);
  expect(c.granted()).toEqual([]);
  expect(await a.ask(['next'], serial)).toEqual(['granted']);
});

test('a call whose guard took most of its lease goes back to its position', async () => {
  let slowMs = leaseMs / 2;
  const c = guardedBy(async (call, keepMs) => {
    await new Promise<void>((resolve) => void world.clock.after(slowMs, resolve));
    return world.guard.take(call, keepMs);
  });
  void c.admit('one', serial);
  await world.pass(leaseMs / 2 + 100);
  expect(c.granted()).toEqual([]);
  slowMs = 0;
  await world.pass(leaseMs);
  expect(c.granted()).toEqual(['one']);
});

test('a call that its client has left does not go back to its lane when it is refused', async () => {
  await a.admit('left', serial);
  await b.admit('second', serial);
  await a.limiter.cancel(bucket, ticketId('left'));
  await a.settle('left', throttled(0));
  await world.pass(50);
  expect([a.granted(), b.granted(), shown(a)]).toEqual([['left'], ['second'], [[0, 0]]]);
});

test('a call that is cancelled while it is granted gives its place back', async () => {
  void a.admit('gone', serial);
  await a.limiter.cancel(bucket, ticketId('gone'));
  await world.pass(20);
  expect(a.granted()).toEqual([]);
  expect(await b.ask(['next'], serial)).toEqual(['granted']);
});

test.each([
  ['long after it was made goes back, and the call is granted again', 1_500, 1],
  ['a little later is used', 900, 0],
])('a grant that its replica hears of %s', async (_when, pauseMs, backs) => {
  const hasReturned = ({ events }: Entry<LogEvent>): boolean =>
    JSON.stringify(events).includes('"settlement":{"kind":"returned"');
  await a.admit('first', serial);
  await b.admit('second', serial);
  b.end().stop();
  await a.settle('first');
  await world.pass(pauseMs - 50);
  b.end().goOn();
  await world.pass(100);
  expect(world.log.entries.filter(hasReturned)).toHaveLength(backs);
  expect(b.granted()).toEqual(['second']);
});

const moves = (from: string, to: string, options: AdmissionOptions): Promise<void> =>
  a.limiter.move(bucketKey(from), admission('moves', { bucket: to, ...serial, ...options }));

test.each([
  { of: 'the same log', from: 'bucket.from', to: 'bucket.to' },
  { of: 'another log', from: 'from', to: 'to' },
])('a call moves into a bucket of $of, where it keeps its position', async ({ from, to }) => {
  await a.admit('from.busy', { bucket: from, ...serial });
  await a.ask(['to.busy', 'earlier'], { bucket: to, ...serial });
  await world.pass(5);
  const arrivedAt = world.clock.monotonic();
  await a.admit('moves', { bucket: from, arrivedAt, ...serial });
  await world.pass(5);
  await a.admit('later', { bucket: to, ...serial });
  // Where it stood it keeps its order, whatever is said of its arrival.
  await moves(from, to, { arrivedAt: from.includes('.') ? arrivedAt + 1_000 : arrivedAt });
  await world.pass(20);
  for (const ticket of ['to.busy', 'earlier', 'moves', 'later']) await a.settle(ticket);
  expect(a.granted()).toEqual(['from.busy', 'to.busy', 'earlier', 'moves', 'later']);
});

test('a call that moves into another log stands by its arrival there', async () => {
  await a.admit('from.busy', { bucket: 'from', ...serial });
  await a.admit('to.busy', { bucket: 'to', ...serial });
  await world.pass(5);
  const arrivedAt = world.clock.monotonic();
  await world.pass(5);
  await a.admit('later', { bucket: 'to', ...serial });
  await a.admit('moves', { bucket: 'from', ...serial });
  await moves('from', 'to', { arrivedAt });
  await a.settle('to.busy');
  expect(a.granted()).toEqual(['from.busy', 'to.busy', 'moves']);
});

test('a log with a call is not left, however long the call takes', async () => {
  await a.admit('long', serial);
  await world.pass(121_000);
  await a.settle('long');
  expect(await a.ask(['next'], serial)).toEqual(['granted']);
  expect(a.opened()).toBe(1);
});

test('a log that nobody uses is left, and joined again with what it knows', async () => {
  const limit = { limit: 1, windowMs: 600_000 };
  await a.admit('one', limit);
  await a.settle('one');
  await world.pass(121_000);
  expect(a.limiter.snapshot()).toEqual([]);
  const before = said();
  await world.pass(5_000);
  expect(said()).toBe(before);
  expect(await a.ask(['two'], { ...limit, maxWaitMs: 600_000 })).toEqual(['queued']);
  expect(a.opened()).toBe(2);
});

test('closing takes the waiting calls of the replica out of their lanes', async () => {
  await a.ask(['first', 'waits'], serial);
  await world.pass(5);
  await b.admit('other', serial);
  const ahead = async () => (await b.limiter.forecast(bucket, ticketId('other')))?.ahead;
  expect(await ahead()).toBe(1);
  await a.limiter.close();
  await world.pass(20);
  expect(await ahead()).toBe(0);
});

describe('the embedded limiter', () => {
  const clock = new FakeClock();
  const limiter = createEmbeddedLimiter(clock, { onGrant: () => {}, onClosed: () => {} });
  const settings = { limit: 500, windowMs: 60_000, probe: 1 };
  const ask = async (ticket: string, bucket: string, settlement: Settlement): Promise<void> => {
    const reply = await limiter.admit(admission(ticket, { bucket, ...settings }));
    if (reply.kind === 'granted') await limiter.settle(reply.grant, settlement, null);
  };
  const pass = async (ms: number): Promise<void> => {
    clock.outside(clock.monotonic() + ms, () => {});
    await clock.run(clock.monotonic() + ms);
  };
  const known = (): string[] => limiter.snapshot().map((shown) => shown.bucket);

  test('forgets buckets and credentials that nobody uses, but not those in use or what it has learned', async () => {
    const dropped = { kind: 'dropped' } as const;
    await limiter.admit(admission('busy', { bucket: 'own.real', ...settings }));
    await ask('learned', 'learned.bucket', throttled(600_000, false));
    for (let at = 0; at < 50; at += 1) {
      await ask(`a${at}`, `own.made-up-${at}`, dropped);
      await ask(`b${at}`, `made-up-${at}.bucket`, dropped);
    }
    expect(known()).toHaveLength(102);
    await pass(7_000);
    expect(known().filter((bucket) => bucket.startsWith('own.'))).toEqual(['own.real']);
    for (let minutes = 0; minutes < 3; minutes += 1) {
      await pass(61_000);
      await ask(`later${minutes}`, 'used.bucket', dropped);
    }
    expect(known()).toEqual(expect.arrayContaining(['learned.bucket', 'used.bucket']));
    expect(known().filter((bucket) => bucket.startsWith('made-up'))).toEqual([]);
    await limiter.close();
  });
});
