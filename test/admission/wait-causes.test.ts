/** What a call that waited says of its wait: what held the first call of its lane, and for how long. */
import { describe, expect, test } from '@jest/globals';
import {
  beginsToWait,
  emptyTimeline,
  heldTimes,
  noted,
  waitsNoLonger,
} from '../../src/admission/wait-causes.policy.ts';
import type { Lease, Ticket } from '../../src/admission/ticket.ts';
import type { Limiter } from '../../src/limiter/over-log/limiter.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { withMethods } from '../support/with-methods.ts';

describe('the timeline of a lane', () => {
  const closedThenSerialized = noted(noted(emptyTimeline, 'closed', 100), 'serialized', 400);

  test('gives each call what held the lane while the call waited, longest first', () => {
    const before = beginsToWait(null, noted(emptyTimeline, 'closed', 100), 100);
    const between = beginsToWait(null, closedThenSerialized, 450);
    expect(heldTimes(waitsNoLonger(before, closedThenSerialized, 600), 500)).toEqual([
      { cause: 'closed', ms: 300 },
      { cause: 'serialized', ms: 200 },
    ]);
    expect(heldTimes(waitsNoLonger(between, closedThenSerialized, 600), 150)).toEqual([
      { cause: 'serialized', ms: 150 },
    ]);
  });

  test('adds up the waits of a call, and counts no time in which nothing waited', () => {
    const first = waitsNoLonger(
      beginsToWait(null, closedThenSerialized, 400),
      noted(closedThenSerialized, null, 500),
      500,
    );
    const later = noted(noted(closedThenSerialized, null, 500), 'closed', 10_000);
    const second = waitsNoLonger(beginsToWait(first, later, 10_000), later, 10_250);
    expect(heldTimes(second, 350)).toEqual([
      { cause: 'closed', ms: 250 },
      { cause: 'serialized', ms: 100 },
    ]);
  });

  test('gives the last cause what of the wait no cause was known for, and leaves out causes of under a millisecond', () => {
    const brief = noted(noted(emptyTimeline, 'tokens', 0), 'cost', 0.5);
    const held = waitsNoLonger(beginsToWait(null, brief, 0), brief, 40);
    const all = waitsNoLonger(beginsToWait(null, noted(emptyTimeline, 'tokens', 0), 0), brief, 40);
    expect(heldTimes(held, 100)).toEqual([{ cause: 'cost', ms: 100 }]);
    expect(heldTimes(all, 100)).toEqual([{ cause: 'cost', ms: 99.5 }]);
  });

  test('says nothing of a call that never waited', () => {
    expect(heldTimes(null, 3)).toEqual([]);
  });
});

function world() {
  const clock = new FakeClock();
  let looks = 0;
  const { queue, limiter } = embeddedQueue({
    clock,
    around: (embedded) =>
      withMethods<Limiter>(embedded, {
        forecastFirst: (bucket, lane) => {
          looks += 1;
          return embedded.forecastFirst(bucket, lane);
        },
      }),
  });
  const tickets = new Map<string, Ticket>();
  const leases = new Map<string, Lease>();
  const waits = (id: string): void => {
    const ticket = tickets.get(id);
    ticket?.whenGranted().then(
      (lease) => leases.set(id, lease),
      () => {},
    );
  };
  return {
    limiter,
    looks: () => looks,
    enter: async (id: string, options: CallOptions) => {
      tickets.set(id, await queue.enter(...callOf(clock, id, { maxWaitMs: 100_000, ...options })));
      waits(id);
    },
    again: waits,
    lease: (id: string): Lease => {
      const lease = leases.get(id);
      if (lease === undefined) throw new Error(`${id} has no lease`);
      return lease;
    },
    isGranted: (id: string) => leases.has(id),
    told: (id: string) => {
      const ticket = tickets.get(id);
      const held = ticket?.held() ?? [];
      return { causes: held.map(({ cause }) => cause), ms: held, waitedMs: ticket?.waitedMs() ?? 0 };
    },
    async pass(ms: number) {
      const until = clock.monotonic() + ms;
      clock.outside(until, () => {});
      await clock.run(until);
    },
    timers: () => clock.timers,
  };
}
const done = (lease: Lease): void => lease.settle({ kind: 'succeeded', spent: null }, null);

describe('a call says that it was held', () => {
  test('by nothing when it was sent at once, and then nobody looks at its lane', async () => {
    const { enter, pass, lease, told, looks, limiter } = world();
    await enter('a', { perMinute: 10 });
    await pass(500);
    done(lease('a'));
    expect([told('a').causes, looks()]).toEqual([[], 0]);
    await limiter.close();
  });

  test('serialized behind a call in flight, also where other calls of the lane go first', async () => {
    const { enter, pass, lease, told, limiter } = world();
    for (const id of ['a', 'b', 'c']) await enter(id, { maxInFlight: 1 });
    await pass(700);
    done(lease('a'));
    await pass(300);
    done(lease('b'));
    await pass(10);
    expect(told('b').ms).toEqual([{ cause: 'serialized', ms: 700 }]);
    expect(told('c').ms).toEqual([{ cause: 'serialized', ms: 1_000 }]);
    await limiter.close();
  });

  test('serialized behind calls in flight of other workspaces, where all together have a cap', async () => {
    const { enter, pass, lease, told, limiter } = world();
    const setting = { meters: [], learn: true, probe: 0, maxInFlightTotal: 1 };
    for (const id of ['a', 'b']) await enter(id, { setting, lane: id, workspace: id });
    await pass(400);
    done(lease('a'));
    await pass(10);
    expect(told('b').ms).toEqual([{ cause: 'serialized', ms: 400 }]);
    await limiter.close();
  });

  test('by the ceiling that has no slot, and by nothing that its lane waited for before it came', async () => {
    const { enter, pass, isGranted, told, limiter } = world();
    await enter('a', { perMinute: 1 });
    await enter('b', { perMinute: 1 });
    await pass(90_000);
    expect(isGranted('b')).toBe(true);
    const { causes, ms, waitedMs } = told('b');
    expect(causes).toEqual(['ceiling_minute']);
    expect(waitedMs).toBeGreaterThan(60_000);
    expect(ms).toEqual([{ cause: 'ceiling_minute', ms: waitedMs }]);
    await limiter.close();
  });

  test('by a closed bucket after a throttled attempt, with the calls behind it, and by the calls before it from then on', async () => {
    const { enter, pass, lease, again, told, isGranted, limiter } = world();
    for (const id of ['a', 'b']) await enter(id, { maxInFlight: 1 });
    await pass(400);
    lease('a').settle({ kind: 'throttled', closeMs: 5_000, requeue: true, sleepMs: 0 }, null);
    again('a');
    await pass(5_100);
    done(lease('a'));
    await pass(100);
    expect(isGranted('b')).toBe(true);
    expect(told('a').ms).toEqual([{ cause: 'closed', ms: 5_000 }]);
    expect(told('b')).toMatchObject({ causes: ['closed', 'serialized'], waitedMs: 5_500 });
    // What no event shows is noted at the next look.
    expect(told('b').ms.reduce((sum, { ms }) => sum + ms, 0)).toBe(5_500);
    expect(told('b').ms[0]?.ms).toBeLessThanOrEqual(5_250);
    await limiter.close();
  });

  test('by the quota of the upstream, whichever lane has its turn', async () => {
    const { enter, pass, told, isGranted, limiter } = world();
    for (const id of ['a', 'b', 'c']) await enter(id, { limit: 1, windowMs: 1_000, lane: id, workspace: id });
    await pass(10_000);
    for (const id of ['b', 'c']) {
      expect(isGranted(id)).toBe(true);
      expect(told(id)).toMatchObject({ causes: ['requests'] });
    }
    await limiter.close();
  });

  test('at the cost of one look for each lane, however many calls wait in it', async () => {
    const { enter, pass, looks, timers, limiter } = world();
    await enter('a', { maxInFlight: 1 });
    await pass(1);
    for (let at = 0; at < 50; at += 1) await enter(`b${at}`, { maxInFlight: 1 });
    const before = looks();
    expect(before).toBe(1);
    expect(timers()).toBeGreaterThan(50);
    await pass(1_000);
    expect(looks() - before).toBeLessThan(10);
    await limiter.close();
  });
});
