/** The limiter over a log that loses entries, that is away, and whose replicas stop: no call is lost, and none is sent twice. */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { bucketKey, ticketId } from '../../../src/ids.ts';
import type { WhenDown, Lesson, Settlement } from '../../../src/limiter/limiter.ts';
import type { LogEvent } from '../../../src/limiter/over-log/fold.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { leaseMs, throttled, World, type Replica } from './replicas.ts';

let world: World;
let a: Replica;
let b: Replica;
/** So many entries are in the log. */
let said: () => number;
beforeEach(() => {
  world = new World();
  a = world.replica('a');
  b = world.replica('b');
  said = () => world.log.entries.length;
});
afterEach(() => world.close());

const serial = { maxInFlight: 1 } as const;
const elsewhere = { bucket: 'bucket.other' } as const;
const bucket = bucketKey('bucket');
const unknown: Settlement = { kind: 'unknown' };

/** `first` of one replica is under way in a serialized lane, and `second` of another one waits. */
async function oneBehindTheOther(one = a, other = b): Promise<void> {
  await one.admit('first', serial);
  await other.admit('second', serial);
}

/** Nothing but `before` is sent for so long from now on, and this then. */
async function waitsFor(
  ms: number,
  sent: () => readonly string[],
  before: readonly string[],
  then: readonly string[],
) {
  expect(sent()).toEqual(before);
  await world.pass(ms - 100);
  expect(sent()).toEqual(before);
  await world.pass(200);
  expect(sent()).toEqual([...before, ...then]);
}

describe('when the log has lost what came last', () => {
  test('calls that waited wait again, in the same order', async () => {
    await a.admit('first', serial);
    const kept = said();
    await b.admit('second', serial);
    await world.pass(5);
    await a.admit('third', serial);
    await world.lose(kept);
    await a.settle('first');
    expect([a.granted(), b.granted()]).toEqual([['first'], ['second']]);
    await b.settle('second');
    expect([a.granted(), b.granted()]).toEqual([['first', 'third'], ['second']]);
  });

  test('a call under way holds its lane, and is not sent again', async () => {
    const kept = said();
    await a.admit('first', serial);
    await world.lose(kept);
    expect(a.leasesLost).toEqual(['epoch']);
    expect(await b.ask(['second'], serial)).toEqual(['queued']);
    await world.pass(2 * leaseMs);
    expect([a.granted(), b.granted()]).toEqual([['first'], []]);
    await a.settle('first');
    expect(b.granted()).toEqual(['second']);
  });

  test('a settlement is said again, and the call that it made room for is sent once', async () => {
    await oneBehindTheOther();
    const kept = said();
    await a.settle('first');
    expect(b.granted()).toEqual(['second']);
    await world.lose(kept);
    expect(b.granted()).toEqual(['second']);
    expect(b.limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 1 }]);
    await b.settle('second');
    expect(await a.ask(['third'], serial)).toEqual(['granted']);
  });

  test('a call that was put back to its position waits there', async () => {
    await oneBehindTheOther();
    const kept = said();
    await a.limiter.settle(a.grantOf('first'), throttled(0), null);
    await world.lose(kept);
    expect([a.granted(), b.granted()]).toEqual([['first', 'first'], []]);
  });

  test('a call that was put back waits for its bucket, also where that is lost a second time', async () => {
    await oneBehindTheOther();
    const kept = said();
    await a.limiter.settle(a.grantOf('first'), throttled(10_000), null);
    await world.lose(kept, 10);
    await world.lose(kept, 5_000);
    expect([a.granted(), b.granted()]).toEqual([['first'], []]);
  });

  test('others go on when a replica has put its sends back under their ceilings', async () => {
    let putBack = (): void => {};
    const restored = new Promise<void>((done) => (putBack = done));
    await world.replica('c', { restoreSends: () => restored }).admit('before', elsewhere);
    await oneBehindTheOther();
    await world.lose(said(), 0);
    await a.settle('first');
    await world.pass(150);
    expect(b.granted()).toEqual([]);
    putBack();
    await world.pass(50);
    expect(b.granted()).toEqual(['second']);
  });

  test('a call that was cancelled stays cancelled', async () => {
    await oneBehindTheOther();
    const kept = said();
    await b.limiter.cancel(bucket, ticketId('second'));
    await world.lose(kept, 0);
    await a.settle('first');
    await world.pass(3_000);
    expect(b.granted()).toEqual([]);
    expect(b.limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 0 }]);
  });

  test('a call whose move was lost waits in its new bucket alone', async () => {
    const [from, to] = ['bucket.from', 'bucket.to'];
    await a.ask(['busy', 'moves'], { bucket: from, ...serial });
    const kept = said();
    const asked = admission('moves', { bucket: to, arrivedAt: world.clock.monotonic(), ...serial });
    await a.limiter.move(bucketKey(from), asked);
    await world.pass(20);
    await world.lose(kept);
    await b.admit('next', { bucket: from, ...serial });
    expect(await b.limiter.forecast(bucketKey(from), ticketId('next'))).toMatchObject({ ahead: 0 });
  });

  test('waiting calls that enter again have the settings of the last reload', async () => {
    await a.admit('before', elsewhere);
    const kept = said();
    await b.ask(['first', 'second', 'third'], { limit: 1, windowMs: 600_000, maxWaitMs: 900_000 });
    await b.reload({ meters: [{ meter: 'requests', limit: 2, windowMs: 600_000 }] });
    await world.lose(kept);
    expect(b.limiter.snapshot()).toMatchObject([{ meters: [{ limit: 2 }] }]);
  });

  test('replicas that have lost nothing say so when they hear of it, and calls go on', async () => {
    await world.replica('c').admit('before', elsewhere);
    await oneBehindTheOther();
    for (const { end } of [a, b]) end().stop();
    await world.lose(said(), 5);
    for (const { end } of [a, b]) end().goOn();
    await a.settle('first');
    await world.pass(150);
    expect(b.granted()).toEqual(['second']);
  });

  test('nobody waits for a replica that has left the log without a call', async () => {
    await a.admit('one');
    await a.settle('one');
    await b.admit('before');
    await a.limiter.close();
    await world.pass(5);
    await world.lose(said(), 0);
    void b.admit('next');
    await world.pass(200);
    expect(b.granted()).toEqual(['before', 'next']);
  });
});

describe('when somebody else says what is wrong of a call', () => {
  const say = async (event: Extract<LogEvent, { kind: 'in' }>['event']): Promise<void> => {
    world.log.open('x').append({ kind: 'in', bucket, event });
    await world.pass(5);
  };

  test.each(['here', 'away'] as const)(
    'a call under way that is put back and granted again while its replica is %s is not sent again, and ends its new lease',
    async (where) => {
      await oneBehindTheOther();
      if (where === 'away') a.end().goAway();
      const settlement = { kind: 'returned', sleepMs: 0, because: 'backoff' } as const;
      await say({ kind: 'settle', lease: a.grantOf('first').lease, settlement, lesson: null });
      if (where === 'away') a.end().comeBack();
      await world.pass(50);
      expect([a.granted(), b.granted()]).toEqual([['first'], []]);
      await a.settle('first');
      expect(b.granted()).toEqual(['second']);
    },
  );

  test('a waiting call that the log lacks is entered again within a second', async () => {
    await oneBehindTheOther();
    await say({ kind: 'cancel', ticket: ticketId('second') });
    await world.pass(1_100);
    await a.settle('first');
    expect(b.granted()).toEqual(['second']);
  });
});

describe('a serialized lane', () => {
  test('has one call in flight at a time, whatever two versions of the fold say', async () => {
    const other = world.replica('c', { version: 'other.' });
    await oneBehindTheOther(a, other);
    await world.pass(2 * leaseMs);
    expect([a.granted(), other.granted()]).toEqual([['first'], []]);
    await a.settle('first');
    await world.pass(450);
    expect(other.granted()).toEqual(['second']);
  });

  test('has one call in flight while a replica with a call under way is cut off from the log', async () => {
    await oneBehindTheOther();
    a.end().stop();
    await world.pass(3 * leaseMs);
    expect(b.granted()).toEqual([]);
    void a.limiter.settle(a.grantOf('first'), { kind: 'succeeded', spent: null }, null);
    await world.pass(500);
    expect(b.granted()).toEqual(['second']);
  });

  test.each([
    ['goes on', undefined],
    ['is passed on to another version of the fold', 'other.'],
  ])('%s when a call whose fate is unknown has had its lease, and not before', async (_, version = '') => {
    const other = version === '' ? b : world.replica('c', { version });
    await oneBehindTheOther(a, other);
    await a.settle('first', unknown);
    await world.pass(leaseMs - 1_000);
    expect(other.granted()).toEqual([]);
    await world.pass(2_000);
    expect(other.granted()).toEqual(['second']);
  });

  test.each(['the log hears of', 'the log loses'] as const)(
    'counts a lease as lost that ran out while its replica stood still with a call under way, whose end %s',
    async (end) => {
      const kept = said();
      await a.admit('first', { maxInFlight: 2 });
      await b.admit('second', { maxInFlight: 2 });
      a.end().stop();
      await world.pass(2 * leaseMs);
      if (end === 'the log hears of') a.end().goOn();
      const settled = a.settle('first');
      if (end === 'the log loses') {
        a.end().goAway();
        await world.lose(kept);
      }
      await settled;
      await b.settle('second');
      expect([a.leasesLost, b.leasesLost]).toEqual([['expired'], end === 'the log loses' ? ['epoch'] : []]);
    },
  );

  test('has its call at its position again where its guard does not answer', async () => {
    let answers = false;
    const { guard } = world;
    const take: typeof guard.take = (call, keepMs) =>
      answers ? guard.take(call, keepMs) : Promise.resolve({ kind: 'unavailable' } as const);
    const c = world.replica('c', { guard: { take, free: (call) => guard.free(call) } });
    expect(await c.ask(['one'], serial)).toEqual(['queued']);
    await world.pass(1_000);
    expect(c.granted()).toEqual([]);
    answers = true;
    await world.pass(1_000);
    expect(c.granted()).toEqual(['one']);
  });
});

describe('while the log is away, with whenDown: deny', () => {
  test('arriving calls are refused, also those on their way, and waiting calls are granted afterwards', async () => {
    await oneBehindTheOther();
    const onItsWay = b.admit('on its way', serial);
    b.end().goAway();
    const unavailable = { kind: 'refused', reason: 'limiter_unavailable' };
    expect(await onItsWay).toMatchObject(unavailable);
    expect(await b.admit('third', serial)).toMatchObject(unavailable);
    await world.pass(1_000);
    b.end().comeBack();
    await a.settle('first');
    expect(b.granted()).toEqual(['second']);
  });

  test('a replica that hears meanwhile of how many it is one goes on alone, also with what waits', async () => {
    let whenDown: WhenDown = 'deny';
    const c = world.replica('c', { whenDown: () => whenDown });
    const limit = { limit: 4, windowMs: 60_000, maxWaitMs: 600_000 };
    await c.ask(['1', '2', '3', '4', 'waits'], limit);
    c.end().goAway();
    expect(await c.admit('refused', limit)).toMatchObject({ reason: 'limiter_unavailable' });
    whenDown = 'local';
    await world.pass(5);
    expect(await c.ask(['held'], limit)).toEqual(['queued']);
    await world.pass(120_000);
    expect(c.granted()).toEqual(['1', '2', '3', '4', 'waits', 'held']);
  });

  test('a grant that was made meanwhile is taken', async () => {
    await oneBehindTheOther();
    b.end().goAway();
    await a.settle('first');
    b.end().comeBack();
    await world.pass(5);
    expect(b.granted()).toEqual(['second']);
  });

  test('a call that ends meanwhile is settled afterwards, one that leaves is not granted', async () => {
    await b.ask(['first', 'gone'], serial);
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
});

test.each(['deny', 'local'] as const)(
  'that the log was away is no reason to expect long calls, with whenDown: %s',
  async (whenDown) => {
    const c = world.replica('c', { whenDown });
    await c.ask(['first'], serial);
    c.end().goAway();
    await c.settle('first');
    await world.pass(10_000);
    c.end().comeBack();
    await world.pass(2_000);
    expect(await a.ask(['second', 'third'], { ...serial, maxWaitMs: 500 })).toEqual(['granted', 'queued']);
  },
);

describe('settings that came while the log was away', () => {
  test.each(['deny', 'local'] as const)('hold for all afterwards, with whenDown: %s', async (whenDown) => {
    const c = world.replica('c', { whenDown });
    const limit = { limit: 1, windowMs: 600_000, maxWaitMs: 900_000 };
    await c.admit('first', limit);
    expect(await a.ask(['second'], limit)).toEqual(['queued']);
    c.end().goAway();
    await c.reload({ meters: [{ meter: 'requests', limit: 1_000, windowMs: 600_000 }] });
    c.end().comeBack();
    await world.pass(2_000);
    expect(a.granted()).toEqual(['second']);
  });
});

describe('while the log is away, with whenDown: local', () => {
  let c: Replica;
  beforeEach(() => {
    c = world.replica('c', { whenDown: 'local' });
  });
  /** `before` was sent in another bucket of the log when that went away. */
  const awayAfterOne = async (): Promise<void> => {
    await c.admit('before', { limit: 1, ...elsewhere });
    c.end().goAway();
  };

  test('a replica goes on with its share of the limits', async () => {
    await awayAfterOne();
    const kinds = await c.ask(['1', '2', '3', '4'], { limit: 4, windowMs: 60_000, maxWaitMs: 1_000 });
    expect(kinds).toEqual(['granted', 'granted', 'refused', 'refused']);
  });

  test('calls that waited get no more than its share either', async () => {
    await c.ask(['1', '2', '3', '4', 'waits'], { limit: 4, windowMs: 60_000, maxWaitMs: 600_000 });
    c.end().goAway();
    await world.pass(20_000);
    expect(c.granted()).toEqual(['1', '2', '3', '4']);
  });

  test('afterwards others do not count what has drained since', async () => {
    const limit = { limit: 2, windowMs: 10_000, maxWaitMs: 1_000 };
    await awayAfterOne();
    await c.admit('one', limit);
    await c.settle('one');
    await world.pass(20_000);
    c.end().comeBack();
    await world.pass(2_000);
    expect(await a.ask(['two', 'three'], limit)).toEqual(['granted', 'granted']);
  });

  test('calls that waited are served at their positions, and a serialized lane waits one lease first', async () => {
    await c.ask(['first', 'second'], serial);
    await c.admit('elsewhere', { ...serial, lane: 'other' });
    await c.settle('elsewhere');
    c.end().goAway();
    await c.settle('first');
    await c.admit('third', serial);
    await waitsFor(leaseMs - 50, c.granted, ['first', 'elsewhere'], ['second']);
    await c.settle('second');
    expect(c.granted()).toEqual(['first', 'elsewhere', 'second', 'third']);
    // Another replica may be alone as well, and send a call of the lane.
    expect(c.leasesLost).toEqual(['unavailable', 'unavailable']);
  });

  test('a grant that was found in the log just before is not used in a serialized lane, which waits one lease', async () => {
    await oneBehindTheOther(a, c);
    c.end().stop();
    await a.settle('first');
    c.end().goAwayRejoining();
    await waitsFor(leaseMs, c.granted, [], ['second']);
  });

  test('a call that cannot wait for one lease is refused at once, with that time', async () => {
    await awayAfterOne();
    const told: number[] = [];
    for (const [ticket, maxWaitMs] of [
      ['no', 0],
      ['soon', 5_000],
      ['later', 60_000],
      ['behind', 10_000],
    ] as const) {
      const reply = await c.admit(ticket, { ...serial, maxWaitMs });
      expect(reply).toMatchObject({ kind: ticket === 'later' ? 'queued' : 'refused', heldBy: 'serialized' });
      told.push(reply.kind === 'refused' ? reply.retryInMs : reply.kind === 'queued' ? reply.forecastMs : 0);
    }
    expect(told.slice(0, 3)).toEqual([leaseMs, leaseMs, leaseMs]);
    await waitsFor(leaseMs, c.granted, ['before'], ['later']);
  });

  test.each([
    ['a lane without a cap sends', {}, 2, []],
    ['the only replica sends in a lane with one', serial, 1, []],
    ['one of two replicas sends in a lane with one', serial, 2, ['unavailable']],
  ] as const)('what %s counts as an overlap where it may be one', async (_, options, replicas, counted) => {
    const d = world.replica('d', { whenDown: 'local', replicas });
    await d.admit('before', elsewhere);
    d.end().goAway();
    await d.admit('first', options);
    await world.pass(leaseMs + 100);
    expect([d.granted(), d.leasesLost]).toEqual([['before', 'first'], counted]);
  });

  const tenMinutes = { windowMs: 600_000, maxWaitMs: 1e7 };
  // Of each limit this replica has half; a call that was sent before counts.
  test.each([
    ['raises a limit', 'known', 8, 12, 4, 6],
    ['raises a limit', 'new', 8, 12, 4, 6],
    ['lowers a limit', 'known', 12, 4, 6, 6],
    ['removes a limit', 'known', 8, null, 4, 20],
    ['adds a limit', 'known', null, 8, 20, 20],
  ] as const)(
    'a reload that %s of a bucket that is %s holds at once',
    async (_, known, from, to, before, after) => {
      const stated = (limit: number | null) => ({ ...tenMinutes, ...(limit === null ? {} : { limit }) });
      const calls = (name: string) => Array.from({ length: 20 }, (_, n) => `${name}${n}`);
      await c.ask(['first'], { ...stated(from), bucket: known === 'new' ? 'bucket.other' : 'bucket' });
      c.end().goAway();
      await c.ask(calls('t'), stated(from));
      const sent = (): number => c.granted().filter((ticket) => ticket.startsWith('t')).length;
      expect(sent()).toBe(from === null || known === 'new' ? before : before - 1);
      const meters = to === null ? [] : [{ meter: 'requests', limit: to, windowMs: 600_000 } as const];
      await c.reload({ meters });
      await world.pass(50);
      expect(sent()).toBe(to === null || from === null || known === 'new' ? after : after - 1);
      const kind = to === null ? 'granted' : 'queued';
      expect(await c.ask(['later'], stated(to))).toEqual([kind]);
    },
  );

  test('a reload that lowers a limit holds for calls that were on their way to the log', async () => {
    await awayAfterOne();
    c.end().comeBack();
    await world.pass(100);
    const asked = c.ask(['1', '2', '3', '4'], { ...tenMinutes, limit: 8 });
    const changing = c.reload({ meters: [{ meter: 'requests', limit: 4, windowMs: 600_000 }] });
    c.end().goAway();
    await world.pass(100);
    await Promise.all([asked, changing]);
    expect(c.granted()).toEqual(['before', '1', '2']);
  });

  test('a reload that was on its way to the log holds for calls that come afterwards', async () => {
    const limit = { limit: 8, windowMs: 600_000, maxWaitMs: 1_000 };
    await c.admit('before', limit);
    await c.limiter.settle(c.grantOf('before'), { kind: 'succeeded', spent: null }, null);
    const changing = c.reload({ meters: [{ meter: 'requests', limit: 4, windowMs: 600_000 }] });
    c.end().goAway();
    await Promise.all([changing, world.pass(100)]);
    expect(await c.ask(['1', '2'], { ...limit, limit: 4 })).toEqual(['granted', 'refused']);
  });

  /** A response that states eight requests as the limit, and so many as used. */
  const states = (used: number): Lesson => {
    const level = { lowest: used, highest: used };
    const meters = [{ meter: 'requests', limit: 8, windowMs: 600_000, level } as const];
    return { feedback: { meters, throttle: null }, sentAgoMs: 10, headAgoMs: 0 };
  };
  /** Of a limit of eight this replica has four, whatever responses say meanwhile: they speak of all replicas. */
  async function isShared(limit: AdmissionOptions, before: Lesson | null): Promise<void> {
    const succeeded = { kind: 'succeeded', spent: null } as const;
    await c.admit('1', limit);
    await c.limiter.settle(c.grantOf('1'), succeeded, before);
    c.end().goAway();
    expect(await c.ask(['2'], limit)).toEqual(['granted']);
    await c.limiter.settle(c.grantOf('2'), succeeded, states(8));
    expect(await c.ask(['3', '4', '5'], limit)).toEqual(['granted', 'granted', 'refused']);
  }

  test('a stated limit is shared, and what responses say of all replicas changes nothing', () =>
    isShared({ limit: 8, windowMs: 600_000, maxWaitMs: 1_000 }, null));

  test('a limit that a response has stated before is shared, too', () =>
    isShared({ maxWaitMs: 1_000 }, states(1)));

  test('a bucket with a cap waits one lease first, and gives this replica its share of the places', async () => {
    const setting = { meters: [], learn: true, probe: 0, maxInFlightTotal: 5 };
    await c.admit('elsewhere', { setting, lane: 'other' });
    await c.settle('elsewhere');
    c.end().goAway();
    for (let n = 0; n < 6; n += 1) await c.admit(`t${n}`, { setting, lane: `l${n % 3}` });
    // The world has two replicas.
    await waitsFor(leaseMs, c.granted, ['elsewhere'], ['t0', 't1']);
    await c.settle('t0');
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
    expect(c.granted()).toEqual(['before', 'first', 'second']);
    await c.settle('second');
    expect(a.granted()).toEqual(['third']);
  });

  test.each([1, 2])('after it has come back %i times, others count what it used', async (times) => {
    const limit = { limit: 2, windowMs: 600_000, maxWaitMs: 10_000 };
    await awayAfterOne();
    await c.admit('one', limit);
    // A call of unknown fate counts as well.
    await c.settle('one', times === 2 ? unknown : undefined);
    for (let n = 1; n < times; n += 1) {
      c.end().comeBack();
      c.end().goAway();
      await world.pass(500);
    }
    c.end().comeBack();
    await world.pass(100);
    expect(await a.ask(['two', 'three'], limit)).toEqual(['granted', 'refused']);
  });

  test('afterwards others find a bucket that it was refused by closed for the rest of its time', async () => {
    await awayAfterOne();
    await c.admit('first');
    await c.settle('first', throttled(10_000, false));
    c.end().comeBack();
    await world.pass(1_000);
    expect(await a.ask(['second'])).toEqual(['queued']);
    await waitsFor(8_950, a.granted, [], ['second']);
  });
});
