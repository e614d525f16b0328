/** The limiter over a log that loses entries, that is away, and whose replicas stop: no call is lost, and none is sent twice. */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { bucketKey, laneKey, ticketId } from '../../../src/ids.ts';
import type { WhenDown } from '../../../src/limiter/when-down.policy.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import type { LogEvent } from '../../../src/limiter/over-log/state.ts';
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
/** Longer than a new term holds grants back. */
const termMs = 3_000;

describe('when the log has lost what came last', () => {
  test('calls that waited wait again, in the same order', async () => {
    await a.admit('first', serial);
    const kept = world.log.entries.length;
    await b.admit('second', serial);
    await world.pass(5);
    await a.admit('third', serial);
    world.log.keepOnly(kept);
    await world.pass(termMs);
    await a.settle('first');
    await world.pass(50);
    expect([a.granted(), b.granted()]).toEqual([['first'], ['second']]);
    await b.settle('second');
    await world.pass(50);
    expect([a.granted(), b.granted()]).toEqual([['first', 'third'], ['second']]);
  });

  test('a call under way holds its lane, and is not sent again', async () => {
    const kept = world.log.entries.length;
    await a.admit('first', serial);
    world.log.keepOnly(kept);
    await world.pass(termMs);
    expect(a.leasesLost).toEqual(['epoch']);
    expect((await b.admit('second', serial)).kind).toBe('queued');
    await world.pass(2 * leaseMs);
    expect([a.granted(), b.granted()]).toEqual([['first'], []]);
    await a.settle('first');
    await world.pass(50);
    expect(b.granted()).toEqual(['second']);
  });

  test.each(['succeeded', 'unknown'] as const)('what ended calls used is counted (%s)', async (kind) => {
    const end: Settlement = kind === 'succeeded' ? { kind, spent: null } : { kind };
    const limit = { limit: 2, windowMs: 60_000 };
    await a.admit('before', { ...limit, bucket: 'bucket.other' });
    const kept = world.log.entries.length;
    await a.admit('one', limit);
    await a.settle('one', end);
    await a.admit('two', limit);
    await a.settle('two', end);
    world.log.keepOnly(kept);
    await world.pass(termMs);
    expect(await b.admit('three', { ...limit, maxWaitMs: 10_000 })).toMatchObject({
      kind: 'refused',
      reason: 'wait_too_long',
    });
  });

  test('a settlement is said again, and the call that it made room for is sent once', async () => {
    await a.admit('first', serial);
    await b.admit('second', serial);
    const kept = world.log.entries.length;
    await a.settle('first');
    await world.pass(20);
    expect(b.granted()).toEqual(['second']);
    world.log.keepOnly(kept);
    await world.pass(termMs);
    expect(b.granted()).toEqual(['second']);
    expect(b.limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 1 }]);
    await b.settle('second');
    expect((await a.admit('third', serial)).kind).toBe('granted');
  });

  test('a call that was put back to its position waits there', async () => {
    await a.admit('first', serial);
    await b.admit('second', serial);
    const kept = world.log.entries.length;
    await a.settle('first', { kind: 'throttled', closeMs: 0, requeue: true, sleepMs: 0 });
    world.log.keepOnly(kept);
    await world.pass(termMs);
    expect([a.granted(), b.granted()]).toEqual([['first', 'first'], []]);
  });

  test('a bucket that a response closed is closed for the rest of its time', async () => {
    await a.admit('first', serial);
    const kept = world.log.entries.length;
    await a.settle('first', { kind: 'throttled', closeMs: 10_000, requeue: true, sleepMs: 0 });
    await world.pass(1_000);
    world.log.keepOnly(kept);
    await world.pass(termMs);
    await b.admit('second', { lane: 'other' });
    await world.pass(8_900 - termMs);
    expect([a.granted(), b.granted()]).toEqual([['first'], []]);
    await world.pass(200);
    expect([a.granted(), b.granted()]).toEqual([['first', 'first'], ['second']]);
  });

  test('a bucket that was closed by a call whose grant was lost, too, is closed for the rest of its time', async () => {
    await b.admit('before', { bucket: 'bucket.other' });
    const kept = world.log.entries.length;
    await a.admit('first', { lane: 'other' });
    await a.settle('first', { kind: 'throttled', closeMs: 10_000, requeue: false, sleepMs: 0 });
    await world.pass(1_000);
    world.log.keepOnly(kept);
    await world.pass(termMs);
    expect((await b.admit('second')).kind).toBe('queued');
    await world.pass(8_900 - termMs);
    expect(b.granted()).toEqual(['before']);
    await world.pass(200);
    expect(b.granted()).toEqual(['before', 'second']);
  });

  test('all buckets that one call closed, whose grant was lost, are closed for the rest of the time', async () => {
    await b.admit('before', { bucket: 'bucket.other' });
    const kept = world.log.entries.length;
    await a.admit('first', { lane: 'other' });
    const settlement = {
      kind: 'throttled',
      closeMs: 10_000,
      closesCredential: true,
      requeue: false,
      sleepMs: 0,
    } as const;
    await a.settle('first', settlement);
    await world.pass(1_000);
    world.log.keepOnly(kept);
    await world.pass(termMs);
    expect((await b.admit('second', { bucket: 'bucket.third' })).kind).toBe('queued');
    await world.pass(8_900 - termMs);
    expect(b.granted()).toEqual(['before']);
    await world.pass(200);
    expect(b.granted()).toEqual(['before', 'second']);
  });

  test('others go on when a replica has put its sends back under their ceilings', async () => {
    let putBack = (): void => {};
    const restored = new Promise<void>((done) => (putBack = done));
    const c = world.replica('c', { restoreSends: () => restored });
    await c.admit('before', { bucket: 'bucket.other' });
    await a.admit('first', serial);
    await b.admit('second', serial);
    world.log.keepOnly(world.log.entries.length);
    await a.settle('first');
    await world.pass(200);
    expect(b.granted()).toEqual([]);
    putBack();
    await world.pass(50);
    expect(b.granted()).toEqual(['second']);
  });

  test('a call that was cancelled stays cancelled', async () => {
    await a.admit('first', serial);
    await b.admit('gone', serial);
    const kept = world.log.entries.length;
    await b.limiter.cancel(bucket, ticketId('gone'));
    world.log.keepOnly(kept);
    await a.settle('first');
    await world.pass(termMs);
    expect(b.granted()).toEqual([]);
    expect(b.limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 0 }]);
  });
});

describe('when somebody else says what is wrong of a call', () => {
  const say = async (event: Extract<LogEvent, { kind: 'in' }>['event']): Promise<void> => {
    world.log.open('x').append({ kind: 'in', bucket, event });
    await world.pass(5);
  };
  const putBack = (): Promise<void> =>
    say({
      kind: 'settle',
      lease: a.grantOf('first').lease,
      settlement: { kind: 'returned', sleepMs: 0, because: 'backoff' },
      lesson: null,
    });

  test.each(['here', 'away'] as const)(
    'a call under way that is put back and granted again while its replica is %s is not sent again, and ends its new lease',
    async (where) => {
      await a.admit('first', serial);
      await b.admit('second', serial);
      if (where === 'away') a.end().goAway();
      await putBack();
      if (where === 'away') a.end().comeBack();
      await world.pass(50);
      expect([a.granted(), b.granted()]).toEqual([['first'], []]);
      await a.settle('first');
      await world.pass(50);
      expect(b.granted()).toEqual(['second']);
    },
  );

  test('a waiting call that the log lacks is entered again within a second', async () => {
    await a.admit('first', serial);
    await b.admit('second', serial);
    await say({ kind: 'cancel', ticket: ticketId('second') });
    await world.pass(1_100);
    await a.settle('first');
    await world.pass(50);
    expect(b.granted()).toEqual(['second']);
  });
});

describe('in a new term', () => {
  test('replicas that have lost nothing say so when they hear of it, and calls go on', async () => {
    const c = world.replica('c');
    await c.admit('before', { bucket: 'bucket.other' });
    await a.admit('first', serial);
    await b.admit('second', serial);
    a.end().stop();
    b.end().stop();
    world.log.keepOnly(world.log.entries.length);
    await world.pass(5);
    a.end().goOn();
    b.end().goOn();
    await a.settle('first');
    await world.pass(200);
    expect(b.granted()).toEqual(['second']);
  });

  test('nobody waits for a replica that has left the log without a call', async () => {
    await a.admit('one');
    await a.settle('one');
    await b.admit('before');
    await a.limiter.close();
    await world.pass(5);
    world.log.keepOnly(world.log.entries.length);
    void b.admit('next');
    await world.pass(200);
    expect(b.granted()).toEqual(['before', 'next']);
  });

  test('a call whose move was lost waits in its new bucket alone', async () => {
    const [from, to] = ['bucket.from', 'bucket.to'];
    await a.admit('from.busy', { bucket: from, ...serial });
    await a.admit('moves', { bucket: from, ...serial });
    const kept = world.log.entries.length;
    const asked = admission('moves', { bucket: to, arrivedAt: world.clock.monotonic(), ...serial });
    await a.limiter.move(bucketKey(from), asked);
    await world.pass(20);
    world.log.keepOnly(kept);
    await world.pass(termMs);
    await b.admit('next', { bucket: from, ...serial });
    expect(await b.limiter.forecast(bucketKey(from), ticketId('next'))).toMatchObject({ ahead: 0 });
  });

  test('waiting calls that enter again have the settings of the last reload', async () => {
    await a.admit('before', { bucket: 'bucket.other' });
    const kept = world.log.entries.length;
    for (const ticket of ['first', 'second', 'third'])
      await b.admit(ticket, { limit: 1, windowMs: 600_000, maxWaitMs: 900_000 });
    const meters = [{ meter: 'requests', limit: 2, windowMs: 600_000 }] as const;
    await b.limiter.reconfigure({ bucket, setting: { meters, learn: true, probe: 0 }, lanes: [] });
    world.log.keepOnly(kept);
    await world.pass(termMs);
    expect(b.limiter.snapshot()).toMatchObject([{ meters: [{ limit: 2 }] }]);
  });
});

describe('a serialized lane', () => {
  test('has one call in flight at a time, whatever two versions of the fold say', async () => {
    const other = world.replica('c', { version: 'other.' });
    await a.admit('first', serial);
    await other.admit('second', serial);
    await world.pass(2 * leaseMs);
    expect([a.granted(), other.granted()]).toEqual([['first'], []]);
    await a.settle('first');
    await world.pass(500);
    expect(other.granted()).toEqual(['second']);
  });

  test('has one call in flight while a replica with a call under way is cut off from the log', async () => {
    await a.admit('first', serial);
    await b.admit('second', serial);
    a.end().stop();
    await world.pass(3 * leaseMs);
    expect(b.granted()).toEqual([]);
    void a.settle('first');
    await world.pass(500);
    expect(b.granted()).toEqual(['second']);
  });

  test('is not passed on to another version of the fold before the lease of a call whose fate is unknown is over', async () => {
    const other = world.replica('c', { version: 'other.' });
    await a.admit('first', serial);
    await other.admit('second', serial);
    await a.settle('first', { kind: 'unknown' });
    await world.pass(leaseMs - 1_000);
    expect(other.granted()).toEqual([]);
    await world.pass(2_000);
    expect(other.granted()).toEqual(['second']);
  });

  test('counts a lease as lost that ran out while its replica stood still with a call under way', async () => {
    await a.admit('first', { maxInFlight: 2 });
    await b.admit('second', { maxInFlight: 2 });
    a.end().stop();
    await world.pass(2 * leaseMs);
    a.end().goOn();
    await a.settle('first');
    await b.settle('second');
    await world.pass(50);
    expect([a.leasesLost, b.leasesLost]).toEqual([['expired'], []]);
  });

  test('goes on when a call whose fate is unknown has had its lease', async () => {
    await a.admit('first', serial);
    await b.admit('second', serial);
    void a.settle('first', { kind: 'unknown' });
    await world.pass(leaseMs - 1_000);
    expect(b.granted()).toEqual([]);
    await world.pass(2_000);
    expect(b.granted()).toEqual(['second']);
  });

  test('goes back to its position where its guard does not answer', async () => {
    let answers = false;
    const guard = world.guard;
    const c = world.replica('c', {
      guard: {
        take: (call, keepMs) =>
          answers ? guard.take(call, keepMs) : Promise.resolve({ kind: 'unavailable' } as const),
        free: (call) => guard.free(call),
      },
    });
    expect((await c.admit('one', serial)).kind).toBe('queued');
    await world.pass(1_000);
    expect(c.granted()).toEqual([]);
    answers = true;
    await world.pass(1_000);
    expect(c.granted()).toEqual(['one']);
  });
});

describe('while the log is away, with whenDown: deny', () => {
  test('arriving calls are refused, also those on their way, and waiting calls are granted afterwards', async () => {
    await a.admit('first', serial);
    await b.admit('second', serial);
    const onItsWay = b.admit('on its way', serial);
    b.end().goAway();
    const unavailable = { kind: 'refused', reason: 'limiter_unavailable' };
    expect(await onItsWay).toMatchObject(unavailable);
    expect(await b.admit('third', serial)).toMatchObject(unavailable);
    await world.pass(1_000);
    b.end().comeBack();
    await a.settle('first');
    await world.pass(50);
    expect(b.granted()).toEqual(['second']);
  });

  test('a replica that hears meanwhile of how many it is one goes on alone, also with what waits', async () => {
    let whenDown: WhenDown = 'deny';
    const c = world.replica('c', { whenDown: () => whenDown });
    const limit = { limit: 4, windowMs: 60_000, maxWaitMs: 600_000 };
    for (const ticket of ['1', '2', '3', '4', 'waits']) await c.admit(ticket, limit);
    c.end().goAway();
    expect(await c.admit('refused', limit)).toMatchObject({ reason: 'limiter_unavailable' });
    whenDown = 'local';
    await world.pass(5);
    expect((await c.admit('held', limit)).kind).toBe('queued');
    await world.pass(120_000);
    expect(c.granted()).toEqual(['1', '2', '3', '4', 'waits', 'held']);
  });

  test('a grant that was made meanwhile is taken', async () => {
    await a.admit('first', serial);
    await b.admit('second', serial);
    b.end().goAway();
    await a.settle('first');
    await world.pass(20);
    b.end().comeBack();
    await world.pass(5);
    expect(b.granted()).toEqual(['second']);
  });

  test('a call that ends meanwhile is settled afterwards, one that leaves is not granted', async () => {
    await b.admit('first', serial);
    await b.admit('gone', serial);
    await a.admit('second', serial);
    b.end().goAway();
    await b.settle('first');
    await b.limiter.cancel(bucket, ticketId('gone'));
    await world.pass(100);
    expect(a.granted()).toEqual([]);
    b.end().comeBack();
    await world.pass(500);
    expect([a.granted(), b.granted()]).toEqual([['second'], ['first']]);
  });

  test('new settings that came meanwhile hold afterwards', async () => {
    const limit = { limit: 1, windowMs: 600_000, maxWaitMs: 900_000 };
    await b.admit('first', limit);
    expect((await b.admit('second', limit)).kind).toBe('queued');
    b.end().goAway();
    const setting = {
      meters: [{ meter: 'requests', limit: 1_000, windowMs: 600_000 }],
      learn: true,
      probe: 0,
    } as const;
    await b.limiter.reconfigure({ bucket, setting, lanes: [] });
    b.end().comeBack();
    await world.pass(2_000);
    expect(b.granted()).toEqual(['first', 'second']);
  });
});

describe('while the log is away, with whenDown: local', () => {
  let c: Replica;
  beforeEach(() => {
    c = world.replica('c', { whenDown: 'local' });
  });

  test('a replica goes on with its share of the limits', async () => {
    const limit = { limit: 4, windowMs: 60_000, maxWaitMs: 1_000 };
    await c.admit('before', { limit: 1, bucket: 'bucket.other' });
    c.end().goAway();
    const kinds = [];
    for (const ticket of ['1', '2', '3', '4']) kinds.push((await c.admit(ticket, limit)).kind);
    expect(kinds).toEqual(['granted', 'granted', 'refused', 'refused']);
  });

  test('calls that waited get no more than its share either', async () => {
    const limit = { limit: 4, windowMs: 60_000, maxWaitMs: 600_000 };
    for (const ticket of ['1', '2', '3', '4', 'waits']) await c.admit(ticket, limit);
    c.end().goAway();
    await world.pass(20_000);
    expect(c.granted()).toEqual(['1', '2', '3', '4']);
  });

  test('settings that came meanwhile hold for all afterwards', async () => {
    const limit = { limit: 1, windowMs: 600_000, maxWaitMs: 900_000 };
    await c.admit('first', limit);
    expect((await a.admit('second', limit)).kind).toBe('queued');
    c.end().goAway();
    const meters = [{ meter: 'requests', limit: 1_000, windowMs: 600_000 }] as const;
    await c.limiter.reconfigure({ bucket, setting: { meters, learn: true, probe: 0 }, lanes: [] });
    c.end().comeBack();
    await world.pass(2_000);
    expect(a.granted()).toEqual(['second']);
  });

  test('afterwards others do not count what has drained since', async () => {
    const limit = { limit: 2, windowMs: 10_000, maxWaitMs: 1_000 };
    await c.admit('before', { limit: 1, bucket: 'bucket.other' });
    c.end().goAway();
    await c.admit('one', limit);
    await c.settle('one');
    await world.pass(20_000);
    c.end().comeBack();
    await world.pass(2_000);
    for (const ticket of ['two', 'three']) expect((await a.admit(ticket, limit)).kind).toBe('granted');
  });

  test('calls that waited are served at their positions, and a serialized lane waits one lease first', async () => {
    await c.admit('first', serial);
    await c.admit('second', serial);
    await c.admit('elsewhere', { ...serial, lane: 'other' });
    await c.settle('elsewhere');
    c.end().goAway();
    await c.settle('first');
    await c.admit('third', serial);
    await world.pass(leaseMs - 100);
    expect(c.granted()).toEqual(['first', 'elsewhere']);
    await world.pass(200);
    expect(c.granted()).toEqual(['first', 'elsewhere', 'second']);
    await c.settle('second');
    await world.pass(50);
    expect(c.granted()).toEqual(['first', 'elsewhere', 'second', 'third']);
    // Another replica may be alone as well, and send a call of the lane.
    expect(c.leasesLost).toEqual(['unavailable', 'unavailable']);
  });

  test('a lane with a cap of two waits one lease first, and what it sends then is counted as an overlap', async () => {
    const two = { maxInFlight: 2 };
    await c.admit('elsewhere', { lane: 'other' });
    c.end().goAway();
    await c.admit('first', two);
    await world.pass(leaseMs - 100);
    expect(c.granted()).toEqual(['elsewhere']);
    await world.pass(200);
    expect(c.granted()).toEqual(['elsewhere', 'first']);
    expect(c.leasesLost).toEqual(['unavailable']);
  });

  test('a bucket with a cap waits one lease first, and gives this replica its share of the places', async () => {
    const setting = { meters: [], learn: true, probe: 0, maxInFlightTotal: 5 };
    await c.admit('elsewhere', { setting, lane: 'other' });
    await c.settle('elsewhere');
    c.end().goAway();
    for (let n = 0; n < 6; n += 1) await c.admit(`t${n}`, { setting, lane: `l${n % 3}` });
    await world.pass(leaseMs - 100);
    expect(c.granted()).toEqual(['elsewhere']);
    await world.pass(200);
    // The world has two replicas.
    expect(c.granted()).toEqual(['elsewhere', 't0', 't1']);
    await c.settle('t0');
    await world.pass(50);
    expect(c.granted()).toEqual(['elsewhere', 't0', 't1', 't2']);
  });

  test('afterwards its calls stand in the log: those under way hold their lanes, those that wait keep their order', async () => {
    await c.admit('before', serial);
    await c.settle('before');
    c.end().goAway();
    await c.admit('first', serial);
    await world.pass(leaseMs + 100);
    expect(c.granted()).toEqual(['before', 'first']);
    await c.admit('second', serial);
    c.end().comeBack();
    await world.pass(100);
    await a.admit('third', serial);
    await world.pass(2 * leaseMs);
    expect([a.granted(), c.granted()]).toEqual([[], ['before', 'first']]);
    await c.settle('first');
    await world.pass(50);
    expect(c.granted()).toEqual(['before', 'first', 'second']);
    await c.settle('second');
    await world.pass(50);
    expect(a.granted()).toEqual(['third']);
  });

  test.each([1, 2])(
    'afterwards others count what it has used, when it has come back %i times',
    async (times) => {
      const limit = { limit: 2, windowMs: 600_000, maxWaitMs: 10_000 };
      await c.admit('before', { limit: 1, bucket: 'bucket.other' });
      c.end().goAway();
      await c.admit('one', limit);
      await c.settle('one');
      for (let n = 1; n <= times; n += 1) {
        c.end().comeBack();
        if (n < times) c.end().goAway();
      }
      await world.pass(100);
      expect((await a.admit('two', limit)).kind).toBe('granted');
      expect((await a.admit('three', limit)).kind).toBe('refused');
    },
  );

  test.each([1, 2])(
    'afterwards a bucket that it was refused by is closed for the rest of its time, when it has come back %i times',
    async (times) => {
      await c.admit('before', { bucket: 'bucket.other' });
      c.end().goAway();
      await c.admit('first');
      await c.settle('first', { kind: 'throttled', closeMs: 10_000, requeue: false, sleepMs: 0 });
      for (let n = 1; n <= times; n += 1) {
        c.end().comeBack();
        if (n < times) c.end().goAway();
        await world.pass(1_000 / times);
      }
      expect((await a.admit('second')).kind).toBe('queued');
      await world.pass(8_900);
      expect(a.granted()).toEqual([]);
      await world.pass(200);
      expect(a.granted()).toEqual(['second']);
    },
  );

  test('a replica that never saw the log serves calls', async () => {
    const d = world.replica('d', { whenDown: 'local' });
    const reply = d.admit('one', { lane: laneKey('own') });
    d.end().goAway();
    expect((await reply).kind).toBe('granted');
  });
});
