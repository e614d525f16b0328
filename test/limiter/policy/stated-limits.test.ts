/** What becomes of a bucket's meters when configuration is loaded again with other limits. */
import { describe, expect, test } from '@jest/globals';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import { leaseToken, type LeaseToken } from '../../../src/ids.ts';
import { admit } from '../../../src/limiter/policy/admit.policy.ts';
import { createBucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import { origins, report, TimedMeter } from './metering.ts';
import { admission } from '../../support/admission.ts';
import { replica } from './scheduling.ts';

const dayMs = 86_400_000;

describe.each(origins)('a bucket on a clock that begins at %d', (from) => {
  /** Whether calls without any wait are granted, one after the other, each with the meters stated at its time. */
  const isGranted = (
    settings: readonly (readonly MeterSetting[])[],
    costs = { requests: 1, requests_day: 1 },
  ) => {
    const bucket = createBucket(0, from);
    return settings.map((meters, at) => {
      const call = admission(`t${at}`, { costs, maxWaitMs: 0 });
      const setting = { ...call.setting, meters };
      return admit(bucket, { admission: { ...call, setting }, replica }, from + at).kind === 'granted';
    });
  };
  const day = (limit: number): MeterSetting => ({ meter: 'requests_day', limit, windowMs: dayMs });

  test('goes on at once when the quota of its day is no longer stated', () => {
    expect(isGranted([[day(2)], [day(2)], [day(2)], [], []])).toEqual([true, true, false, true, true]);
  });

  test('goes on at once when the quota of its day is raised, and still counts what was used', () => {
    const settings = [[day(2)], [day(2)], [day(2)], [day(3)], [day(3)]];
    expect(isGranted(settings)).toEqual([true, true, false, true, false]);
  });

  test('stops at once when a limit is added or lowered', () => {
    const lowered = [[day(5)], [day(5)], [day(2)], [day(5)]];
    expect(isGranted(lowered)).toEqual([true, true, false, true]);
    const added = [[], [], [day(1)]];
    expect(isGranted(added)).toEqual([true, true, false]);
  });

  test('has no room for others when a call that reserved more than a lowered limit has spent more, too', () => {
    const bucket = createBucket(0, from);
    const ask = (ticket: string, tokens: number, limit: number, at: number) => {
      const call = admission(ticket, { costs: { tokens }, maxWaitMs: 0 });
      const setting = { ...call.setting, meters: [{ meter: 'tokens' as const, limit, windowMs: 10_000 }] };
      return admit(bucket, { admission: { ...call, setting }, replica }, from + at);
    };
    const [granted] = ask('before', 500, 1_000, 0).effects.grants;
    expect(ask('lowers', 250, 250, 1).kind).toBe('refused');
    const lease = granted?.lease ?? leaseToken('');
    const settlement = { kind: 'succeeded', spent: { tokens: 600 } } as const;
    settle(bucket, { lease, settlement, lesson: null }, from + 2);
    expect(ask('after', 250, 250, 3).kind).toBe('refused');
  });
});

describe.each(origins)('a described window, on a clock that begins at %d', (from) => {
  type Counts = NonNullable<MeterSetting['counts']>;
  /** The first call comes so long after the origin: not where a minute of the clock begins. */
  const startMs = 20_000;
  /** Three calls leave at once under `before`; returns how long the fourth waits under `after`, so much later. */
  const waitMs = (
    before: Omit<MeterSetting, 'meter'>,
    after: Omit<MeterSetting, 'meter'>,
    laterMs: number,
  ) => {
    const bucket = createBucket(0, from);
    const startAt = from + startMs;
    const ask = (at: number, stated: Omit<MeterSetting, 'meter'>) => {
      const call = admission(`t${at}`, { maxWaitMs: 0 });
      const setting = { ...call.setting, meters: [{ meter: 'requests' as const, ...stated }] };
      return admit(bucket, { admission: { ...call, setting }, replica }, startAt + at);
    };
    for (const at of [0, 1, 2]) expect(ask(at, before).kind).toBe('granted');
    const asked = ask(laterMs, after);
    return asked.kind === 'refused' ? asked.retryInMs : 0;
  };
  const minute = (counts: Counts) => ({ limit: 3, windowMs: 60_000, counts });
  const second = (counts: Counts) => ({ limit: 3, windowMs: 1_000, counts });

  test.each(['rolling', 'fixed'] as const)('that is %s and gets shorter lets calls go', (counts) => {
    expect(waitMs(minute(counts), second(counts), 100)).toBeLessThan(1_100);
    expect(waitMs(minute(counts), second(counts), 2_000)).toBeLessThan(counts === 'rolling' ? 1 : 1_100);
  });

  test('that is rolling and gets longer holds calls, for what was sent under the shorter one', () => {
    const heldMs = waitMs(second('rolling'), minute('rolling'), 900);
    expect(heldMs).toBeGreaterThan(59_100);
    expect(heldMs).toBeLessThan(60_200);
  });

  test('that is fixed from now on ends with the clock, not a window after its calls', () => {
    const restMs = 60_000 - ((from + startMs) % 60_000);
    expect(waitMs(minute('rolling'), minute('fixed'), 5_000)).toBeLessThan(restMs - 5_000 + 1_100);
  });

  test('that drained until now ends with the clock when it is fixed', () => {
    const restMs = 60_000 - ((from + startMs) % 60_000);
    expect(waitMs({ limit: 3, windowMs: 60_000 }, minute('fixed'), 5_000)).toBeLessThan(
      restMs - 5_000 + 1_100,
    );
  });

  test('that drained until now has drained when it becomes rolling', () => {
    expect(
      waitMs({ limit: 3, windowMs: 6_000 }, { limit: 3, windowMs: 6_000, counts: 'rolling' }, 6_200),
    ).toBe(0);
  });

  test('that is of another kind and longer at once counts calls from when they left', () => {
    const heldMs = waitMs(second('fixed'), minute('rolling'), 50_000);
    expect(heldMs).toBeGreaterThan(10_000);
    expect(heldMs).toBeLessThan(12_200);
  });

  test('that is added counts the calls that wait already', () => {
    const bucket = createBucket(0, from);
    const hour: MeterSetting = { meter: 'requests_hour', limit: 1, windowMs: 60_000, counts: 'rolling' };
    const ask = (at: number, meters: readonly MeterSetting[], maxWaitMs: number) => {
      const call = admission(`t${at}`, { maxWaitMs });
      const setting = { ...call.setting, meters };
      return admit(bucket, { admission: { ...call, setting }, replica }, from + startMs + at);
    };
    const before: MeterSetting = { meter: 'requests', limit: 1, windowMs: 1_000, counts: 'rolling' };
    expect([0, 1, 2, 3].map((at) => ask(at, [before], 1e6).kind)).toEqual([
      'granted',
      'queued',
      'queued',
      'queued',
    ]);
    const asked = ask(4, [before, hour], 0);
    expect(asked.kind === 'refused' ? asked.retryInMs : 0).toBeGreaterThan(3 * 60_000);
  });

  test('that is rolling from now on counts what the window of the clock had in it', () => {
    const heldMs = waitMs(minute('fixed'), minute('rolling'), 5_000);
    expect(heldMs).toBeGreaterThan(55_000);
  });
});

describe.each(origins)('described windows that change their number, on a clock that begins at %d', (from) => {
  const startAt = from + 20_000;
  const rolling = (meter: MeterSetting['meter'], limit: number, windowMs: number): MeterSetting => ({
    meter,
    limit,
    windowMs,
    counts: 'rolling',
  });
  const second = rolling('requests', 3, 1_000);
  const secondAndMinute = [rolling('requests_burst', 3, 1_000), rolling('requests', 100, 60_000)];
  const minute = rolling('requests', 100, 60_000);
  const minuteAndHour = [minute, rolling('requests_hour', 5, 3_600_000)];

  /** A bucket that is described like this from time to time. */
  class Reloaded {
    readonly bucket = createBucket(0, from);
    readonly #leases: LeaseToken[] = [];

    /** A call comes; returns how long it would wait, 0 = it left. */
    ask(atMs: number, meters: readonly MeterSetting[]): number {
      const call = admission(`t${atMs}`, { maxWaitMs: 0 });
      const setting = { ...call.setting, meters };
      const asked = admit(this.bucket, { admission: { ...call, setting }, replica }, startAt + atMs);
      this.#leases.push(...asked.effects.grants.map(({ lease }) => lease));
      return asked.kind === 'refused' ? asked.retryInMs : 0;
    }

    /** So many calls leave at once. */
    send(atMs: number, calls: number, meters: readonly MeterSetting[]): this {
      for (let sent = 0; sent < calls; sent += 1) expect(this.ask(atMs + sent / 64, meters)).toBe(0);
      return this;
    }

    /** The latest call is not sent after all, or its response comes. */
    end(atMs: number, how: 'dropped' | 'answered', sentMs = atMs): this {
      const lease = this.#leases.pop() ?? leaseToken('none');
      const settlement =
        how === 'dropped' ? ({ kind: 'dropped' } as const) : ({ kind: 'succeeded', spent: null } as const);
      const feedback = { meters: [], throttle: null };
      const lesson =
        how === 'dropped' ? null : { feedback, sentAt: startAt + sentMs, headAt: startAt + atMs };
      settle(this.bucket, { lease, settlement, lesson }, startAt + atMs);
      return this;
    }
  }

  test('that of a second counts on when one of a minute is added', () => {
    const waitMs = new Reloaded().send(0, 3, [second]).ask(100, secondAndMinute);
    expect(waitMs).toBeGreaterThan(890);
    expect(waitMs).toBeLessThan(950);
  });

  test('that of a second counts on when the one of a minute is taken away, and comes back', () => {
    const reloaded = new Reloaded().send(0, 3, secondAndMinute);
    expect(reloaded.ask(100, [second])).toBeGreaterThan(890);
    expect(reloaded.ask(150, [second])).toBeLessThan(900);
    expect(reloaded.ask(200, secondAndMinute)).toBeGreaterThan(790);
  });

  test('that of a second begins with what that of a minute has counted within a second', () => {
    const waitMs = new Reloaded().send(0, 3, [minute]).ask(100, secondAndMinute);
    expect(waitMs).toBeGreaterThan(890);
    expect(waitMs).toBeLessThan(1_000);
    expect(new Reloaded().send(0, 3, [minute]).ask(3_000, secondAndMinute)).toBe(0);
  });

  test('that of an hour counts on when it is the only one, and when it is not any more', () => {
    const reloaded = new Reloaded().send(0, 5, minuteAndHour);
    const alone = rolling('requests', 5, 3_600_000);
    expect(reloaded.ask(1_800_000, [alone])).toBeGreaterThan(1_790_000);
    expect(reloaded.ask(1_900_000, minuteAndHour)).toBeGreaterThan(1_690_000);
  });

  test('that of a minute counts on between a shorter and a longer one', () => {
    const three = [
      rolling('requests_burst', 50, 1_000),
      rolling('requests', 60, 2_000),
      rolling('requests_hour', 5, 60_000),
    ];
    const reloaded = new Reloaded().send(0, 5, [rolling('requests', 5, 60_000)]);
    expect(reloaded.ask(10_000, three)).toBeGreaterThan(49_900);
    expect(reloaded.ask(20_000, [rolling('requests', 5, 60_000)])).toBeGreaterThan(39_900);
  });

  test('that of a second gets back what a call took from it before', () => {
    const reloaded = new Reloaded().send(0, 3, [second]);
    expect(reloaded.ask(100, secondAndMinute)).toBeGreaterThan(0);
    expect(reloaded.end(110, 'dropped').ask(120, secondAndMinute)).toBe(0);
    expect(reloaded.ask(130, secondAndMinute)).toBeGreaterThan(0);
  });

  test('that of a second counts a call that left late until its second has passed', () => {
    const reloaded = new Reloaded().send(0, 3, [second]);
    reloaded.ask(100, secondAndMinute);
    reloaded.end(400, 'answered', 390);
    expect(reloaded.ask(1_100, secondAndMinute)).toBeGreaterThan(200);
  });

  test('that of the clock has counted what it counts when it drains from now on', () => {
    const ofClock = { meter: 'requests', limit: 3, windowMs: 60_000, counts: 'fixed' } as const;
    const draining = { meter: 'requests', limit: 3, windowMs: 60_000 } as const;
    const reloaded = new Reloaded().send(0, 3, [ofClock]).end(2_000, 'dropped').send(2_000, 1, [ofClock]);
    const waitMs = reloaded.ask(2_300, [draining]);
    expect(waitMs).toBeGreaterThan(19_000);
    expect(waitMs).toBeLessThan(22_000);
  });

  test('that was lowered drains from its limit, not from what it had counted before', () => {
    const wide = { meter: 'requests', limit: 6, windowMs: 60_000, counts: 'rolling' } as const;
    const draining = { meter: 'requests', limit: 2, windowMs: 60_000 } as const;
    const reloaded = new Reloaded().send(0, 6, [wide]);
    expect(reloaded.ask(1_000, [{ ...wide, limit: 2 }])).toBeGreaterThan(50_000);
    expect(reloaded.ask(2_000, [draining])).toBeLessThan(31_000);
  });

  test('that drains goes on with its level', () => {
    const leaky = (meter: MeterSetting['meter'], limit: number, windowMs: number) => ({
      meter,
      limit,
      windowMs,
    });
    const both = [leaky('requests_burst', 3, 3_000), leaky('requests', 100, 60_000)];
    const waitMs = new Reloaded().send(0, 3, [leaky('requests', 3, 3_000)]).ask(100, both);
    expect(waitMs).toBeGreaterThan(850);
    expect(waitMs).toBeLessThan(1_100);
  });
});

describe.each(origins)(
  'a meter of which no response states anything, on a clock that begins at %d',
  (from) => {
    const wide = { limit: 40, windowMs: 20_000 };
    const narrow = { limit: 10, windowMs: 20_000 };
    const used = (): TimedMeter => {
      const meter = TimedMeter.stated(wide, from);
      for (let sent = 0; sent < wide.limit; sent += 1) meter.take(1, 0);
      return meter;
    };

    test('forgets nothing while replicas disagree on what is stated', () => {
      const meter = used();
      for (const atMs of [20, 40, 60]) {
        meter.state(narrow, atMs);
        meter.state(wide, atMs + 10);
      }
      expect(meter.roomIn(1, 100)).toBeGreaterThan(0);
    });

    test('has no more room than before when the first response raises a limit that was lowered', () => {
      const meter = TimedMeter.stated(wide, from);
      const marks = Array.from({ length: wide.limit }, () => meter.take(1, 0));
      meter.state(narrow, 20);
      const last = marks.at(-1);
      if (last === undefined) throw new Error('nothing was sent');
      // In round figures, as some upstreams state what remains.
      const rounded = { ...report(wide.limit, 30, wide.windowMs), level: { lowest: 30, highest: 40 } };
      meter.respond(rounded, last, { sentMs: 1, headMs: 50 });
      expect(meter.roomIn(2, 60)).toBeGreaterThan(0);
      expect(meter.roomIn(2, 1_600)).toBe(0);
    });

    test('goes on at the pace of a lowered limit at once, and has the room of a raised one', () => {
      const meter = used();
      meter.state(narrow, 1_000);
      expect(meter.roomIn(1, 4_000)).toBe(0);
      meter.state(wide, 11_000);
      expect(meter.roomIn(19, 11_000)).toBe(0);
      expect(meter.roomIn(23, 11_000)).toBeGreaterThan(0);
    });
  },
);

describe.each(origins)(
  'a meter whose stated limit is below what its responses report, on a clock that begins at %d',
  (from) => {
    const reported = { limit: 40, windowMs: 20_000 };
    const pinned = { limit: 10, windowMs: 20_000 };
    /** One call was sent at the beginning, and its response stated so many of the 40 units as used. */
    const afterResponse = (used: number): TimedMeter => {
      const meter = TimedMeter.stated(pinned, from, false);
      meter.respond(report(reported.limit, used, reported.windowMs), meter.take(1, 0), {
        sentMs: 0,
        headMs: 10,
        learn: false,
      });
      return meter;
    };

    test('goes on at the stated pace while the upstream has room', () => {
      // Others have used 25 of the 30 units that are not stated.
      expect(afterResponse(26).roomIn(9, 2_000)).toBe(0);
    });

    test('waits for the upstream as long as the upstream is full', () => {
      const waitMs = afterResponse(40).roomIn(1, 1_000);
      expect(waitMs).toBeGreaterThan(0);
      expect(waitMs).toBeLessThan(3_000);
    });

    test('drains its own sends at the stated pace, also when the upstream forgets them faster', () => {
      const meter = TimedMeter.stated(pinned, from, false);
      const marks = Array.from({ length: 10 }, () => meter.take(1, 0));
      // Of ten units the upstream has forgotten eight after four seconds, and two of them count no more here.
      for (const mark of marks)
        meter.respond(report(reported.limit, 2, reported.windowMs), mark, {
          sentMs: 4_000,
          headMs: 4_010,
          learn: false,
        });
      expect(meter.roomIn(4, 4_020)).toBeGreaterThan(2_000);
    });

    test('has no more room than the upstream when replicas disagree for a while on what is stated', () => {
      const meter = TimedMeter.stated(reported, from, false);
      const marks = Array.from({ length: 39 }, () => meter.take(1, 0));
      for (const [used, mark] of marks.entries())
        meter.respond(report(reported.limit, used + 1, reported.windowMs), mark, {
          sentMs: 0,
          headMs: 10,
          learn: false,
        });
      for (const atMs of [20, 40, 60]) {
        meter.state(pinned, atMs, false);
        meter.state(reported, atMs + 10, false);
      }
      expect(meter.roomIn(3, 100)).toBeGreaterThan(0);
    });

    test('has the room of the upstream as soon as the stated limit is raised', () => {
      const meter = afterResponse(1);
      for (let sent = 1; sent < pinned.limit; sent += 1) meter.take(1, 20);
      expect(meter.roomIn(1, 30)).toBeGreaterThan(0);
      meter.state(reported, 40, false);
      expect(meter.roomIn(25, 50)).toBe(0);
    });
  },
);
