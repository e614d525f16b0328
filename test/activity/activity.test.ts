import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { z } from 'zod';
import { Cell, without } from '../../src/activity/cell.policy.ts';
import {
  createActivityRecorder,
  embeddedActivity,
  nobody,
  type Recorder,
} from '../../src/activity/recorder.ts';
import { windowOf } from '../../src/activity/activity.ts';
import type { Clock } from '../../src/clock.ts';
import type { CallRecord } from '../../src/telemetry/call-record.ts';
import { callerKey } from '../../src/ids.ts';
import { drivenObservation, drivenSettings, labelOf, laneOf, type Played } from '../page/driven-page.ts';
import { callAt, driven, ended, lm, settableClock } from '../telemetry/drive.ts';

const minute = 60_000;

const recorderAt = (clock: Clock): Recorder =>
  createActivityRecorder({ clock, labelOf, shared: embeddedActivity });
/** What is known of the calls of a workspace. */
const hourOf = async (recorder: Recorder, workspaceId: string, minutes = 60) => {
  const hour = await recorder.hour();
  return hour.sum(recorder.nameOf(workspaceId, 'lm'), minutes);
};

describe('the recorder of activity', () => {
  test('keeps an hour, minute by minute, and no longer', async () => {
    const clock = settableClock();
    const recorder = recorderAt(clock);
    recorder.ended('acme', 'lm', ended({ waitedMs: 700 }));
    clock.advance(30 * minute);
    recorder.ended('acme', 'lm', ended({ waitedMs: 9_000 }));
    const { recent } = await hourOf(recorder, 'acme');
    expect(recent).toMatchObject({ calls: 2, held: 2, waitMs: { p50: 1_000, p95: 9_000, max: 9_000 } });
    const count = async (minutes: number) => (await hourOf(recorder, 'acme', minutes)).of('ok');
    expect(await count(29)).toBe(1);
    clock.advance(31 * minute);
    expect(await count(60)).toBe(1);
    clock.advance(minute * 60);
    expect(await count(60)).toBe(0);
  });

  test('counts the calls of very many workspaces together, and of those that call first also apart', async () => {
    const recorder = recorderAt(settableClock());
    for (let i = 0; i < 10_000; i++) recorder.ended(`ws-${i}`, 'lm', ended());
    recorder.ended('ws-0', 'lm', ended());
    expect((await hourOf(recorder, 'ws-0')).of('ok')).toBe(2);
    expect((await hourOf(recorder, 'ws-9999')).of('ok')).toBe(0);
    const hour = await recorder.hour();
    expect([hour.names().size, hour.sum('lm').of('ok')]).toEqual([1_000, 10_001]);
  });
});

describe('the activity API', () => {
  const schema = z.fromJSONSchema(
    JSON.parse(readFileSync(new URL('../../schema/activity.schema.json', import.meta.url), 'utf8')) as never,
  );
  const ids = ['acme', 'other-acme', ...Array.from({ length: 80 }, (_, n) => `ws-${n}`)];

  /** Under a ceiling of 500 and a bucket of 500 calls a minute that all share. */
  function observed() {
    const clock = settableClock();
    const settings = { ...drivenSettings(['lm'], ids), upstreams: new Map([[lm.name, lm]]) };
    const { observation, state, play } = drivenObservation(settings, clock);
    state.ceilings = {
      perMinute: { limit: 500, remaining: 412, resetMs: 1_204.000001 },
      perDay: null,
      nextSlotMs: 119.04,
      maxInFlightTotal: 3,
      reserved: 4,
      callers: [{ caller: callerKey('c_0123456789abcdef'), waiting: 2, inFlight: 0 }],
      refusing: { status: 402, since: 0, retryInMs: 41_999.2, said: 'payment_required' },
    };
    state.lanes.set(
      'lm',
      ids.map((id) => laneOf(id, 'lm')),
    );
    const { activity } = observation;
    /** What a workspace is told of its only upstream. */
    const own = async (workspace: string) => (await activity.ofWorkspace(workspace, minute)).upstreams[0];
    const call = (given: Partial<Played> = {}): void => play({ workspace: 'acme', upstream: 'lm', ...given });
    return { clock, state, activity, own, call };
  }

  test('follows the published JSON Schema, for one workspace and for all', async () => {
    const { activity, call } = observed();
    for (const workspace of ['acme', 'other-acme']) {
      call({ workspace, end: 'throttled' });
      call({ workspace, end: 'shed' });
    }
    const own = await activity.ofWorkspace('acme', 90_000);
    const all = await activity.ofAll(3_600_000);
    expect(() => schema.parse(own)).not.toThrow();
    expect(() => schema.parse(all)).not.toThrow();
    expect(() => schema.parse({ ...own, workspace: 'acme' })).toThrow();
    expect(own).toMatchObject({ workspace: labelOf('acme'), windowSeconds: 120 });
    expect(all.workspaces.map(({ workspace }) => workspace)).toEqual(['acme', 'other-acme'].map(labelOf));
    expect(JSON.stringify([own, all])).not.toMatch(/acme/);
  });

  test('shows the busiest workspaces by label, at most 100 with those of the metrics, also one that another replica has seen, and each call in one row', async () => {
    const busy = Array.from({ length: 30 }, (_, n) => `busy-${n}`);
    const many = Array.from({ length: 2_000 }, (_, n) => `ws-${n}`);
    const clock = settableClock();
    const cell = new Cell(Math.floor(clock.now() / minute));
    for (let n = 0; n < 50; n++) cell.ended(ended());
    const cells = new Map(['lm', `lm ${labelOf('elsewhere')}`].map((name) => [name, cell]));
    const others = { ...nobody, replicas: 1, minutes: new Map([[cell.minute, cells]]) };
    const shared = { ...embeddedActivity, others: () => Promise.resolve(others) };
    const settings = drivenSettings(['lm'], [...many, ...busy, 'elsewhere']);
    const { observation, telemetry, play } = drivenObservation(settings, clock, shared);
    const call = (workspace: string): void => play({ workspace, upstream: 'lm' });
    const shown = async () => (await observation.activity.ofAll(3_600_000)).workspaces;
    const named = (rows: Awaited<ReturnType<typeof shown>>): string[] =>
      rows.map(({ workspace }) => workspace).filter((workspace) => workspace !== 'other');
    for (const id of [...many.slice(0, 900), ...Array(40).fill(busy).flat(), ...many.slice(900)]) call(id);

    const rows = await shown();
    const calls = rows.flatMap(({ upstreams }) => upstreams.map(({ recent }) => recent.calls));
    expect(calls.reduce((sum, n) => sum + n, 0)).toBe(2_000 + 40 * 30 + 50);
    expect(named(rows)).toHaveLength(100);
    const busiest = ['elsewhere', ...busy].map(labelOf);
    expect(new Set(named(rows).slice(0, 31))).toEqual(new Set(busiest));
    // Its limits are shown here once it calls here; in another minute, for which not a thousand are counted apart already.
    clock.advance(minute);
    const upstreamsOf = (all: typeof rows) =>
      all.find(({ workspace }) => workspace === busiest[0])?.upstreams;
    expect(upstreamsOf(rows)).toEqual([{ upstream: 'lm', recent: expect.objectContaining({ calls: 50 }) }]);
    for (const id of ['elsewhere', ...busy]) call(id);
    expect(upstreamsOf(await shown())).toMatchObject([{ recent: { calls: 51 }, ceilings: {} }]);
    for (let n = 0; n < 4; n += 1) call('elsewhere');
    expect(upstreamsOf(await shown())).toMatchObject([{ recent: { calls: 55 } }]);
    const inMetrics = new Set((await telemetry.metrics()).body.match(/w_[0-9a-f]{16}/g));
    expect([...inMetrics]).toEqual(expect.arrayContaining(busiest.slice(1)));
    expect(new Set([...inMetrics, ...named(await shown())]).size).toBeLessThanOrEqual(100);
    await observation.close();
  });

  test('counts a shared bucket once, however many workspaces share it', async () => {
    const [shared, alone] = [observed(), observed()];
    for (let second = 0; second < 60; second++) {
      for (let n = 0; n < 80; n++) shared.call({ workspace: `ws-${n}` });
      alone.call({ workspace: 'ws-7' });
      for (const { clock } of [shared, alone]) clock.advance(1_000);
    }
    expect((await shared.activity.ofAll(minute)).workspaces).toHaveLength(80);
    // Each sends 60 a minute; all of them 4,800 through a bucket of 500: calls wait, which the own 60 alone would not.
    const headroom = (await shared.own('ws-7'))?.headroom;
    expect(headroom).toMatchObject({ busiestMinute: 60, growth: 1 });
    expect((await alone.own('ws-7'))?.headroom?.growth).toBeGreaterThan(1);
  });

  test('tells a workspace that its calls fail in the words in which it tells the operator', async () => {
    const { activity, call, own } = observed();
    call({ end: 'failed' });
    call({ workspace: 'ws-7' });
    const fails = { tone: 'red', text: 'No: calls fail' };
    expect([(await activity.upstreams()).upstreams[0]?.answer, (await own('acme'))?.answer]).toEqual([
      fails,
      fails,
    ]);
    expect((await own('ws-7'))?.answer).not.toEqual(fails);
  });

  test('names a cap on calls in flight where that refuses calls', async () => {
    const { activity, call } = observed();
    call({ end: 'shed', heldBy: 'serialized' });
    const { heldBy } = (await activity.upstreams()).answer;
    expect(heldBy).toMatch(/^The calls in flight that lm may have \(maxInFlight\); /);
  });

  test('what a pause refused says nothing of room when it is over', async () => {
    const { clock, activity, call } = observed();
    call({ end: 'shed', heldBy: 'paused' });
    clock.advance(3 * minute);
    const [shown] = (await activity.upstreams()).upstreams;
    expect(shown).toMatchObject({ lastHour: { refused: 1 }, answer: { tone: 'green' } });
    expect(shown?.headroom?.growth).toBeGreaterThan(1);
  });

  test('names no next slot before the end of a pause', async () => {
    const { clock, state, call, own } = observed();
    call();
    state.pauses.set('lm', { ms: 20_000, since: clock.now() });
    expect((await own('acme'))?.nextSlotMs).toBe(20_000);
  });

  test.each([
    ['', 3_600_000],
    ['window=90s', 90_000],
    ['a=1&window=15m', 900_000],
    ['window=1h', 3_600_000],
    ['window=61m', null],
    ['window=0m', null],
    ['window=90', 90_000],
    ['window=5x', null],
    ['window=', null],
    ['window=-5m', null],
    ['window=5m&window=5m', null],
  ])('reads the window of %p as %p ms', (query, expected) => {
    expect(windowOf(query)).toBe(expected);
  });

  // The live page showed a row `other` without any call: the total had added the same waits in another order.
  test('has nothing left when a total has the calls of its parts only, added in another order', () => {
    const [whole, ...parts] = [new Cell(1), new Cell(1), new Cell(1)];
    for (const n of [0.1, 0.3]) parts[0]?.ended(ended({ waitedMs: n }));
    for (const n of [0.2, 0.7]) parts[1]?.ended(ended({ waitedMs: n }));
    for (const n of [0.7, 0.1, 0.2, 0.3]) whole.ended(ended({ waitedMs: n }));
    expect(without(whole, parts)).toBeNull();
  });
});

test('a refusal that keeps its position is neither traffic nor refused: the call counts when its client comes back', async () => {
  const clock = settableClock();
  const recorder = recorderAt(clock);
  const { telemetry } = driven({ clock, activity: recorder });
  const begin = (isReserving: boolean): CallRecord => {
    const call = telemetry.begin(callAt(clock));
    call.workspaceId = 'acme';
    call.routed(lm);
    call.admitting({ requests: 1 }, isReserving);
    return call;
  };
  const refused = { outcome: 'shed', status: 429, code: 'wait_too_long' } as const;
  const traffic = async () => {
    const cell = await hourOf(recorder, 'acme');
    return [cell.arrivals, cell.refused];
  };
  begin(true).ended({ ...refused, isReserved: true });
  expect(await traffic()).toEqual([0, 0]);
  const back = begin(true);
  back.queued();
  back.sent();
  back.queued();
  back.ended({ outcome: 'ok', status: 200, code: null });
  expect(await traffic()).toEqual([1, 0]);
  // Nothing was kept for it.
  begin(true).ended(refused);
  expect(await traffic()).toEqual([2, 1]);
});
