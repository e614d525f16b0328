/** A refused call that keeps its position: what its client is told, and what others leave free until it is back. */
import { expect, test } from '@jest/globals';
import {
  backgroundLane,
  ceilingKey,
  laneKey,
  leaseToken,
  ticketId,
  type TicketId,
} from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { sleep } from '../../../src/limiter/policy/lanes.policy.ts';
import { cancel } from '../../../src/limiter/policy/scheduler.policy.ts';
import { reserve } from '../../../src/limiter/policy/reserve.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import type { Reserved } from '../../../src/limiter/limiter.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, bucketWith, call, replica, runOn } from './scheduling.ts';

const lastsMs = 10_000;
/** Behind those that were admitted at the same time, before those that are admitted a millisecond later. */
const enteringMs = 499.5;
/** Four at once, and then one a second. */
const pace: AdmissionOptions = { limit: 4, windowMs: 4_000, maxWaitMs: 0 };
const patient: AdmissionOptions = { ...pace, maxWaitMs: 600_000 };

interface Keeping extends AdmissionOptions {
  /** As whoever knows the ceiling asks for it. */
  readonly waitMs?: number;
  readonly name?: string;
  readonly returning?: TicketId;
  /** How much earlier than others of its moment it arrived. */
  readonly earlierMs?: number;
}

function keepFor(
  bucket: Bucket,
  ticket: string,
  now: number,
  { waitMs = 0, name, returning, earlierMs = 0, ...options }: Keeping = {},
): Reserved {
  const admission = {
    ...call(ticket, { ...pace, ...options }),
    position: { kind: 'arrival', at: now - enteringMs - earlierMs },
    ...(returning === undefined ? {} : { reservation: returning }),
  } as const;
  const named = name === undefined ? {} : { name: ticketId(name) };
  const terms = { ceiling: ceilingKey('c'), lastsMs, maxReserved: 1_000 };
  const reserving = { ...terms, waitMs, begins: returning === undefined, ...named };
  const reply = reserve(bucket, { admission, reserving }, now);
  if (reply === null) throw new Error('nothing was kept');
  return reply;
}

/** The client of the ticket comes back, as a call of this name. */
const comeBack = (
  bucket: Bucket,
  id: TicketId,
  { as, at, ...more }: { as: string; at: number } & AdmissionOptions,
) => admit(bucket, { ...call(as, { ...pace, ...more }), reservation: id }, replica, at);

atOrigins('a reservation', (instant) => {
  const full = (): Bucket => bucketWith(instant, 4, pace).bucket;

  test('has a time of its own, also where several calls are refused together', () => {
    const bucket = full();
    const told = ['a', 'b', 'c'].map((each) => keepFor(bucket, each, instant(1_000)).waitMs);
    expect(told.map((ms) => Math.floor(ms / 1_000))).toEqual([1, 2, 3]);
  });

  test('has a time of its own where calls of one moment come to the log in another order than they arrived in', () => {
    const bucket = full();
    const told = [0, 40, 80].map((earlierMs) =>
      keepFor(bucket, `a${earlierMs}`, instant(1_000), { earlierMs }),
    );
    expect(told.map(({ waitMs }) => Math.floor(waitMs / 1_000))).toEqual([1, 2, 3]);
    // Nor does one go before another that was told an earlier time.
    const at = instant(1_000) + (told[2]?.waitMs ?? 0);
    const [first, second] = [told[0], told[1]].map((each) => each?.id ?? ticketId(''));
    expect(comeBack(bucket, second ?? ticketId(''), { as: 'b', at }).kind).toBe('granted');
    expect(comeBack(bucket, first ?? ticketId(''), { as: 'c', at }).kind).toBe('granted');
  });

  test('lets its client leave at once from the told time on, and before that tells it the time left', () => {
    const bucket = full();
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const early = comeBack(bucket, id, { as: 'a2', at: instant(1_000) + waitMs / 2 });
    expect(early).toMatchObject({ kind: 'refused', reason: 'wait_too_long' });
    expect(early.kind === 'refused' && early.retryInMs).toBeCloseTo(waitMs / 2, 0);
    expect(comeBack(bucket, id, { as: 'a3', at: instant(1_000) + waitMs }).kind).toBe('granted');
  });

  test('is left free by a call that came later, of its own lane or another one, for as long as it is kept', () => {
    for (const lane of ['l', 'another']) {
      const bucket = full();
      const { waitMs } = keepFor(bucket, 'a', instant(1_000));
      admit(bucket, call('later', { ...patient, lane }), replica, instant(1_001));
      const from = instant(1_000) + waitMs;
      // A second place has drained by the second after it: that one is free.
      const left = runOn(bucket, instant(1_002), instant(30_000), []).get('later') ?? Infinity;
      expect(left).toBeGreaterThan(from + 900);
      expect(left).toBeLessThan(from + 1_200);
    }
  });

  test('costs those behind it nothing when it is not used, but the room of one call while it is kept', () => {
    const bucket = full();
    const { waitMs } = keepFor(bucket, 'a', instant(1_000));
    for (let n = 0; n < 20; n += 1) admit(bucket, call(`t${n}`, patient), replica, instant(1_001));
    const left = [...runOn(bucket, instant(1_002), instant(60_000), []).values()];
    const from = instant(1_000) + waitMs;
    // One a second behind it, and the one that it held back as soon as it ends.
    expect(left.filter((at) => at <= from + lastsMs)).toHaveLength(10);
    expect(left.filter((at) => at <= from + lastsMs + 200)).toHaveLength(11);
  });

  test('is of no use later, twice, in another lane, or for a larger call', () => {
    const bucket = full();
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const from = instant(1_000) + waitMs;
    admit(bucket, call('later', patient), replica, instant(1_001));
    const waits = { at: from, maxWaitMs: 0 };
    expect(comeBack(bucket, id, { as: 'x', lane: 'another', ...waits }).kind).toBe('refused');
    const larger = comeBack(bucket, id, { as: 'y', costs: { requests: 2 }, at: from, maxWaitMs: 60_000 });
    expect(larger.kind === 'queued' && larger.ahead).toBeGreaterThan(0);
    cancel(bucket, ticketId('y'), from);
    expect(comeBack(bucket, id, { as: 'z', ...waits }).kind).toBe('granted');
    expect(comeBack(bucket, id, { as: 'zz', ...waits }).kind).toBe('refused');

    const other = full();
    const late = keepFor(other, 'a', instant(1_000));
    for (let n = 0; n < 20; n += 1) admit(other, call(`t${n}`, patient), replica, instant(1_001));
    const until = instant(1_000) + late.waitMs + lastsMs;
    runOn(other, instant(1_002), until, []);
    expect(comeBack(other, late.id, { as: 'z', at: until + 1 }).kind).toBe('refused');
  });

  test('has a new time where the bucket has closed meanwhile, and is kept', () => {
    const { bucket, grants } = bucketWith(instant, 4, pace);
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const lease = leaseToken(grants[0]?.lease ?? '');
    const closes = { kind: 'throttled', closeMs: 40_000, requeue: false, sleepMs: 0 } as const;
    settle(bucket, { lease, settlement: closes, lesson: null }, instant(1_500));
    const from = instant(1_000) + waitMs;
    expect(comeBack(bucket, id, { as: 'a2', at: from }).kind).toBe('refused');
    const again = keepFor(bucket, 'a2', from, { returning: id });
    expect(again.id).toBe(id);
    expect(from + again.waitMs).toBeGreaterThanOrEqual(instant(41_500));
    expect(comeBack(bucket, id, { as: 'a3', at: from + again.waitMs }).kind).toBe('granted');
  });

  test('is counted by the forecasts of calls that come later', () => {
    const bucket = full();
    for (const each of ['a', 'b', 'c']) keepFor(bucket, each, instant(1_000));
    const reply = admit(bucket, call('later', patient), replica, instant(1_001));
    expect(reply.kind === 'queued' && Math.round(reply.forecastMs / 1_000)).toBe(4);
    expect(reply.kind === 'queued' && reply.ahead).toBe(3);
  });

  test('lets its client go before other lanes, whoever’s turn it is, and before it leaves theirs alone', () => {
    const bucket = full();
    const [a, b] = ['a', 'b'].map((each) => keepFor(bucket, each, instant(1_000)));
    for (let n = 0; n < 4; n += 1)
      admit(bucket, call(`t${n}`, { ...patient, lane: 'another' }), replica, instant(1_001));
    const [fromA, fromB] = [a, b].map((each) => instant(1_000) + (each?.waitMs ?? NaN));
    const [idA, idB] = [a, b].map((each) => each?.id ?? ticketId(''));
    if (fromA === undefined || fromB === undefined || idA === undefined || idB === undefined)
      throw new Error();
    // The second one comes too early, and waits.
    expect(comeBack(bucket, idB, { as: 'b2', at: instant(1_500), maxWaitMs: 30_000 }).kind).toBe('queued');
    expect(runOn(bucket, instant(1_501), fromA, []).size).toBe(0);
    expect(comeBack(bucket, idA, { as: 'a2', at: fromA }).kind).toBe('granted');
    expect([...runOn(bucket, fromA + 1, fromB, []).keys()]).toEqual(['b2']);
  });

  test('does not hold up calls of its lane that came before it', () => {
    const bucket = full();
    admit(bucket, call('earlier', patient), replica, instant(1_000));
    const { waitMs } = keepFor(bucket, 'a', instant(1_000));
    expect(waitMs).toBeGreaterThan(2_000);
    // Less room than was expected: there is none for both.
    const meter = bucket.meters.get('requests');
    if (meter === undefined) throw new Error('no meter');
    meter.level += 2;
    const left = runOn(bucket, instant(1_001), instant(20_000), []).get('earlier') ?? Infinity;
    expect(left - instant(1_000)).toBeLessThan(3_500);
  });

  test('is one call’s, and is kept where that left its line', () => {
    const bucket = full();
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const from = instant(1_000) + waitMs;
    expect(comeBack(bucket, id, { as: 'a2', at: instant(1_100), maxWaitMs: 30_000 }).kind).toBe('queued');
    const second = comeBack(bucket, id, { as: 'a3', at: instant(1_100), maxWaitMs: 30_000 });
    expect(second).toMatchObject({ kind: 'queued', ahead: 1 });
    cancel(bucket, ticketId('a2'), instant(1_200));
    expect(comeBack(bucket, id, { as: 'a4', at: from }).kind).toBe('granted');
  });

  test('has the same time however often its client asks too early, and a later one where the ceiling demands it', () => {
    const bucket = full();
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const again = keepFor(bucket, 'a2', instant(1_200), { returning: id });
    expect(again.id).toBe(id);
    expect(again.waitMs).toBeCloseTo(waitMs - 200, 3);
    expect(keepFor(bucket, 'a3', instant(1_300), { returning: id, waitMs: 20_000 }).waitMs).toBe(20_000);
  });

  test('has the name that its call brings, once', () => {
    const bucket = full();
    const ids = ['a', 'b'].map((each) => keepFor(bucket, each, instant(1_000), { name: 'n' }).id);
    expect(ids).toEqual(['n', 'b']);
  });

  test('is over when its call leaves, and goes on where the call comes back unsent', () => {
    const bucket = full();
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const from = instant(1_000) + waitMs;
    const reply = comeBack(bucket, id, { as: 'a2', at: from });
    expect(bucket.reservations.size).toBe(0);
    admit(bucket, call('later', { ...patient, lane: 'another' }), replica, from);
    const lease = reply.kind === 'granted' ? reply.effects.grants[0]?.lease : undefined;
    const unsent = { kind: 'returned', sleepMs: 300, because: 'backoff' } as const;
    settle(bucket, { lease: leaseToken(lease ?? ''), settlement: unsent, lesson: null }, from + 10);
    // The room that came back is kept for it, while it may not go.
    expect([...runOn(bucket, from + 11, from + 500, []).keys()]).toEqual(['a2']);
  });

  test('is not kept waiting for others that are due as well', () => {
    const bucket = full();
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    keepFor(bucket, 'b', instant(1_000), { lane: 'another' });
    expect(comeBack(bucket, id, { as: 'a2', at: instant(1_000) + waitMs }).kind).toBe('granted');
  });

  test('holds up all others where there never is room for two', () => {
    const small = { limit: 1, windowMs: 1_000 };
    const { bucket } = bucketWith(instant, 1, { ...pace, ...small });
    const { waitMs } = keepFor(bucket, 'a', instant(1_000), small);
    admit(bucket, call('later', { ...patient, ...small, lane: 'another' }), replica, instant(1_001));
    const left = runOn(bucket, instant(1_002), instant(30_000), []).get('later') ?? Infinity;
    expect(left).toBeGreaterThan(instant(1_000) + waitMs + lastsMs);
  });

  test('is no place in flight, and lets its client through a lane that sleeps for reservations alone', () => {
    for (const [because, isLate] of [
      ['backoff', true],
      ['reserved', false],
    ] as const) {
      const bucket = full();
      const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
      const from = instant(1_000) + waitMs;
      comeBack(bucket, id, { as: 'a2', at: from - 10, maxWaitMs: 30_000 });
      const lane = bucket.lanes.get(laneKey('l'));
      if (lane === undefined) throw new Error('no lane');
      sleep(bucket, lane, { because, until: from + 5_000 });
      const left = runOn(bucket, from - 9, from + 20_000, []).get('a2') ?? Infinity;
      expect(left > from + 4_000).toBe(isLate);
    }
  });

  test('lets calls of its lane go first that came before it and wait longer than was expected', () => {
    const bucket = full();
    admit(bucket, call('earlier', patient), replica, instant(1_000));
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const meter = bucket.meters.get('requests');
    if (meter === undefined) throw new Error('no meter');
    meter.level += 2;
    comeBack(bucket, id, { as: 'a2', at: instant(1_000) + waitMs, maxWaitMs: 30_000 });
    const left = runOn(bucket, instant(1_001) + waitMs, instant(30_000), []);
    expect([...left.keys()]).toEqual(['earlier', 'a2']);
  });

  test('of a background call is left free by the background alone, and its client goes behind all others', () => {
    const bucket = full();
    const lane = backgroundLane(laneKey('l'));
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000), { lane });
    const from = instant(1_000) + waitMs;
    for (const each of ['b', 'c'])
      admit(bucket, call(each, { ...patient, lane: each }), replica, instant(1_001));
    const [first] = runOn(bucket, instant(1_002), from + 200, []).keys();
    expect(first).toBe('b');
    comeBack(bucket, id, { as: 'a2', lane, at: from + 201, maxWaitMs: 30_000 });
    expect([...runOn(bucket, from + 202, from + 20_000, []).keys()]).toEqual(['c', 'a2']);
  });

  test('takes a turn of its own lane, not of those that come new', () => {
    const bucket = full();
    for (let n = 0; n < 3; n += 1)
      admit(bucket, call(`m${n}`, { ...patient, lane: 'm' }), replica, instant(1_000));
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_001));
    const from = instant(1_001) + waitMs;
    runOn(bucket, instant(1_002), from - 1, []);
    expect(comeBack(bucket, id, { as: 'a2', at: from }).kind).toBe('granted');
    admit(bucket, call('new', { ...patient, lane: 'z' }), replica, from + 1);
    expect([...runOn(bucket, from + 2, from + 20_000, []).keys()]).toEqual(['new', 'm1', 'm2']);
  });

  test('tells its client the told time also where the bucket has room before it', () => {
    const bucket = full();
    const { id } = keepFor(bucket, 'a', instant(1_000), { waitMs: 20_000 });
    const early = comeBack(bucket, id, { as: 'a2', at: instant(11_000) });
    expect(early.kind === 'refused' && Math.round(early.retryInMs)).toBe(10_000);
  });
});
