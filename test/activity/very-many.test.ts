/**
 * However many workspaces call, in whatever order and on however many replicas: `/activity` of the admin port shows the
 * busiest by their labels, at most 100, and every call in one of its rows.
 */
import { readFileSync } from 'node:fs';
import { afterEach, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { z } from 'zod';
import type { AllActivity } from '../../src/activity/activity.ts';
import type { Clock } from '../../src/clock.ts';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { drivenObservation, drivenSettings, labelOf } from '../page/driven-page.ts';
import { manualClock } from '../support/manual-clock.ts';
import { sharedStore } from './shared-store.ts';

const upstreamNames = ['lm', 'shop'] as const;
const settingsOf = (ids: readonly string[]) => drivenSettings(upstreamNames, ids);

/** Time moves when the test says so; a timer without delay runs at once. */
function observedClock(): Clock & { advance(ms: number): void } {
  const clock = manualClock();
  return {
    ...clock,
    after(delayMs, run) {
      if (delayMs > 0) return clock.after(delayMs, run);
      queueMicrotask(run);
      return () => {};
    },
  };
}

/** A replica that only observes: real telemetry, recorder, labels and `/activity`. */
function observingReplica(...given: Parameters<typeof drivenObservation>) {
  const { play, observation, telemetry, close } = drivenObservation(...given);
  return {
    call: (workspace: string, upstream = 'lm') => play({ workspace, upstream }),
    activity: () => observation.activity.ofAll(3_600_000),
    metrics: async () => (await telemetry.metrics()).body,
    close,
  };
}

/** Lets everything happen that waits for nothing but its turn. */
const settled = (): Promise<void> => new Promise((resume) => setImmediate(resume));

/** Calls in every row, by upstream and label. */
const callsIn = ({ workspaces }: AllActivity) =>
  new Map(
    workspaces.flatMap(({ workspace, upstreams }) =>
      upstreams.map(({ upstream, recent }) => [`${upstream} ${workspace}`, recent.calls] as const),
    ),
  );
const sum = (numbers: Iterable<number>): number => [...numbers].reduce((total, n) => total + n, 0);

const schema = z.fromJSONSchema(
  JSON.parse(readFileSync(new URL('../../schema/activity.schema.json', import.meta.url), 'utf8')) as never,
);
/** Longer than the interval at which replicas publish their activity. */
const shareMs = 6_000;
const open: { close(): Promise<void> }[] = [];

afterEach(async () => {
  for (const replica of open.splice(0)) await replica.close();
});

const labelled = (all: AllActivity): string[] =>
  all.workspaces.map(({ workspace }) => workspace).filter((workspace) => workspace !== 'other');

test('activity shows a workspace that only another replica has seen by its label and counts, and with its limits once it calls here', async () => {
  const clock = observedClock();
  const share = sharedStore();
  const settings = settingsOf(['acme', 'here']);
  const [one, two] = ['one', 'two'].map((name) => observingReplica(settings, clock, share(name)));
  if (one === undefined || two === undefined) throw new Error('no replicas');
  open.push(one, two);
  one.call('acme');
  two.call('here', 'shop');
  clock.advance(shareMs);
  await settled();
  const row = (await two.activity()).workspaces.find(({ workspace }) => workspace === labelOf('acme'));
  expect(row?.upstreams).toEqual([{ upstream: 'lm', recent: expect.objectContaining({ calls: 1 }) }]);
  expect((await one.activity()).workspaces).toHaveLength(2);
  two.call('acme');
  const rows = (await two.activity()).workspaces.filter(({ workspace }) => workspace === labelOf('acme'));
  expect(rows.map(({ upstreams }) => upstreams)).toMatchObject([[{ recent: { calls: 2 }, ceilings: {} }]]);
});

test('activity shows the busiest by label and all calls in its rows, and metrics the same workspaces, at most 100 together', async () => {
  const ids = Array.from({ length: 2_000 }, (_, n) => `ws-${n}`);
  const busy = Array.from({ length: 30 }, (_, n) => `busy-${n}`);
  const random = new SeededRandom(1);
  const calls = [...ids, ...busy.flatMap((id) => Array.from({ length: 40 }, () => id))]
    .map((id) => ({ id, at: random.next() }))
    .toSorted((a, b) => a.at - b.at);
  const replica = observingReplica(settingsOf([...ids, ...busy]), observedClock());
  open.push(replica);
  for (const { id } of calls) replica.call(id);
  const all = await replica.activity();
  expect(() => schema.parse(all)).not.toThrow();
  expect(sum(callsIn(all).values())).toBe(calls.length);
  expect(labelled(all)).toHaveLength(100);
  expect(labelled(all).slice(0, busy.length).toSorted()).toEqual(busy.map(labelOf).toSorted());
  for (const id of busy) replica.call(id);
  const inMetrics = new Set((await replica.metrics()).match(/w_[0-9a-f]{16}/g));
  const inActivity = labelled(await replica.activity());
  expect(new Set([...inMetrics, ...inActivity]).size).toBeLessThanOrEqual(100);
  for (const id of busy) expect(inMetrics).toContain(labelOf(id));
});

/** What may happen, and to whom: calls of up to 2,500 workspaces, of which the lower numbers come more often. */
const step = fc.oneof(
  {
    weight: 20,
    arbitrary: fc.record({
      at: fc.integer({ min: 0, max: 2 }),
      from: fc.integer({ min: 0, max: 49 }).map((n) => n * n),
      times: fc.integer({ min: 1, max: 40 }),
      upstream: fc.constantFrom(...upstreamNames),
    }),
  },
  { weight: 2, arbitrary: fc.constant('share' as const) },
  { weight: 1, arbitrary: fc.constant('look' as const) },
);

test('activity has all calls in its rows and a row for each clearly busiest workspace, in any order of calls', async () => {
  const settings = settingsOf(Array.from({ length: 2_500 }, (_, n) => `ws-${n}`));
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 120 }), async (steps) => {
      const clock = observedClock();
      const share = sharedStore();
      const replicas = ['one', 'two', 'three'].map((name) => observingReplica(settings, clock, share(name)));
      const made = new Map<string, number>();
      const byUpstream = new Map<string, number>();
      const call = (n: number, workspace: string, upstream: string): void => {
        replicas[n]?.call(workspace, upstream);
        made.set(workspace, (made.get(workspace) ?? 0) + 1);
        byUpstream.set(upstream, (byUpstream.get(upstream) ?? 0) + 1);
      };
      for (const each of steps) {
        if (each === 'look') await replicas[1]?.activity();
        else if (each === 'share') {
          clock.advance(shareMs);
          await settled();
        } else {
          // One is as busy as all others of this step together, who are as many workspaces as there are calls.
          for (let n = 0; n < each.times; n++) {
            call(each.at, `ws-${(each.from + n * 53) % 2_500}`, each.upstream);
            call((each.at + n) % 3, 'ws-7', 'lm');
          }
        }
      }
      clock.advance(shareMs);
      await settled();
      for (const replica of replicas) {
        const all = await replica.activity();
        const rows = callsIn(all);
        for (const [upstream, calls] of byUpstream) {
          const own = [...rows].filter(([name]) => name.startsWith(`${upstream} `));
          expect(sum(own.map(([, n]) => n))).toBe(calls);
        }
        expect(labelled(all).length).toBeLessThanOrEqual(100);
        const second = Math.max(...[...made].filter(([id]) => id !== 'ws-7').map(([, n]) => n), 0);
        if ((made.get('ws-7') ?? 0) >= 3 * second + 3) expect(labelled(all)).toContain(labelOf('ws-7'));
      }
      for (const replica of replicas) await replica.close();
    }),
    { numRuns: 20 },
  );
});
