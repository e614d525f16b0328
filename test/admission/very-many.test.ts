/**
 * Very many waiting calls, on virtual time: what they cost the others is counted in how often a waiting call is looked at,
 * because a stopwatch would judge the machine.
 */
import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from '@jest/globals';
import { ScanThrottle } from '../../src/admission/scan-throttle.ts';
import type { Lease } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { callOf, embeddedQueue, type CallWish, type Entering } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const manyCalls = 2_000;
const manyEnds = 200;

function world() {
  const clock = new FakeClock();
  let looks = 0;
  const ends = new Map<string, string>();
  const leases = new Map<string, Lease>();
  const { queue } = embeddedQueue({
    clock,
    onFailure: (failure) => ends.set('bug', String(failure)),
  });
  const counted = (id: string, wish: CallWish): Entering => {
    const [made, gone] = callOf(clock, id, { maxQueued: 10_000, maxInFlight: 1, maxWaitMs: 30_000, ...wish });
    const asked = made.admission;
    const request = {
      ...made,
      get admission() {
        looks += 1;
        return asked;
      },
    };
    return [request, gone];
  };
  return {
    clock,
    ends,
    leases,
    /** Looks at calls, from now until what `doing` brought about has settled in no time. */
    async looksDuring(doing: () => void): Promise<number> {
      const before = looks;
      doing();
      await setImmediate();
      await setImmediate();
      return looks - before;
    },
    enter(id: string, wish: CallWish = {}): void {
      queue
        .enter(...counted(id, wish))
        .then((ticket) => ticket.granted())
        .then(
          (lease) => {
            leases.set(id, lease);
            ends.set(id, 'sent');
          },
          (failure: unknown) => ends.set(id, failure instanceof Refusal ? failure.code : String(failure)),
        );
    },
  };
}

const sleeps = (sleepMs: number) => ({ kind: 'throttled', closeMs: 0, requeue: false, sleepMs }) as const;

describe('very many waiting calls', () => {
  test('are not gone over for each of many attempts that end', async () => {
    const { enter, leases, looksDuring } = world();
    for (let n = 0; n < manyEnds; n += 1) enter(`own${n}`, { lane: `own${n}` });
    for (let n = 0; n < manyCalls; n += 1) enter(`n${n}`);
    await setImmediate();
    const looks = await looksDuring(() => {
      for (let n = 0; n < manyEnds; n += 1) leases.get(`own${n}`)?.settle(sleeps(5_000), null);
    });
    // All but the one that was sent.
    expect(looks).toBeGreaterThanOrEqual(manyCalls - 1);
    expect(looks).toBeLessThan(2 * manyCalls + 20 * manyEnds);
  });

  test('are not gone over for each of many that go before them', async () => {
    const { clock, enter, looksDuring } = world();
    for (let n = 0; n < manyCalls; n += 1) enter(`n${n}`, { perMinute: 1_000_000 });
    clock.outside(1_000, () => {});
    await clock.run(1_000);
    let looks = 0;
    for (let n = 0; n < manyEnds; n += 1) {
      looks += await looksDuring(() => enter(`urgent${n}`, { urgency: 0, perMinute: 1_000_000 }));
    }
    expect(looks).toBeGreaterThan(manyCalls);
    expect(looks).toBeLessThan(20 * (manyCalls + manyEnds));
  });

  test('are refused when they cannot make it, though a look has just been taken', async () => {
    const { clock, enter, ends, leases } = world();
    for (const id of ['a', 'b']) enter(id, { lane: id });
    for (let n = 0; n < manyCalls; n += 1) enter(`n${n}`, { lane: 'b', maxWaitMs: n < 10 ? 3_000 : 30_000 });
    await setImmediate();
    leases.get('a')?.settle(sleeps(5_000), null);
    leases.get('b')?.settle(sleeps(5_000), null);
    await clock.run(100);
    const refused = [...ends].filter(([, how]) => how === 'wait_too_long');
    expect(refused.map(([id]) => id)).toEqual(Array.from({ length: 10 }, (_, n) => `n${n}`));
  });
});

describe('walks', () => {
  test('over few calls are taken at once, each', () => {
    let walks = 0;
    const throttle = new ScanThrottle(new FakeClock(), () => {
      walks += 1;
      return 100;
    });
    for (let n = 0; n < 5; n += 1) throttle.request();
    expect(walks).toBe(5);
  });

  test('over very many leave a rest that grows with them, and the last one asked for is taken', async () => {
    const clock = new FakeClock();
    const walks: number[] = [];
    const throttle = new ScanThrottle(clock, () => {
      walks.push(clock.monotonic());
      return 10_000;
    });
    for (let at = 0; at <= 250; at += 10) clock.outside(at, () => throttle.request());
    await clock.run(10_000);
    expect(walks).toEqual([0, 100, 200, 300]);
  });
});
