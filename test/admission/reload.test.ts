/** A reload while calls wait, on virtual time: a limit that is raised or removed lets them go, one that is lowered holds them. */
import { describe, expect, test } from '@jest/globals';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import type { CallSettings } from '../../src/admission/buckets.policy.ts';
import type { AdmissionRequest, Lease, Ticket } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { ceilingKey } from '../../src/ids.ts';
import { type Ceilings, CeilingStore } from '../../src/limiter/ceiling-store.ts';
import type { BucketSetting } from '../../src/limiter/limiter.ts';
import {
  callOf,
  embeddedQueue,
  settingsOf,
  type CallOptions,
  type Entering,
} from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { origins } from '../support/origins.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { withMethods } from '../support/with-methods.ts';

const dayMs = 86_400_000;

/** @param takesMs how long a reply of the ceiling takes after the slot was counted. */
function world(originMs = 0, takesMs = 0) {
  const clock = new FakeClock();
  const own = shiftedClock(clock, originMs);
  /** The outcome of each call, in the order of the decisions. */
  const story: string[] = [];
  const refusals = new Map<string, Refusal>();
  const leases = new Map<string, Lease>();
  const fast = new CeilingStore(own);
  const ceilings = withMethods<Ceilings>(fast, {
    async take(...asked) {
      const reply = await fast.take(...asked);
      if (takesMs > 0) await new Promise<void>((resolve) => void clock.after(takesMs, resolve));
      return reply;
    },
  });
  const { queue, limiter } = embeddedQueue({
    clock: own,
    ceilings,
    onFailure: (failure) => story.push(`bug ${String(failure)}`),
  });
  const follow = async (id: string, entering: Entering): Promise<void> => {
    try {
      const ticket = await queue.enter(...entering);
      leases.set(id, await ticket.whenGranted());
      story.push(id);
    } catch (failure) {
      if (failure instanceof Refusal) refusals.set(id, failure);
      story.push(`${id} ${failure instanceof Refusal ? failure.code : String(failure)}`);
    }
  };
  return {
    story,
    refusals,
    leases,
    limiter,
    ceilings,
    enter: (id: string, options: CallOptions = {}): void =>
      void follow(id, callOf(own, id, { maxWaitMs: 600_000, ...options })),
    /** Every call goes on under these settings. */
    reload: (changes: Partial<CallSettings>, where: (of: AdmissionRequest) => boolean = () => true): void =>
      queue.reload((of) => (where(of) ? settingsOf(of, changes) : null)),
    async pass(ms: number): Promise<void> {
      const until = clock.monotonic() + ms;
      clock.outside(until, () => {});
      await clock.run(until);
    },
  };
}

const names = (count: number): string[] => Array.from({ length: count }, (_, at) => `c${at}`);
const metered = (limit: number, windowMs: number): BucketSetting => ({
  meters: [{ meter: 'requests', limit, windowMs }],
  learn: true,
  probe: 0,
});

describe.each(origins)('on $name, a reload of a ceiling of the minute', ({ ms }) => {
  const ids = names(8);

  test('that raises it lets waiting calls go in order, and no more of them than it allows', async () => {
    const { enter, pass, reload, story } = world(ms);
    for (const id of ids) enter(id, { perMinute: 2 });
    await pass(5_000);
    expect(story).toEqual(['c0', 'c1']);
    reload({ perMinute: 5 });
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4']);
    enter('new', { perMinute: 5 });
    await pass(54_200);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6']);
    await pass(10_000);
    expect(story).toEqual([...ids, 'new']);
  });

  test('that removes it lets all waiting calls go', async () => {
    const { enter, pass, reload, story } = world(ms);
    for (const id of ids) enter(id, { perMinute: 2 });
    await pass(5_000);
    reload({ perMinute: null });
    await pass(1_000);
    expect(story).toEqual(ids);
  });

  test('that removes it while a call takes the last slot lets all waiting calls go', async () => {
    const { enter, pass, reload, story } = world(ms, 80);
    for (const id of ids) enter(id, { perMinute: 2 });
    await pass(40);
    reload({ perMinute: null });
    await pass(1_000);
    expect(story).toEqual(ids);
  });

  test('that adds it holds calls that waited for another reason', async () => {
    const { enter, pass, reload, story } = world(ms);
    for (const id of ids) enter(id, { setting: metered(1, 1_000) });
    await pass(10);
    expect(story).toEqual(['c0']);
    reload({ perMinute: 2 });
    await pass(50_000);
    expect(story).toEqual(['c0', 'c1', 'c2']);
  });

  test('that lowers it holds waiting calls, and refuses those that are too late now', async () => {
    const { enter, pass, reload, story, refusals } = world(ms);
    for (const id of ids) enter(id, { perMinute: 4, maxWaitMs: 100_000 });
    await pass(5_000);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3']);
    reload({ perMinute: 2 });
    await pass(1_000);
    // Two calls can go when the first four are a minute old; the other two could go a minute later, after their wait.
    expect(story.slice(4).toSorted()).toEqual(['c6 wait_expired', 'c7 wait_expired']);
    expect(refusals.get('c6')?.details).toMatchObject({ heldBy: 'ceiling_minute' });
    expect(refusals.get('c6')?.details.retryInMs).toBeGreaterThan(110_000);
    await pass(54_500);
    expect(story.slice(6)).toEqual(['c4', 'c5']);
  });

  test('that lowers it refuses calls at once that are too late now, although another reason holds them', async () => {
    const { enter, pass, reload, story, refusals } = world(ms);
    for (const id of names(4)) enter(id, { perMinute: 10, maxInFlight: 1, maxWaitMs: 100_000 });
    await pass(1_000);
    expect(story).toEqual(['c0']);
    reload({ perMinute: 1 });
    await pass(1);
    expect(story.slice(1).toSorted()).toEqual(['c2 wait_expired', 'c3 wait_expired']);
    expect(refusals.get('c2')?.details).toMatchObject({ heldBy: 'ceiling_minute' });
  });

  test('that raises and lowers it again and again lets no more go than the higher limit allows', async () => {
    const { enter, pass, reload, story } = world(ms);
    for (const id of names(30)) enter(id, { perMinute: 3, maxWaitMs: 3_600_000 });
    for (let at = 0; at < 20; at += 1) {
      await pass(100);
      reload({ perMinute: at % 2 === 0 ? 6 : 3 });
    }
    await pass(50_000);
    expect(story).toEqual(names(6));
  });
});

describe.each(origins)('on $name, a reload of a ceiling of the day', ({ ms }) => {
  const options = { perDay: 2, maxWaitMs: 2 * dayMs };
  const ids = names(7);

  test('that raises it lets as many calls go as were added, and keeps its count', async () => {
    const { enter, pass, reload, story } = world(ms);
    for (const id of ids) enter(id, options);
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1']);
    reload({ perDay: 5 });
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4']);
    await pass(60_000);
    expect(story).toHaveLength(5);
  });

  test('that removes it lets all waiting calls go', async () => {
    const { enter, pass, reload, story } = world(ms);
    for (const id of ids) enter(id, options);
    await pass(1_000);
    reload({ perDay: null });
    await pass(1_000);
    expect(story).toEqual(ids);
  });

  test('that lowers it below what was sent holds waiting calls and refuses new ones', async () => {
    const { enter, pass, reload, story, refusals } = world(ms);
    for (const id of ids) enter(id, { perDay: 5, maxWaitMs: 2 * dayMs });
    await pass(1_000);
    expect(story).toHaveLength(5);
    reload({ perDay: 3 });
    await pass(120_000);
    expect(story).toHaveLength(5);
    for (const id of ['x', 'y']) enter(id, { perDay: 3 });
    await pass(1);
    expect(story.slice(5)).toEqual(['x day_quota_exhausted', 'y day_quota_exhausted']);
    expect(refusals.get('x')?.details.heldBy).toBe('ceiling_day');
  });

  test('that raises it while a call is being refused lets that call go', async () => {
    const { enter, pass, reload, story } = world(ms, 80);
    for (const id of ['a', 'b']) enter(id, options);
    await pass(1_000);
    enter('c', options);
    await pass(40);
    reload({ perDay: 5 });
    await pass(1_000);
    expect(story).toEqual(['a', 'b', 'c']);
  });

  test('that raises it after a refusal lets new calls go although none waited', async () => {
    const { enter, pass, story } = world(ms);
    for (const id of ['a', 'b', 'c', 'd']) {
      enter(id, { perDay: 2 });
      await pass(10);
    }
    expect(story).toEqual(['a', 'b', 'c day_quota_exhausted', 'd day_quota_exhausted']);
    for (const id of ['e', 'f', 'g', 'h']) {
      enter(id, { perDay: 5 });
      await pass(10);
    }
    expect(story.slice(4)).toEqual(['e', 'f', 'g', 'h day_quota_exhausted']);
  });
});

describe('a reload of other limits', () => {
  test('lets waiting calls go when the limit of their bucket is raised, and holds them when it is lowered', async () => {
    const { enter, pass, reload, story } = world();
    for (const id of names(20)) enter(id, { setting: metered(2, 60_000) });
    await pass(1_000);
    expect(story).toHaveLength(2);
    reload({ setting: metered(10, 60_000) });
    await pass(1_000);
    expect(story).toHaveLength(10);
    reload({ setting: metered(2, 60_000) });
    await pass(20_000);
    expect(story).toHaveLength(10);
  });

  test('holds waiting calls when only the way changes in which their upstream counts its window', async () => {
    const { enter, pass, reload, story } = world();
    const drained = metered(4, 60_000);
    const counted = {
      ...drained,
      meters: drained.meters.map((meter) => ({ ...meter, counts: 'rolling' as const })),
    };
    for (const id of names(8)) enter(id, { setting: drained });
    await pass(1_000);
    expect(story).toHaveLength(4);
    reload({ setting: counted });
    // A unit drains each 15 s; a rolling window has no room before the first sends are a minute old.
    await pass(55_000);
    expect(story).toHaveLength(4);
    await pass(10_000);
    expect(story).toHaveLength(8);
  });

  const described = (limit: number, windowMs: number): BucketSetting => ({
    meters: [{ meter: 'requests', limit, windowMs, counts: 'rolling' }],
    learn: true,
    probe: 0,
  });

  test('lets waiting calls go when the window that their upstream is described with gets shorter', async () => {
    const { enter, pass, reload, story } = world();
    for (const id of names(8)) enter(id, { setting: described(4, 60_000) });
    await pass(2_000);
    expect(story).toHaveLength(4);
    reload({ setting: described(4, 1_000) });
    await pass(1_000);
    expect(story).toHaveLength(8);
  });

  test('holds no call for longer than a described limit that is lowered takes', async () => {
    const { enter, pass, reload, story } = world();
    for (const id of names(12)) enter(id, { setting: described(8, 60_000), maxWaitMs: 70_000 });
    await pass(10);
    reload({ setting: described(2, 60_000) });
    await pass(1);
    // Two can go when the first eight are a minute old, two more a minute later.
    expect(story.slice(8).toSorted()).toEqual(['c10 wait_too_long', 'c11 wait_too_long']);
    await pass(61_500);
    expect(story.slice(10)).toEqual(['c8', 'c9']);
  });

  test('refuses calls at once that a lowered limit of their bucket makes too late', async () => {
    const { enter, pass, reload, story, refusals } = world();
    for (const id of names(8)) enter(id, { setting: metered(4, 60_000), maxWaitMs: 100_000 });
    await pass(10);
    expect(story).toHaveLength(4);
    reload({ setting: metered(1, 60_000) });
    await pass(1);
    expect(story.slice(4).toSorted()).toEqual([5, 6, 7].map((at) => `c${at} wait_too_long`));
    expect(refusals.get('c7')?.details.heldBy).toBe('requests');
  });

  test('does not count calls that it refuses as ahead of those behind them', async () => {
    const { enter, pass, reload, story } = world();
    for (const id of names(7)) enter(id, { setting: metered(4, 60_000), maxWaitMs: 100_000 });
    enter('patient', { setting: metered(4, 60_000), maxWaitMs: 140_000 });
    await pass(10);
    reload({ setting: metered(1, 60_000) });
    await pass(1);
    expect(story.slice(4).toSorted()).toEqual(['c5 wait_too_long', 'c6 wait_too_long']);
    await pass(130_000);
    expect(story.slice(6)).toEqual(['c4', 'patient']);
  });

  test('lets calls go when the cap of calls in flight is raised, and holds them when it is lowered', async () => {
    const { enter, pass, reload, story, leases } = world();
    for (const id of names(6)) enter(id, { maxInFlight: 1 });
    await pass(1_000);
    expect(story).toEqual(['c0']);
    reload({ maxInFlight: 3 });
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1', 'c2']);
    reload({ maxInFlight: 2 });
    leases.get('c0')?.settle({ kind: 'succeeded', spent: null }, null);
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1', 'c2']);
    leases.get('c1')?.settle({ kind: 'succeeded', spent: null }, null);
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3']);
    reload({ maxInFlight: null });
    await pass(1_000);
    expect(story).toEqual(names(6));
  });

  test('lets calls of all lanes go when the cap of their bucket is raised, and holds them when it is lowered', async () => {
    const { enter, pass, reload, story, leases } = world();
    const capped = (maxInFlightTotal: number): BucketSetting => ({
      meters: [],
      learn: true,
      probe: 0,
      maxInFlightTotal,
    });
    names(6).forEach((id, at) => enter(id, { setting: capped(1), lane: `l${at % 3}` }));
    await pass(1_000);
    expect(story).toEqual(['c0']);
    reload({ setting: capped(3) });
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1', 'c2']);
    reload({ setting: capped(2) });
    leases.get('c0')?.settle({ kind: 'succeeded', spent: null }, null);
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1', 'c2']);
    leases.get('c1')?.settle({ kind: 'succeeded', spent: null }, null);
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3']);
    reload({ setting: { meters: [], learn: true, probe: 0 } });
    await pass(1_000);
    expect(story).toEqual(names(6));
  });

  test('changes the shares of later grants when it changes a weight', async () => {
    const { enter, pass, reload, story } = world();
    const share = (from: number, to: number, of: string): number =>
      story.slice(from, to).filter((id) => id.startsWith(of)).length;
    const options = { setting: metered(1, 100), maxWaitMs: 600_000 };
    for (let at = 0; at < 60; at += 1) {
      for (const lane of ['a', 'b']) enter(`${lane}${at}`, { ...options, lane, workspace: lane });
    }
    await pass(4_000);
    const before = story.length;
    expect(Math.abs(share(0, before, 'a') - share(0, before, 'b'))).toBeLessThanOrEqual(2);
    reload({ weight: 3 }, ({ workspaceId }) => workspaceId === 'a');
    await pass(4_000);
    const after = story.length;
    expect(share(before, after, 'a') / (after - before)).toBeGreaterThan(0.68);
    expect(share(before, after, 'a') / (after - before)).toBeLessThan(0.82);
  });

  test('does not end a back-off that a response named', async () => {
    const { enter, pass, reload, story, leases } = world();
    for (const id of names(4)) enter(id, { perMinute: 2, maxInFlight: 1 });
    await pass(10);
    leases.get('c0')?.settle({ kind: 'throttled', closeMs: 0, requeue: false, sleepMs: 20_000 }, null);
    reload({ perMinute: null });
    await pass(19_000);
    expect(story).toEqual(['c0']);
    await pass(1_000);
    expect(story).toEqual(['c0', 'c1']);
  });

  test('puts a call in flight that is sent again under the new limits', async () => {
    const { enter, pass, reload, leases, limiter } = world();
    enter('a', { perMinute: 1 });
    await pass(10);
    reload({ perMinute: 10 });
    leases.get('a')?.settle({ kind: 'throttled', closeMs: 1_000, requeue: true, sleepMs: 0 }, null);
    await pass(10);
    expect(limiter.snapshot()).toMatchObject([{ waiting: 1 }]);
  });

  test('asks nothing of the limiter when nothing changed', async () => {
    const { enter, pass, reload, limiter } = world();
    let asked = 0;
    const { reconfigure } = limiter;
    Object.assign(limiter, {
      reconfigure: (...args: Parameters<typeof reconfigure>) => {
        asked += 1;
        return reconfigure(...args);
      },
    });
    for (const id of names(5)) enter(id, { perMinute: 2 });
    await pass(10);
    reload({});
    await pass(10);
    expect(asked).toBe(0);
    reload({ perMinute: 3 });
    await pass(10);
    expect(asked).toBe(1);
  });
});

test('a replica that reloads last reports it although its last call has ended, for the calls that wait elsewhere', async () => {
  const clock = new FakeClock();
  const [before, after] = [metered(1, 60_000), metered(1, 1_000)];
  const failures: unknown[] = [];
  const onFailure = (failure: unknown): void => void failures.push(failure);
  const { queue: first, limiter, ceilings } = embeddedQueue({ clock, onFailure });
  const last = new AdmissionQueue({ clock, limiter, ceilings, onFailure });
  const enter = (queue: AdmissionQueue, id: string, options: CallOptions): Promise<Ticket> =>
    queue.enter(...callOf(clock, id, { setting: before, ...options }));
  const reload = (queue: AdmissionQueue): void => queue.reload((of) => settingsOf(of, { setting: after }));
  const sent = await enter(last, 'sent', {});
  (await sent.whenGranted()).settle({ kind: 'succeeded', spent: null }, null);
  sent.leave();
  let sentAt = NaN;
  const waiting = await enter(first, 'waits', { maxWaitMs: 75_000 });
  void waiting.whenGranted().then(() => (sentAt = clock.monotonic()));
  reload(first);
  // The other replica does not know of the reload yet: its call brings the former window.
  await expect(enter(last, 'refused', { maxWaitMs: 0 })).rejects.toMatchObject({ code: 'wait_too_long' });
  await clock.run(5_000);
  expect(sentAt).toBeNaN();
  reload(last);
  await clock.run(7_000);
  expect(sentAt).toBeLessThanOrEqual(6_000);
  expect(failures).toEqual([]);
  await limiter.close();
});

test('a reload of very many lanes without calls reports a few buckets at a time, and the newest settings last', async () => {
  const clock = new FakeClock();
  const reported = new Map<string, BucketSetting>();
  const perInstant = new Map<number, number>();
  const { queue, limiter } = embeddedQueue({
    clock,
    around: (embedded) =>
      withMethods(embedded, {
        reconfigure(change) {
          const now = clock.monotonic();
          perInstant.set(now, (perInstant.get(now) ?? 0) + 1);
          reported.set(change.bucket, change.setting);
          return embedded.reconfigure(change);
        },
      }),
  });
  const count = 1_000;
  for (let n = 0; n < count; n += 1) {
    const more = { bucket: `b${n}`, workspace: `w${n}`, setting: metered(1, 60_000) };
    const ticket = await queue.enter(...callOf(clock, `c${n}`, more));
    (await ticket.whenGranted()).settle({ kind: 'succeeded', spent: null }, null);
    ticket.leave();
  }
  const [first, second] = [metered(2, 60_000), metered(3, 60_000)];
  const startedAt = clock.monotonic();
  queue.reload((of) => settingsOf(of, { setting: first }));
  clock.outside(startedAt + 5, () => queue.reload((of) => settingsOf(of, { setting: second })));
  await clock.run(startedAt + 1_000);
  expect(reported.size).toBe(count);
  expect([...reported.values()].filter((setting) => setting !== second)).toEqual([]);
  expect(Math.max(...perInstant.values())).toBeLessThanOrEqual(64);
  await limiter.close();
});

describe('a default ceiling', () => {
  const stating = (meter: 'requests' | 'cost' | 'tokens') => ({
    feedback: {
      meters: [{ meter, limit: 1_000, windowMs: 60_000, level: { lowest: 1, highest: 1 } }],
      throttle: null,
    },
    sentAgoMs: 1,
    headAgoMs: 0,
  });
  const ids = names(4);

  test.each(['requests', 'cost'] as const)(
    'yields as soon as a response of the bucket states the limit of its %s, for waiting and for new calls',
    async (meter) => {
      const { enter, pass, leases, story, ceilings } = world();
      for (const id of ids) enter(id, { perMinute: 2, perDay: 100, isDefault: true });
      enter('elsewhere', { perMinute: 2, perDay: 100, isDefault: true, bucket: 'other' });
      await pass(1_000);
      expect(story).toEqual(['c0', 'c1']);
      leases.get('c0')?.settle({ kind: 'succeeded', spent: null }, stating(meter));
      await pass(0);
      enter('new', { perMinute: 2, perDay: 100, isDefault: true });
      await pass(100);
      expect(story).toEqual([...ids, 'new']);
      expect(leases.get('new')?.ceiling).toBeNull();
      expect(await ceilings.state({ key: ceilingKey('w'), perMinute: 2, perDay: null })).toMatchObject({
        remaining: 0,
      });
    },
  );

  test.each([
    { isFirst: true, count: 6 },
    { isFirst: false, count: 8 },
  ])(
    'that holds calls of one bucket refuses none of another for which it has yielded (first: $isFirst)',
    async (of) => {
      const { enter, pass, leases, story } = world();
      const options = { perMinute: 4, isDefault: true, maxInFlight: 1, maxWaitMs: 70_000 };
      const enterHeld = (): void => {
        for (const id of ['in flight', 'held']) enter(id, { ...options, bucket: 'other' });
      };
      if (of.isFirst) enterHeld();
      for (const id of names(of.count)) enter(id, options);
      await pass(1_000);
      leases.get('c0')?.settle({ kind: 'succeeded', spent: null }, stating('requests'));
      // They come while the response is learned from.
      for (const id of names(16).slice(of.count)) enter(id, options);
      if (!of.isFirst) enterHeld();
      await pass(11_000);
      enter('urgent', { ...options, bucket: 'other', urgency: 0 });
      await pass(1_000);
      expect(story.toSorted()).toEqual(['c0', 'c1', 'in flight']);
    },
  );

  test('holds while responses state something else, and one that was written holds whatever they state', async () => {
    for (const [meter, isDefault] of [
      ['tokens', true],
      ['requests', false],
    ] as const) {
      const { enter, pass, leases, story } = world();
      for (const id of ids) enter(id, { perMinute: 2, isDefault });
      await pass(1_000);
      leases.get('c0')?.settle({ kind: 'succeeded', spent: null }, stating(meter));
      await pass(50_000);
      expect(story).toEqual(['c0', 'c1']);
    }
  });

  test('does not come back with a reload', async () => {
    const { enter, pass, leases, story, reload } = world();
    enter('c0', { perMinute: 2, isDefault: true });
    await pass(100);
    leases.get('c0')?.settle({ kind: 'succeeded', spent: null }, stating('requests'));
    await pass(100);
    for (const id of ids.slice(1)) enter(id, { perMinute: 2, isDefault: true, maxInFlight: 1 });
    reload({ perMinute: 2, maxInFlight: null, yielded: settingsOf(callOf(new FakeClock(), 'x')[0], {}) });
    await pass(1_000);
    expect(story).toEqual(ids);
  });
});
