/** A refused call that keeps its position: what its client is told, and what others leave free until it is back. */
import { expect, test } from '@jest/globals';
import { backgroundLane, ceilingKey, laneKey, ticketId, type TicketId } from '../../../src/ids.ts';
import { sleep } from '../../../src/limiter/policy/lanes.policy.ts';
import { reserve } from '../../../src/limiter/policy/scheduler.policy.ts';
import type { Reserved } from '../../../src/limiter/limiter.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { call, done, names, returned, TestBucket, throttled } from './scheduling.ts';

const lastsMs = 10_000;
/** Behind those that were admitted at the same time, before those that are admitted a millisecond later. */
const enteringMs = 499.5;
/** Four at once, and then one a second. */
const pace = { limit: 4, windowMs: 4_000 };

interface Keeping extends AdmissionOptions {
  /** As whoever knows the ceiling asks for it. */
  readonly waitMs?: number;
  readonly name?: string;
  readonly returning?: TicketId;
  /** How much earlier than others of its moment it arrived. */
  readonly earlierMs?: number;
}

/** A bucket that has been used up at one second. */
class Line extends TestBucket {
  readonly #pace: AdmissionOptions;

  constructor(instant: Instant, paceOf = pace) {
    super(instant, { ...paceOf, maxWaitMs: 600_000 });
    this.#pace = { ...paceOf, maxWaitMs: 0 };
    this.enter(names(paceOf.limit, 'used'));
  }

  /** The call is refused, and keeps its position; with when it may come back, in milliseconds since the origin. */
  keep(ticket: string, keeping: Keeping = {}): Reserved & { readonly from: number } {
    const { waitMs = 0, name, returning, earlierMs = 0, ...options } = keeping;
    const admission = {
      ...call(ticket, { ...this.#pace, ...options }),
      position: { kind: 'arrival', at: this.now - enteringMs - earlierMs },
      ...(returning === undefined ? {} : { reservation: returning }),
    } as const;
    const named = name === undefined ? {} : { name: ticketId(name) };
    const terms = { ceiling: ceilingKey('c'), lastsMs, maxReserved: 1_000 };
    const reserving = { ...terms, waitMs, begins: returning === undefined, ...named };
    const reply = reserve(this.bucket, { admission, reserving }, this.now);
    if (reply === null) throw new Error('nothing was kept');
    return { ...reply, from: this.ms + reply.waitMs };
  }

  /** The client comes back, as a call of this name. */
  back(id: TicketId, as: string, options: AdmissionOptions = {}): ReturnType<TestBucket['admit']> {
    return this.admit(as, { ...this.#pace, ...options, reservation: id });
  }
}

atOrigins('a reservation', (instant) => {
  const full = (paceOf = pace): Line => new Line(instant, paceOf);
  /** `a` keeps its position in it. */
  const withOne = (keeping?: Keeping) => {
    const line = full();
    return { line, ...line.keep('a', keeping) };
  };
  const inSeconds = (kept: readonly Reserved[]): number[] =>
    kept.map(({ waitMs }) => Math.floor(waitMs / 1_000));

  test('has a time of its own, also where several calls are refused together', () => {
    const line = full();
    expect(inSeconds(['a', 'b', 'c'].map((each) => line.keep(each)))).toEqual([1, 2, 3]);
  });

  test('has a time of its own where calls of one moment come to the log in another order than they arrived in', () => {
    const line = full();
    const keep = (earlierMs: number) => line.keep(`a${earlierMs}`, { earlierMs });
    const [first, second, third] = [keep(0), keep(40), keep(80)];
    expect(inSeconds([first, second, third])).toEqual([1, 2, 3]);
    // Nor does one go before another that was told an earlier time.
    line.at(third.from);
    expect([line.back(second.id, 'b').kind, line.back(first.id, 'c').kind]).toEqual(['granted', 'granted']);
  });

  test('lets its client leave at once from the told time on, and before that tells it the time left', () => {
    const { line, id, waitMs, from } = withOne();
    const early = line.at(from - waitMs / 2).back(id, 'a2');
    expect(early).toMatchObject({ kind: 'refused', reason: 'wait_too_long' });
    expect(early.kind === 'refused' && early.retryInMs).toBeCloseTo(waitMs / 2, 0);
    expect(line.at(from).back(id, 'a3').kind).toBe('granted');
  });

  test.each(['l', 'another'])('is left free by a later call of lane %s while it is kept', (lane) => {
    const { line, from } = withOne();
    line.at(1_001).enter(['later'], { lane });
    // A second place has drained by the second after it: that one is free.
    const left = line.leavesAt('later');
    expect(left).toBeGreaterThan(from + 900);
    expect(left).toBeLessThan(from + 1_200);
  });

  test('costs those behind it nothing when it is not used, but the room of one call while it is kept', () => {
    const { line, from } = withOne();
    line.at(1_001).enter(names(20));
    const left = [...line.run(60_000).values()];
    // One a second behind it, and the one that it held back as soon as it ends.
    expect(left.filter((at) => at <= from + lastsMs)).toHaveLength(10);
    expect(left.filter((at) => at <= from + lastsMs + 200)).toHaveLength(11);
  });

  test('is of use to a call whose cost is guessed, also where that guess has risen', () => {
    const line = full().at(10_000);
    const asking = (document: string) => ({ costs: { requests: 1, cost: 50 }, document });
    const learn = (document: string, requestedCost: number): string[] =>
      line.settle(document, done, line.lesson({ requestedCost }));
    line.enter(['d1'], asking('d1'));
    line.enter(['d2'], asking('d2'));
    learn('d1', 3);
    line.enter(names(2));
    const { id, from } = line.keep('a', asking('new'));
    learn('d2', 600);
    expect(line.at(from).back(id, 'a2', asking('new')).kind).toBe('granted');
  });

  test('is of no use twice, in another lane, or for a larger call', () => {
    const { line, id, from } = withOne();
    line.at(1_001).enter(['later']);
    expect(line.at(from).back(id, 'x', { lane: 'another' }).kind).toBe('refused');
    const larger = line.back(id, 'y', { costs: { requests: 2 }, maxWaitMs: 60_000 });
    expect(larger.kind === 'queued' && larger.ahead).toBeGreaterThan(0);
    line.cancel('y');
    expect([line.back(id, 'z').kind, line.back(id, 'zz').kind]).toEqual(['granted', 'refused']);
  });

  test('is of no use later', () => {
    const { line, id, from } = withOne();
    line.at(1_001).enter(names(20));
    line.run(from + lastsMs);
    expect(line.at(from + lastsMs + 1).back(id, 'z').kind).toBe('refused');
  });

  test('has a new time where the bucket has closed meanwhile, and is kept', () => {
    const { line, id, from } = withOne();
    line.at(1_500).settle('used0', throttled(40_000));
    expect(line.at(from).back(id, 'a2').kind).toBe('refused');
    const again = line.keep('a2', { returning: id });
    expect(again.id).toBe(id);
    expect(again.from).toBeGreaterThanOrEqual(41_500);
    expect(line.at(again.from).back(id, 'a3').kind).toBe('granted');
  });

  test('is counted by the forecasts of calls that come later', () => {
    const line = full();
    for (const each of ['a', 'b', 'c']) line.keep(each);
    const reply = line.at(1_001).admit('later');
    expect(reply).toMatchObject({ kind: 'queued', ahead: 3 });
    expect(reply.kind === 'queued' && Math.round(reply.forecastMs / 1_000)).toBe(4);
  });

  test('lets its client go before other lanes, whoever’s turn it is, and before it leaves theirs alone', () => {
    const line = full();
    const [a, b] = [line.keep('a'), line.keep('b')];
    line.at(1_001).enter(names(4), { lane: 'another' });
    // The second one comes too early, and waits.
    expect(line.at(1_500).back(b.id, 'b2', { maxWaitMs: 30_000 }).kind).toBe('queued');
    expect(line.at(1_501).run(a.from).size).toBe(0);
    expect(line.at(a.from).back(a.id, 'a2').kind).toBe('granted');
    expect(line.at(a.from + 1).leaving(b.from)).toEqual(['b2']);
  });

  test('does not hold up calls of its lane that came before it and wait longer than was expected', () => {
    for (const comesBack of [false, true]) {
      const line = full();
      line.enter(['earlier']);
      const { id, waitMs, from } = line.keep('a');
      expect(waitMs).toBeGreaterThan(2_000);
      // Less room than was expected: there is none for both.
      line.meter().level += 2;
      if (!comesBack) expect(line.at(1_001).leavesAt('earlier')).toBeLessThan(4_500);
      else line.at(from).back(id, 'a2', { maxWaitMs: 30_000 });
      if (comesBack) expect(line.at(from + 1).leaving(30_000)).toEqual(['earlier', 'a2']);
    }
  });

  test('is one call’s, and is kept where that left its line', () => {
    const { line, id, from } = withOne();
    expect(line.at(1_100).back(id, 'a2', { maxWaitMs: 30_000 }).kind).toBe('queued');
    expect(line.back(id, 'a3', { maxWaitMs: 30_000 })).toMatchObject({ kind: 'queued', ahead: 1 });
    line.at(1_200).cancel('a2');
    expect(line.at(from).back(id, 'a4').kind).toBe('granted');
  });

  test('has the same time however often its client asks too early, and a later one where the ceiling demands it', () => {
    const { line, id, from } = withOne();
    const again = line.at(1_200).keep('a2', { returning: id });
    expect(again.id).toBe(id);
    expect(again.from).toBeCloseTo(from, 3);
    expect(line.at(1_300).keep('a3', { returning: id, waitMs: 20_000 }).waitMs).toBe(20_000);
  });

  test('has the name that its call brings, once', () => {
    const line = full();
    expect(['a', 'b'].map((each) => line.keep(each, { name: 'n' }).id)).toEqual(['n', 'b']);
  });

  test('is over when its call leaves, and goes on where the call comes back unsent', () => {
    const { line, id, from } = withOne();
    line.at(from).back(id, 'a2');
    expect(line.bucket.reservations.size).toBe(0);
    line.enter(['later'], { lane: 'another' });
    line.at(from + 10).settle('a2', returned('backoff', 300));
    // The room that came back is kept for it, while it may not go.
    expect(line.at(from + 11).leaving(from + 500)).toEqual(['a2']);
  });

  test('is not kept waiting for others that are due as well', () => {
    const { line, id, from } = withOne();
    line.keep('b', { lane: 'another' });
    expect(line.at(from).back(id, 'a2').kind).toBe('granted');
  });

  test('holds up all others where there never is room for two', () => {
    const line = full({ limit: 1, windowMs: 1_000 });
    const { from } = line.keep('a');
    line.at(1_001).enter(['later'], { lane: 'another' });
    expect(line.leavesAt('later')).toBeGreaterThan(from + lastsMs);
  });

  test.each([
    ['holds back its client while its lane is in back-off', 'backoff', true],
    ['lets its client through a lane that sleeps for reservations alone', 'reserved', false],
  ] as const)('%s', (_what, because, isLate) => {
    const { line, id, from } = withOne();
    line.at(from - 10).back(id, 'a2', { maxWaitMs: 30_000 });
    sleep(line.bucket, line.lane(), because, instant(from + 5_000));
    expect(line.at(from - 9).leavesAt('a2') > from + 4_000).toBe(isLate);
  });

  test('of a background call is left free by the background alone, and its client goes behind all others', () => {
    const line = full();
    const lane = backgroundLane(laneKey('l'));
    const { id, from } = line.keep('a', { lane });
    for (const each of ['b', 'c']) line.at(1_001).enter([each], { lane: each });
    expect(line.leaving(from + 200)[0]).toBe('b');
    line.at(from + 201).back(id, 'a2', { lane, maxWaitMs: 30_000 });
    expect(line.leaving(from + 20_000)).toEqual(['c', 'a2']);
  });

  test('takes a turn of its own lane, not of those that come new', () => {
    const line = full();
    line.enter(names(3, 'm'), { lane: 'm' });
    const { id, from } = line.at(1_001).keep('a');
    line.run(from - 1);
    expect(line.at(from).back(id, 'a2').kind).toBe('granted');
    line.at(from + 1).enter(['new'], { lane: 'z' });
    expect(line.leaving(from + 20_000)).toEqual(['new', 'm1', 'm2']);
  });

  test('tells its client the told time also where the bucket has room before it', () => {
    const { line, id } = withOne({ waitMs: 20_000 });
    const early = line.at(11_000).back(id, 'a2');
    expect(early.kind === 'refused' && Math.round(early.retryInMs)).toBe(10_000);
  });
});
