/** What a replica sent while it was without Redis is reported to Redis: all of it, also when Redis goes away again. */
import { beforeEach, describe, expect, test } from '@jest/globals';
import { bucketKey } from '../../../src/ids.ts';
import type { Costs } from '../../../src/call.ts';
import { createEmbeddedLimiter } from '../../../src/limiter/embedded/limiter.ts';
import type { Admission, Limiter } from '../../../src/limiter/limiter.ts';
import type { LastReading } from '../../../src/limiter/redis/bucket-session.ts';
import { UnreportedUsage } from '../../../src/limiter/failover/unreported-usage.ts';
import { admission } from '../../support/admission.ts';
import { FakeClock } from '../../support/fake-clock.ts';

const call = (ticket: string): Admission =>
  admission(ticket, {
    setting: { meters: [{ meter: 'requests', limit: 600, windowMs: 60_000 }], learn: false, probe: 0 },
    maxWaitMs: Infinity,
  });

describe('a replica with a third of a limit of 600, of which Redis knew 300 to be used,', () => {
  let clock: FakeClock;
  let reported: Costs[];
  /** The limit that each report named. */
  let limits: (number | undefined)[];
  let isUnavailable: boolean;
  let hasRoom: boolean;
  let usage: UnreportedUsage;

  beforeEach(() => {
    clock = new FakeClock();
    reported = [];
    limits = [];
    isUnavailable = false;
    hasRoom = true;
    const used: LastReading = {
      setting: null,
      takenSince: {},
      bucket: bucketKey('bucket'),
      closedMs: 0,
      waiting: 0,
      inFlight: 0,
      meters: [{ meter: 'requests', limit: 600, windowMs: 60_000, level: 300 }],
    };
    const remote = {
      lastReading: () => used,
      positions: { orderAt: () => 1 },
      async report({ costs, setting }: Admission) {
        limits.push(setting.meters[0]?.limit);
        if (isUnavailable) return 'unavailable' as const;
        if (hasRoom) reported.push(costs);
        return hasRoom ? ('counted' as const) : ('no_room' as const);
      },
    };
    usage = new UnreportedUsage({ remote, clock, replicas: () => 3 });
  });

  const alone = async (calls: number): Promise<Limiter> => {
    const store = createEmbeddedLimiter(clock, { onGrant() {}, onClosed() {} });
    for (let n = 0; n < calls; n += 1) {
      await usage.seed(store, call(`t${n}`), 0);
      const admission = call(`t${n}`);
      const reply = await store.admit({ ...admission, setting: usage.shared(admission) });
      expect(reply.kind).toBe('granted');
    }
    return store;
  };
  const units = (): number => reported.reduce((sum, { requests = 0 }) => sum + requests, 0);

  test('reports what it sent without Redis, and not what Redis knew', async () => {
    await Promise.all(usage.report(await alone(7)));
    expect(units()).toBeCloseTo(7, 6);
  });

  test('reports it under the limits of a reload that came meanwhile', async () => {
    const lowered = {
      ...call('t0').setting,
      meters: [{ meter: 'requests' as const, limit: 60, windowMs: 60_000 }],
    };
    const first = await alone(7);
    usage.reconfigure({ bucket: bucketKey('bucket'), setting: lowered });
    isUnavailable = true;
    await Promise.all(usage.report(first));
    expect(limits).toEqual([60]);
    // Also what is left of an absence when another reload comes.
    usage.reconfigure({ bucket: bucketKey('bucket'), setting: call('t0').setting });
    isUnavailable = false;
    await Promise.all(usage.report(first));
    expect(new Set(limits.slice(1))).toEqual(new Set([600]));
    expect(units()).toBeCloseTo(7, 6);
  });

  test('reports it later when Redis goes away again before the report', async () => {
    const first = await alone(7);
    isUnavailable = true;
    await Promise.all(usage.report(first));
    const second = await alone(5);
    // Usage that Redis does not know fills this replica's share, too.
    expect(second.snapshot()[0]?.meters[0]?.level).toBeCloseTo(100 + 7 + 5, 6);
    isUnavailable = false;
    await Promise.all(usage.report(second));
    expect(units()).toBeCloseTo(12, 6);
  });

  test('reports it later, once, when no call comes during the next absence', async () => {
    const first = await alone(7);
    isUnavailable = true;
    await Promise.all(usage.report(first));
    isUnavailable = false;
    await Promise.all(usage.report(createEmbeddedLimiter(clock, { onGrant() {}, onClosed() {} })));
    expect(units()).toBeCloseTo(7, 6);
    await Promise.all(usage.report(createEmbeddedLimiter(clock, { onGrant() {}, onClosed() {} })));
    expect(units()).toBeCloseTo(7, 6);
  });

  test('reports it as soon as there is room, and gives up when calls are sent again', async () => {
    hasRoom = false;
    const work = Promise.all(usage.report(await alone(8)));
    clock.outside(500, () => (hasRoom = true));
    await clock.run(2_000);
    await work;
    expect(units()).toBeCloseTo(8, 0);

    hasRoom = false;
    const never = Promise.all(usage.report(await alone(8)));
    await clock.run(4_000);
    await never;
    expect(units()).toBeCloseTo(8, 0);
  });
});
