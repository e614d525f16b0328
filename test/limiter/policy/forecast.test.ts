/** What a call is told of its wait, against when it really leaves. */
import { expect, jest, test } from '@jest/globals';
import { atOrigins } from '../../support/at-origins.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { names, TestBucket, throttled } from './scheduling.ts';

const serial = { limit: 1_000, maxInFlight: 1 };

atOrigins('the forecast for a call', (instant) => {
  /** The wait that the call `x` is told, and how long it waits. */
  function toldAndWaited(
    line: TestBucket,
    options: AdmissionOptions,
    refusing: AdmissionOptions,
  ): [number, number] {
    const refused = line.admit('x', { ...options, ...refusing });
    const asked = line.ms;
    const left = line.enter(['x'], options).length > 0 ? asked : line.leavesAt('x');
    return [refused.kind === 'refused' ? refused.retryInMs : 0, left - asked];
  }

  /** A bucket of one call a second that has just been used up: so many calls wait in each lane, all weights 1 but that of `heavy`. */
  const behind = (waiting: Readonly<Record<string, number>>): TestBucket => {
    const line = new TestBucket(instant);
    line.enter(names(10, 'used'), { lane: 'own' });
    for (const [lane, calls] of Object.entries(waiting))
      line.enter(names(calls, lane), { lane, weight: lane.startsWith('heavy') ? 3 : 1 });
    return line;
  };
  const told = (line: TestBucket): number => {
    const refused = line.admit('x', { lane: 'own', maxWaitMs: 0 });
    return refused.kind === 'refused' ? refused.retryInMs : NaN;
  };

  // Guards a bug: the weight of a lane counted for as long as anything waited elsewhere, and a refusal stated up to twice the wait.
  test.each([
    ['wait is too long', { maxWaitMs: 0 }],
    ['lane is full', { maxQueued: 4 }],
  ])('counts of a heavy lane no more calls than wait there, for a call whose %s', (_what, refusing) => {
    const [told, waited] = toldAndWaited(behind({ heavy: 1, light: 20, own: 4 }), { lane: 'own' }, refusing);
    // The two calls of the margin are one of the light lane and the fraction of one that a bucket gains while it is filled.
    expect(Math.abs(told - waited)).toBeLessThanOrEqual(2_000);
  });

  // Guards a bug: a lane counted with its whole share however few of its calls its ceiling lets go, and others were refused for them.
  test.each([
    ['within a window of it', 4, 5],
    ['within two windows of it', 60, 10],
  ])('counts of a lane no more calls than its ceiling lets go %s', (_within, own, others) => {
    const line = behind({ heavy: 40, own });
    line.lane('heavy').perMinute = 5;
    // The call itself, and what the bucket keeps back.
    const alone = (own + 1) * 1_000;
    expect(told(line)).toBeGreaterThanOrEqual(alone + others * 1_000);
    expect(told(line)).toBeLessThanOrEqual(alone + others * 1_000 + 1_000);
  });

  test.each([
    ['equal', () => 1],
    ['unequal', (at: number) => 1 + ((at * 7) % 4)],
  ])('is exact for the only lane of a bucket, of %s calls', (_what, unitsOf) => {
    const line = new TestBucket(instant);
    const tickets = names(30);
    for (const [at, ticket] of tickets.entries()) line.enter([ticket], { costs: { requests: unitsOf(at) } });
    const waiting = tickets.filter((ticket) => line.forecast(ticket) !== null);
    const told = new Map(waiting.map((ticket) => [ticket, 1_000 + line.waitMs(ticket)]));
    expect(told.size).toBeGreaterThanOrEqual(20);
    const left = line.run(120_000);
    for (const [ticket, at] of told) expect(Math.abs((left.get(ticket) ?? 0) - at)).toBeLessThanOrEqual(1);
  });

  test('is not before the bucket opens or the lane wakes, nor before the calls that go first then', () => {
    const line = new TestBucket(instant);
    line.enter(['a', 'b']);
    line.slotTaken('b', { slots: 0, nextSlotMs: 4_000 });
    line.enter(['c']);
    expect(line.forecast('c')).toEqual({ waitMs: 4_000, ahead: 0, heldBy: 'ceiling_minute' });
    line.settle('a', throttled(9_000, { requeue: true }));
    expect(line.forecast('c')).toEqual({ waitMs: 9_250, ahead: 1, heldBy: 'closed' });
  });

  test('counts the calls of a capped lane once the time of a call is known', () => {
    const line = new TestBucket(instant, serial);
    line.enter(['a', 'b', 'c', 'd']);
    expect(line.waitMs('d')).toBe(0);
    line.at(1_200).settle('a');
    // A single call of 200 ms is counted as 40 ms: half of one is under way, and one more call goes first.
    expect(line.forecast('d')).toEqual({ waitMs: 60, ahead: 1, heldBy: 'serialized' });
    // How late the call under way is already counts, too.
    expect(line.at(1_250).waitMs('c')).toBe(20);
    expect(line.at(6_200).waitMs('c')).toBe(4_960);
  });

  // Guards a bug: each call that waited in a capped lane cost a look at every call in flight of its bucket.
  test('in a capped lane looks at no calls in flight of other lanes', () => {
    const line = new TestBucket(instant, serial);
    line.enter(['a', 'b']);
    const looks = jest.spyOn(line.bucket.leases, 'values');
    expect(line.at(9_000).forecast('b')?.heldBy).toBe('serialized');
    expect(looks).not.toHaveBeenCalled();
  });

  test('counts a first call under way that takes long as if it lasted as long again', () => {
    const line = new TestBucket(instant, serial);
    line.enter(['a', 'b']);
    expect(line.at(9_000).forecast('b')).toEqual({ waitMs: 8_000, ahead: 0, heldBy: 'serialized' });
    const full = { kind: 'refused', reason: 'queue_full', retryInMs: 8_000 };
    expect(line.admit('c', { maxQueued: 1 })).toMatchObject(full);
  });

  // Guards a bug: the forecast was the clock itself, 1,795,330,130 s over Redis, else the uptime of the process.
  test('of a second call does not grow with the time since its lane was last granted', () => {
    const line = new TestBucket(instant, { limit: 40, windowMs: 20_000, maxInFlight: 1, maxWaitMs: 40_000 });
    line.enter(['early'], { lane: 'old' });
    line.at(1_200).settle('early');
    line.at(36_000_000).enter(names(200, 'busy'), { maxInFlight: null, lane: 'busy' });
    for (const lane of ['new', 'old']) {
      const kinds = names(3, lane).map((ticket) => line.admit(ticket, { lane }).kind);
      expect([lane, ...kinds]).toEqual([lane, 'queued', 'queued', 'queued']);
      expect(line.waitMs(`${lane}2`)).toBeLessThan(40_000);
    }
  });

  test.each([
    ['one small call, large ones elsewhere', 100, 0, 30_000, 4],
    ['many small calls, large ones elsewhere', 100, 99, 30_000, 4],
    ['one large call, small ones elsewhere', 30_000, 0, 100, 300],
    ['a second large call, small ones elsewhere', 15_000, 1, 100, 300],
    ['equal calls', 1_000, 5, 1_000, 20],
  ])('is close to the actual wait for %s', (_what, own, ahead, elsewhere, calls) => {
    const meters = [
      { meter: 'requests', limit: 500, windowMs: 60_000 },
      { meter: 'tokens', limit: 30_000, windowMs: 60_000 },
    ] as const;
    const line = new TestBucket(instant, { meters });
    const costs = (units: number) => ({ costs: { requests: 1, tokens: units } });
    line.enter(['full'], { lane: 'z', ...costs(30_000) });
    line.enter(names(calls, 'o'), { lane: 'other', ...costs(elsewhere) });
    line.enter([...names(ahead, 'm'), 'x'], { lane: 'mine', ...costs(own) });
    const told = line.ms + line.waitMs('x');
    // One call of the smaller size on each side, and the rest of a meter that was left empty: a token takes two milliseconds.
    expect(Math.abs(told - line.leavesAt('x'))).toBeLessThanOrEqual(4 * Math.min(own, elsewhere) + 1_100);
  });

  const ofTokens = (limit: number | null): TestBucket => {
    const meters = limit === null ? [] : [{ meter: 'tokens', limit, windowMs: 60_000 } as const];
    const probe = limit === null ? 1 : 0;
    return new TestBucket(instant, { meters, probe, maxWaitMs: 45_000 });
  };
  const tokens = (units: number, lane = 'l'): AdmissionOptions => ({ lane, costs: { tokens: units } });

  test.each([40_000, 1e12])('counts a call for %s of 30,000 tokens as one that takes all', (huge) => {
    const line = ofTokens(30_000);
    line.enter(['a'], tokens(10_000));
    expect(line.admit('b', tokens(huge, 'big')).kind).toBe('queued');
    // The large call goes first and needs a third of a window until it has room.
    expect(line.admit('c', tokens(14)).kind).toBe('queued');
    expect(line.waitMs('c')).toBeLessThan(25_000);
    expect([...line.bucket.waitingCosts]).toEqual([['tokens', 30_014]]);
  });
});
