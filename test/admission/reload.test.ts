/** A reload while calls wait, on virtual time: a limit that is raised or removed lets them go, one that is lowered holds them. */
import { describe, expect, test } from '@jest/globals';
import type { CallSettings } from '../../src/admission/buckets.policy.ts';
import { ceilingKey } from '../../src/ids.ts';
import type { BucketSetting } from '../../src/limiter/limiter.ts';
import type { CallOptions } from '../support/admission-queue.ts';
import { origins } from '../support/origins.ts';
import { metered, names, succeeded, world as worldOf } from './world.ts';

const dayMs = 86_400_000;
const world = (originMs = 0) => worldOf({ originMs, defaults: { maxWaitMs: 600_000 } });

/** How many calls have been sent, in their order, after so many milliseconds. */
type Sent = readonly [ms: number, calls: number];

const setting = (of: BucketSetting): { setting: BucketSetting } => ({ setting: of });
const capped = (cap: number | null): BucketSetting => {
  return { meters: [], learn: true, probe: 0, ...(cap !== null && { maxInFlightTotal: cap }) };
};

describe.each(origins)('on $name, a reload of a ceiling', ({ ms }) => {
  const two = { perMinute: 2 };
  const day = { perDay: 2, maxWaitMs: 2 * dayMs };
  test.each<[string, number, CallOptions, Sent, Partial<CallSettings>, Sent]>([
    ['of the minute that removes it lets all go', 8, two, [5_000, 2], { perMinute: null }, [1_000, 8]],
    ['of the minute that adds it holds them', 8, setting(metered(1, 1_000)), [10, 1], two, [50_000, 3]],
    ['of the day that raises it lets some go, not all', 7, day, [1_000, 2], { perDay: 5 }, [60_000, 5]],
    ['of the day that removes it lets all go', 7, day, [1_000, 2], { perDay: null }, [1_000, 7]],
  ])('%s', async (_, calls, options, before, changes, after) => {
    const { enter, pass, reload, story } = world(ms);
    for (const id of names(calls)) enter(id, options);
    await pass(before[0]);
    expect(story).toEqual(names(before[1]));
    reload(changes);
    await pass(after[0]);
    expect(story).toEqual(names(after[1]));
  });

  test('of the minute that lowers it refuses calls that are too late now, although another reason holds them', async () => {
    const { enter, pass, reload, story, refusals } = world(ms);
    for (const id of names(4)) enter(id, { perMinute: 10, maxInFlight: 1, maxWaitMs: 100_000 });
    await pass(1_000);
    expect(story).toEqual(['c0']);
    reload({ perMinute: 1 });
    await pass(1);
    expect(story.slice(1).toSorted()).toEqual(['c2 wait_expired', 'c3 wait_expired']);
    expect(refusals.get('c2')).toMatchObject({ heldBy: 'ceiling_minute' });
  });

  test('of the minute that lowers it tells the time behind calls that ask for a slot just then', async () => {
    const { enter, pass, reload, story, refusals } = world(ms);
    const patience = [600_000, 600_000, 600_000, 15_000];
    for (const [at, maxWaitMs] of patience.entries())
      enter(`c${at}`, { perMinute: 9, maxWaitMs, ...setting(metered(1, 4_000, 'rolling')) });
    await pass(1_000);
    reload({ perMinute: 1, ...setting(metered(3, 4_000, 'rolling')) });
    await pass(1);
    expect(story).toEqual(['c0', 'c3 wait_expired']);
    expect(refusals.get('c3')?.retryInMs).toBeGreaterThan(3 * 60_000 - 1_000);
  });
});

describe('a reload of other limits', () => {
  const rolling = (limit: number, windowMs: number) => setting(metered(limit, windowMs, 'rolling'));
  const plain = (limit: number, windowMs: number) => setting(metered(limit, windowMs));
  test.each<[string, CallOptions, BucketSetting, number, number]>([
    // Two can go when the first eight are a minute old, two more a minute later.
    ['described limit', { ...rolling(8, 60_000), maxWaitMs: 70_000 }, metered(2, 60_000, 'rolling'), 12, 10],
    ['limit', { ...plain(4, 60_000), maxWaitMs: 100_000 }, metered(1, 60_000), 8, 5],
  ])(
    'refuses at once those alone that a lowered %s makes late',
    async (_, options, lowered, calls, first) => {
      const { enter, pass, reload, story, refusals } = world();
      for (const id of names(calls)) enter(id, options);
      await pass(10);
      const sent = story.length;
      reload(setting(lowered));
      await pass(1);
      const late = names(calls).slice(first);
      expect(story.slice(sent).toSorted()).toEqual(late.map((id) => `${id} wait_too_long`).toSorted());
      expect(refusals.get(`c${calls - 1}`)?.heldBy).toBe('requests');
      await pass(99_000);
      expect(story.slice(sent + late.length)).toEqual(names(first).slice(sent));
    },
  );

  test.each<[string, (cap: number | null) => Partial<CallSettings>, number]>([
    ['calls in flight', (maxInFlight) => ({ maxInFlight }), 1],
    ['all calls of their bucket', (cap) => setting(capped(cap)), 3],
  ])(
    'lets calls go when the cap of %s is raised, and holds them under a lower one',
    async (_, cap, lanes) => {
      const { enter, pass, reload, story, settle } = world();
      const sent = async (count: number): Promise<void> => {
        await pass(1_000);
        expect(story).toEqual(names(count));
      };
      for (const [at, id] of names(6).entries()) enter(id, { ...cap(1), lane: `l${at % lanes}` });
      await sent(1);
      reload(cap(3));
      await sent(3);
      reload(cap(2));
      settle('c0', succeeded);
      await sent(3);
      settle('c1', succeeded);
      await sent(4);
      reload(cap(null));
      await sent(6);
    },
  );

  test('changes the shares of later grants when it changes a weight', async () => {
    const { enter, pass, reload, story } = world();
    const shareOfA = (from: number): number => {
      const some = story.slice(from);
      return some.filter((id) => id.startsWith('a')).length / some.length;
    };
    for (let at = 0; at < 60; at += 1)
      for (const lane of ['a', 'b']) enter(`${lane}${at}`, { ...plain(1, 100), lane, workspace: lane });
    await pass(4_000);
    expect(Math.abs(shareOfA(0) - 0.5)).toBeLessThan(0.03);
    const before = story.length;
    reload({ weight: 3 }, ({ workspaceId }) => workspaceId === 'a');
    await pass(4_000);
    expect(Math.abs(shareOfA(before) - 0.75)).toBeLessThan(0.07);
  });
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
  const isDefault = { perMinute: 2, isDefault: true };

  test.each(['requests', 'cost'] as const)(
    'yields as soon as a response of the bucket states the limit of its %s, for waiting and for new calls',
    async (meter) => {
      const { enter, pass, leases, settle, story, ceilings } = world();
      for (const id of names(4)) enter(id, { ...isDefault, perDay: 100 });
      enter('elsewhere', { ...isDefault, perDay: 100, bucket: 'other' });
      await pass(1_000);
      expect(story).toEqual(names(2));
      settle('c0', succeeded, stating(meter));
      await pass(0);
      enter('new', { ...isDefault, perDay: 100 });
      await pass(100);
      expect(story).toEqual([...names(4), 'new']);
      expect(leases.get('new')?.ceiling).toBeNull();
      const used = await ceilings.state({ key: ceilingKey('w'), perMinute: 2, perDay: null });
      expect(used).toMatchObject({ remaining: 0 });
    },
  );

  test.each([
    ['while responses state something else', 'tokens', true],
    ['where it was written, whatever they state', 'requests', false],
  ] as const)('holds %s', async (_, meter, yields) => {
    const { enter, pass, settle, story } = world();
    for (const id of names(4)) enter(id, { ...isDefault, isDefault: yields });
    await pass(1_000);
    settle('c0', succeeded, stating(meter));
    await pass(50_000);
    expect(story).toEqual(names(2));
  });
});
