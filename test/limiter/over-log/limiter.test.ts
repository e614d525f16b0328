/** The limiter over a log: what a call goes through at one replica, and between two. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { bucketKey, ticketId } from '../../../src/ids.ts';
import type { LogEvent } from '../../../src/limiter/over-log/state.ts';
import type { Entry } from '../../../src/log/log.ts';
import { admission } from '../../support/admission.ts';
import { leaseMs, World, type Replica } from './replicas.ts';

let world: World;
let a: Replica;
let b: Replica;
beforeEach(() => {
  world = new World();
  a = world.replica('a');
  b = world.replica('b');
});
afterEach(() => world.close());

const serial = { maxInFlight: 1 } as const;
const bucket = bucketKey('bucket');

test('a call is granted at once while there is room', async () => {
  expect((await a.admit('one')).kind).toBe('granted');
});

test('calls of both replicas leave a serialized lane in the order in which they arrived', async () => {
  await a.admit('first', serial);
  for (const [replica, ticket] of [
    [b, 'second'],
    [a, 'third'],
    [b, 'fourth'],
  ] as const) {
    await world.pass(5);
    expect((await replica.admit(ticket, serial)).kind).toBe('queued');
  }
  const order: string[] = [];
  for (const [replica, ticket] of [
    [a, 'first'],
    [b, 'second'],
    [a, 'third'],
    [b, 'fourth'],
  ] as const) {
    expect([...a.granted(), ...b.granted()]).toHaveLength(order.length + 1);
    await replica.settle(ticket);
    order.push(ticket);
    await world.pass(20);
  }
});

test('calls that come together are appended together', async () => {
  await a.admit('before');
  const before = world.log.entries.length;
  await Promise.all(['one', 'two', 'three'].map((ticket) => a.admit(ticket)));
  expect(world.log.entries.length - before).toBe(1);
  expect(a.granted()).toEqual(['before', 'one', 'two', 'three']);
});

test('a waiting call is granted when its meter has room again, by a tick of one replica', async () => {
  const limit = { limit: 1, windowMs: 1_000 };
  await a.admit('one', limit);
  await a.settle('one');
  expect((await a.admit('two', limit)).kind).toBe('queued');
  await world.pass(2_000);
  expect(a.granted()).toEqual(['one', 'two']);
  expect(a.grantOf('two').expiresAt - world.clock.monotonic()).toBeLessThanOrEqual(leaseMs);
});

test('a bucket with a cap has no more calls in flight than that, over lanes and replicas', async () => {
  const setting = { meters: [], learn: true, probe: 0, maxInFlightTotal: 2 };
  await a.admit('one', { setting, lane: 'l1' });
  await world.pass(5);
  await b.admit('two', { setting, lane: 'l2' });
  await world.pass(5);
  expect(await a.admit('three', { setting, lane: 'l3' })).toMatchObject({
    kind: 'queued',
    heldBy: 'serialized',
  });
  await b.admit('four', { setting, lane: 'l1' });
  await world.pass(2_000);
  expect([a.granted(), b.granted()]).toEqual([['one'], ['two']]);
  await b.settle('two');
  await world.pass(50);
  expect([a.granted(), b.granted()]).toEqual([['one', 'three'], ['two']]);
  await a.settle('one');
  await world.pass(50);
  expect([a.granted(), b.granted()]).toEqual([
    ['one', 'three'],
    ['two', 'four'],
  ]);
});

test('of several replicas one ticks when a grant is due', async () => {
  const limit = { limit: 2, windowMs: 1_000 };
  await a.admit('one', limit);
  await a.admit('two', limit);
  await b.admit('three', limit);
  const before = world.log.entries.length;
  await world.pass(700);
  expect(b.granted()).toEqual(['three']);
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

test('a replica shows the calls of its own that wait and are in flight', async () => {
  await a.admit('one', serial);
  await a.admit('two', serial);
  await world.pass(5);
  await b.admit('three', serial);
  const shown = ({ limiter }: Replica) =>
    limiter.snapshot().map(({ waiting, inFlight }) => ({ waiting, inFlight }));
  expect([shown(a), shown(b)]).toEqual([[{ waiting: 1, inFlight: 1 }], [{ waiting: 1, inFlight: 0 }]]);
  await a.settle('one');
  await world.pass(20);
  expect([shown(a), shown(b)]).toEqual([[{ waiting: 0, inFlight: 1 }], [{ waiting: 1, inFlight: 0 }]]);
});

test('a refusal that the copy shows appends nothing', async () => {
  const limit = { limit: 1, windowMs: 60_000 };
  await a.admit('one', limit);
  const before = world.log.entries.length;
  const reply = await a.admit('two', { ...limit, maxWaitMs: 10_000 });
  expect(reply).toMatchObject({ kind: 'refused', reason: 'wait_too_long' });
  expect(world.log.entries.length).toBe(before);
});

test('a copy that may be old refuses nobody by itself', async () => {
  const limit = { limit: 1, windowMs: 10_000 };
  await a.admit('one', limit);
  await a.settle('one');
  await world.pass(300);
  expect(a.end().staleMs()).toBeGreaterThan(250);
  const before = world.log.entries.length;
  expect((await a.admit('two', { ...limit, maxWaitMs: 1_000 })).kind).toBe('refused');
  expect(world.log.entries.length).toBe(before + 1);
});

test('a refusal of the log leaves no call behind', async () => {
  const limit = { limit: 1, windowMs: 60_000 };
  const replies = await Promise.all([a.admit('one', limit), a.admit('two', { ...limit, maxWaitMs: 1_000 })]);
  expect(replies.map(({ kind }) => kind)).toEqual(['granted', 'refused']);
  expect(a.limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 1 }]);
});

test('a cancelled call is never granted, wherever it stands', async () => {
  await a.admit('first', serial);
  await a.admit('waits', serial);
  void a.admit('enters', serial);
  await a.limiter.cancel(bucket, ticketId('enters'));
  await a.limiter.cancel(bucket, ticketId('waits'));
  await a.settle('first');
  await world.pass(3_000);
  expect(a.granted()).toEqual(['first']);
  expect(a.limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 0 }]);
});

test('a cancelled call is ahead of nobody', async () => {
  await a.admit('first', serial);
  await a.admit('gone', serial);
  await world.pass(5);
  await b.admit('waits', serial);
  await a.limiter.cancel(bucket, ticketId('gone'));
  expect(await b.limiter.forecast(bucket, ticketId('waits'))).toMatchObject({ ahead: 0 });
});

test('a call that is cancelled while the guard of its lane is asked is not sent, and the lane is free', async () => {
  let agree = (): void => {};
  const agrees = new Promise<void>((done) => (agree = done));
  const c = world.replica('c', {
    guard: {
      take: (call, keepMs) => agrees.then(() => world.guard.take(call, keepMs)),
      free: (call) => world.guard.free(call),
    },
  });
  void c.admit('gone', serial);
  await world.pass(20);
  await c.limiter.cancel(bucket, ticketId('gone'));
  await world.pass(5);
  expect(world.log.entries.at(-1)?.events).toMatchObject([{ event: { settlement: { kind: 'dropped' } } }]);
  agree();
  await world.pass(20);
  expect(c.granted()).toEqual([]);
  expect((await a.admit('next', serial)).kind).toBe('granted');
});

test('a call whose guard took most of its lease goes back to its position', async () => {
  let slowMs = leaseMs / 2;
  const c = world.replica('c', {
    guard: {
      async take(call, keepMs) {
        const askedAt = world.clock.monotonic();
        while (world.clock.monotonic() < askedAt + slowMs) await world.nextStep();
        return world.guard.take(call, keepMs);
      },
      free: (call) => world.guard.free(call),
    },
  });
  void c.admit('one', serial);
  await world.pass(leaseMs / 2 + 100);
  expect(c.granted()).toEqual([]);
  slowMs = 0;
  await world.pass(leaseMs);
  expect(c.granted()).toEqual(['one']);
});

test('a call that is asked about again is not entered again', async () => {
  await a.admit('first', serial);
  await a.admit('waits', serial);
  const before = world.log.entries.length;
  expect((await a.admit('first', serial)).kind).toBe('granted');
  expect((await a.admit('waits', serial)).kind).toBe('queued');
  expect(world.log.entries.length).toBe(before);
});

test('a call that its client has left does not go back to its lane when it is refused', async () => {
  await a.admit('left', serial);
  await b.admit('second', serial);
  await a.limiter.cancel(bucket, ticketId('left'));
  await a.settle('left', { kind: 'throttled', closeMs: 0, requeue: true, sleepMs: 0 });
  await world.pass(100);
  expect([a.granted(), b.granted()]).toEqual([['left'], ['second']]);
  expect(a.limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 0 }]);
});

test('a call that is cancelled while it is granted gives its place back', async () => {
  void a.admit('gone', serial);
  await a.limiter.cancel(bucket, ticketId('gone'));
  await world.pass(20);
  expect(a.granted()).toEqual([]);
  expect((await b.admit('next', serial)).kind).toBe('granted');
});

test('a grant that its replica hears of long after it was made goes back, and the call is granted again', async () => {
  const entries = await entriesAfterPause(1_500);
  expect(entries.filter(hasReturned)).toHaveLength(1);
  await world.pass(50);
  expect(b.granted()).toEqual(['second']);
});

test('a grant that its replica hears of a little later is used', async () => {
  const entries = await entriesAfterPause(900);
  expect(entries.filter(hasReturned)).toEqual([]);
  expect(b.granted()).toEqual(['second']);
});

/** The entries since a replica went on that had heard nothing for so long, while it was granted a call. */
async function entriesAfterPause(ms: number): Promise<readonly Entry<LogEvent>[]> {
  await a.admit('first', serial);
  await b.admit('second', serial);
  b.end().stop();
  await a.settle('first');
  await world.pass(ms);
  const heardAt = world.log.entries.length;
  b.end().goOn();
  await world.pass(50);
  return world.log.entries.slice(heardAt);
}

const hasReturned = ({ events }: Entry<LogEvent>): boolean =>
  events.some(
    (said) => said.kind === 'in' && said.event.kind === 'settle' && said.event.settlement.kind === 'returned',
  );

test('a call that was throttled goes back to its position, and its bucket is closed for all', async () => {
  await a.admit('first', serial);
  await b.admit('second', serial);
  await a.settle('first', { kind: 'throttled', closeMs: 500, requeue: true, sleepMs: 0 });
  await world.pass(400);
  expect(b.closed).toEqual([{ bucket, closedMs: 500 }]);
  expect([...a.granted(), ...b.granted()]).toEqual(['first']);
  await world.pass(200);
  expect([...a.granted(), ...b.granted()]).toEqual(['first', 'first']);
});

test.each(['joined', 'away'] as const)(
  'a replica that is joining its log says that it opened a bucket when the log is %s',
  async (then) => {
    await a.admit('first');
    await a.settle('first', { kind: 'throttled', closeMs: 60_000, requeue: false, sleepMs: 0 });
    const joining = world.replica('joining', { joinsLater: true });
    let isDone = false;
    void joining.limiter.open(bucket, 0).then(() => (isDone = true));
    await world.pass(20);
    expect(isDone).toBe(false);
    if (then === 'away') joining.end().goAway();
    else {
      joining.end().goOn();
      joining.end().rejoin(0);
    }
    await world.pass(20);
    expect(isDone).toBe(true);
    const reply = await a.admit('next', { maxWaitMs: 1_000 });
    expect(reply.kind).toBe(then === 'away' ? 'refused' : 'granted');
  },
);

test('a lease is settled once', async () => {
  await a.admit('first', serial);
  await b.admit('second', serial);
  await b.admit('third', serial);
  await a.settle('first');
  await a.settle('first');
  await world.pass(50);
  expect(b.granted()).toEqual(['second']);
});

test.each([
  { of: 'the same log', from: 'bucket.from', to: 'bucket.to' },
  { of: 'another log', from: 'from', to: 'to' },
])('a call moves into a bucket of $of, where it keeps its position', async ({ from, to }) => {
  await a.admit('from.busy', { bucket: from, ...serial });
  await a.admit('to.busy', { bucket: to, ...serial });
  await a.admit('earlier', { bucket: to, ...serial });
  await world.pass(5);
  const arrivedAt = world.clock.monotonic();
  await a.admit('moves', { bucket: from, arrivedAt, ...serial });
  await world.pass(5);
  await a.admit('later', { bucket: to, ...serial });
  // Where it stood it keeps its order, whatever is said of its arrival.
  const said = from.includes('.') ? arrivedAt + 1_000 : arrivedAt;
  await a.limiter.move(bucketKey(from), admission('moves', { bucket: to, arrivedAt: said, ...serial }));
  for (const ticket of ['to.busy', 'earlier', 'moves', 'later']) {
    await world.pass(20);
    await a.settle(ticket);
  }
  await world.pass(20);
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
  await a.limiter.move(bucketKey('from'), admission('moves', { bucket: 'to', arrivedAt, ...serial }));
  await a.settle('to.busy');
  await world.pass(20);
  expect(a.granted()).toEqual(['from.busy', 'to.busy', 'moves']);
});

test('a call that moves is not refused where it comes to', async () => {
  const full = { ...serial, maxQueued: 1 };
  await a.admit('from.busy', { bucket: 'from', ...serial });
  await a.admit('to.busy', { bucket: 'to', ...full });
  await a.admit('moves', { bucket: 'from', ...serial });
  await a.admit('waits', { bucket: 'to', ...full });
  await a.limiter.move(
    bucketKey('from'),
    admission('moves', { bucket: 'to', arrivedAt: world.clock.monotonic(), ...full }),
  );
  await world.pass(20);
  await a.settle('to.busy');
  await world.pass(20);
  await a.settle(a.granted().at(-1) ?? '');
  await world.pass(20);
  expect(a.granted().toSorted()).toEqual(['from.busy', 'moves', 'to.busy', 'waits']);
});

test('a log with a call is not left, however long the call takes', async () => {
  await a.admit('long', serial);
  await world.pass(121_000);
  await a.settle('long');
  expect((await a.admit('next', serial)).kind).toBe('granted');
  expect(a.opened()).toBe(1);
});

test('a log that nobody uses is left, and joined again with what it knows', async () => {
  const limit = { limit: 1, windowMs: 600_000 };
  await a.admit('one', limit);
  await a.settle('one');
  await world.pass(121_000);
  expect(a.limiter.snapshot()).toEqual([]);
  const entries = world.log.entries.length;
  await world.pass(5_000);
  expect(world.log.entries.length).toBe(entries);
  expect((await a.admit('two', { ...limit, maxWaitMs: 600_000 })).kind).toBe('queued');
  expect(a.opened()).toBe(2);
});

test('closing takes the waiting calls of the replica out of their lanes', async () => {
  await a.admit('first', serial);
  await a.admit('waits', serial);
  await world.pass(5);
  await b.admit('other', serial);
  expect(await b.limiter.forecast(bucket, ticketId('other'))).toMatchObject({ ahead: 1 });
  await a.limiter.close();
  await world.pass(20);
  expect(await b.limiter.forecast(bucket, ticketId('other'))).toMatchObject({ ahead: 0 });
});
