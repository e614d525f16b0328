/**
 * Very many waiting calls, on virtual time: their cost is counted in how often a waiting call is checked,
 * because a measured time would depend on the machine.
 */
import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from '@jest/globals';
import type { Lease } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { callOf, embeddedQueue, type CallOptions, type Entering } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const manyCalls = 2_000;
const manyEnds = 200;

function world() {
  const clock = new FakeClock();
  let checks = 0;
  const ends = new Map<string, string>();
  const leases = new Map<string, Lease>();
  const { queue } = embeddedQueue({
    clock,
    onFailure: (failure) => ends.set('bug', String(failure)),
  });
  const counted = (id: string, options: CallOptions): Entering => {
    const [made, gone] = callOf(clock, id, {
      maxQueued: 10_000,
      maxInFlight: 1,
      maxWaitMs: 30_000,
      ...options,
    });
    const asked = made.admission;
    const request = {
      ...made,
      get admission() {
        checks += 1;
        return asked;
      },
    };
    return [request, gone];
  };
  return {
    clock,
    ends,
    leases,
    /** How often calls are checked because of `doing`, until nothing more happens without time passing. */
    async checksDuring(doing: () => void): Promise<number> {
      const before = checks;
      doing();
      await setImmediate();
      await setImmediate();
      return checks - before;
    },
    enter(id: string, options: CallOptions = {}): void {
      queue
        .enter(...counted(id, options))
        .then((ticket) => ticket.whenGranted())
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
  test('are not checked once for each of many attempts that end', async () => {
    const { clock, enter, leases, checksDuring } = world();
    for (let n = 0; n < manyEnds; n += 1) enter(`own${n}`, { lane: `own${n}` });
    for (let n = 0; n < manyCalls; n += 1) enter(`n${n}`);
    // The rest after the sweep that follows arriving calls is over.
    clock.outside(500, () => {});
    await clock.run(500);
    const checks = await checksDuring(() => {
      for (let n = 0; n < manyEnds; n += 1) leases.get(`own${n}`)?.settle(sleeps(5_000), null);
    });
    // All calls except the one that was sent.
    expect(checks).toBeGreaterThanOrEqual(manyCalls - 1);
    expect(checks).toBeLessThan(2 * manyCalls + 20 * manyEnds);
  });

  test('are not checked once for each of many more urgent calls', async () => {
    const { clock, enter, checksDuring } = world();
    // The ceiling holds the last of them, in time.
    const held = { perMinute: manyCalls - manyEnds, maxWaitMs: 90_000 };
    for (let n = 0; n < manyCalls; n += 1) enter(`n${n}`, held);
    // The rest after the sweep that follows arriving calls is over.
    clock.outside(1_500, () => {});
    await clock.run(1_500);
    let checks = 0;
    for (let n = 0; n < manyEnds; n += 1) {
      checks += await checksDuring(() => enter(`urgent${n}`, { urgency: 0, ...held }));
    }
    expect(checks).toBeGreaterThan(manyCalls);
    expect(checks).toBeLessThan(20 * (manyCalls + manyEnds));
  });

  test('in buckets of their own under one ceiling are refused at once where it has no slot in time, and checked a few times each', async () => {
    const { clock, enter, ends, checksDuring } = world();
    const [perMinute, minutes] = [60, 2];
    const checks = await checksDuring(() => {
      for (let n = 0; n < manyCalls; n += 1)
        enter(`n${n}`, { bucket: `bucket ${n}`, perMinute, maxWaitMs: minutes * 60_000 - 1_000 });
    });
    expect(checks).toBeLessThan(100 * manyCalls);
    await clock.run(1_000);
    const how = Object.groupBy(ends.values(), (end) => end);
    expect(how['sent']).toHaveLength(perMinute);
    expect(how['wait_too_long']).toHaveLength(manyCalls - minutes * perMinute);
  });

  test('are refused in time although a sweep has just ended', async () => {
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
