import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { once } from 'node:events';
import { request } from 'node:http';
import { verdict, type VerdictInput } from '../../src/page/verdict.policy.ts';
import { Timeline, sampleCount } from '../../src/page/timeline.ts';
import { settableClock } from '../telemetry/drive.ts';
import { bucketOf, drivenPage } from './driven-page.ts';
import type { PageState } from '../../src/page/state.ts';
import type { Clock } from '../../src/clock.ts';

/** A clock whose sample timer is fired by hand. */
function pacedClock() {
  const clock = settableClock();
  const due: (() => void)[] = [];
  const paced: Clock = {
    now: () => clock.now(),
    monotonic: () => clock.monotonic(),
    after(delayMs, run) {
      if (delayMs <= 0) return clock.after(delayMs, run);
      due.push(run);
      return () => void due.splice(due.indexOf(run), 1);
    },
  };
  const tick = async () => {
    clock.advance(2_000);
    due.shift()?.();
    await new Promise((done) => setImmediate(done));
  };
  return { paced, tick };
}

/** Reads events of the page until `name` has come; its data, parsed. */
async function eventFrom(url: string, name: string): Promise<unknown> {
  const open = request(`${url}page/events`).end();
  const [response] = (await once(open, 'response')) as [NodeJS.ReadableStream];
  let text = '';
  for await (const chunk of response) {
    text += String(chunk);
    const found = new RegExp(`event: ${name}\\ndata: (.*)\\n\\n`).exec(text);
    if (found !== null) {
      open.destroy();
      return JSON.parse(found[1] ?? 'null');
    }
  }
  throw new Error(`no ${name} event came`);
}

describe('the live page', () => {
  let page: Awaited<ReturnType<typeof drivenPage>>;
  let tick: () => Promise<void>;

  beforeEach(async () => {
    const paced = pacedClock();
    tick = paced.tick;
    page = await drivenPage(paced.paced);
  });
  afterEach(async () => {
    await page.close();
    expect(page.bugs).toEqual([]);
  });

  test('serves only its own files, under a policy that allows nothing else', async () => {
    const html = await fetch(page.url);
    const policy = html.headers.get('content-security-policy') ?? '';
    expect(policy).toContain("default-src 'none'");
    expect(policy).not.toContain('unsafe');
    const text = await html.text();
    expect(text).not.toMatch(/https?:\/\/|style="|\son\w+="|<script>/);
    for (const [, path] of text.matchAll(/(?:src|href)="(\/page\/[^"]+)"/g)) {
      const asset = await fetch(new URL(path ?? '', page.url));
      expect([path, asset.status]).toEqual([path, 200]);
      expect((await asset.text()).length).toBeGreaterThan(100);
    }
  });

  test('shows the figures of the metrics', async () => {
    page.pressure.whole = { shed: 7, absorbed: 9 };
    page.buckets.push(bucketOf('lm', 0.62, 4_000));
    page.play({ workspace: 'acme', upstream: 'lm', end: 'wait' }, 3_000);
    page.play({ workspace: 'acme', upstream: 'shop', end: 'flight' });
    page.play({ workspace: 'acme', upstream: 'lm', absorbed: 2 });
    page.play({ workspace: 'acme', upstream: 'lm', end: 'shed' });
    const reader = request(`${page.url}page/events`).end();
    await once(reader, 'response');
    await tick();
    const state = (await eventFrom(page.url, 'state')) as PageState;
    const metrics = (await page.telemetry.metrics()).body;
    const [lm, shop] = state.upstreams;
    expect(lm).toMatchObject({
      name: 'lm',
      waiting: 1,
      closedMs: 4_000,
      absorbedLastMinute: 2,
      shedLastMinute: 1,
    });
    expect(shop).toMatchObject({ name: 'shop', inFlight: 1 });
    expect(metrics).toContain('sluice_queue_depth{upstream="lm"} 1');
    expect(metrics).toContain('sluice_in_flight{upstream="shop"} 1');
    expect(metrics).toContain(`sluice_queue_oldest_seconds{upstream="lm"} ${(lm?.oldestMs ?? 0) / 1_000}`);
    expect(metrics).toContain('sluice_bucket_used_ratio{upstream="lm",dimension="requests"} 0.62');
    expect(lm?.meters[0]).toMatchObject({ dimension: 'requests', used: 0.62 });
    expect(state.refusals).toEqual({ wait_too_long: 1 });
    reader.destroy();
    expect(state.heldBy).toEqual({ ceiling_minute: 1 });
    expect(metrics).toContain('sluice_held_refusals_total{upstream="lm",held_by="ceiling_minute"} 1');
    expect(state.whole).toEqual([
      { name: 'lm', waiting: 1, inFlight: 0, shed: 7, absorbed: 9 },
      { name: 'shop', waiting: 0, inFlight: 1, shed: 7, absorbed: 9 },
    ]);
    expect([lm?.credentialEndsInMs, shop?.credentialEndsInMs]).toEqual([1_500_000, null]);
    expect(state.process).toMatchObject({ connections: 12, openCalls: 5, sheddingShare: 0 });
    expect(state.verdict.level).toBe('pressed');
  });

  test('is not calm while the replica sheds calls for load', async () => {
    page.pressure.process = { ...page.pressure.process, sheddingShare: 0.25, overloadRefusals: 3 };
    await tick();
    const shedding = (await eventFrom(page.url, 'state')) as PageState;
    expect(shedding.process.sheddingShare).toBe(0.25);
    expect(shedding.verdict).toMatchObject({
      level: 'degraded',
      detail: 'This replica is overloaded and refuses 25 % of new calls.',
    });
    expect(shedding.refusals).toEqual({ overloaded: 3 });
    page.pressure.process = { ...page.pressure.process, sheddingShare: 0 };
    await tick();
    const relieved = (await eventFrom(page.url, 'state')) as PageState;
    expect(relieved.verdict).toMatchObject({
      level: 'pressed',
      detail: 'This replica was full and refused 3 calls in the last minute.',
    });
    for (let i = 0; i < 30; i++) await tick();
    expect(((await eventFrom(page.url, 'state')) as PageState).verdict.level).toBe('calm');
  });

  test('is not calm while other replicas refuse calls', async () => {
    page.pressure.whole = { shed: 7, absorbed: 9 };
    const reader = request(`${page.url}page/events`).end();
    await once(reader, 'response');
    await tick();
    const state = (await eventFrom(page.url, 'state')) as PageState;
    reader.destroy();
    expect(state.verdict).toMatchObject({
      level: 'pressed',
      detail: 'All replicas together refused 7 calls to lm since the last full minute.',
    });
  });

  test('gives a page that opens late the whole quarter of an hour and the workspaces by label', async () => {
    page.play({ workspace: 'canary-workspace', upstream: 'lm' });
    for (let i = 0; i < 3; i++) await tick();
    expect(await eventFrom(page.url, 'history')).toHaveLength(4);
    const activity = JSON.stringify(await eventFrom(page.url, 'activity'));
    expect(activity).toMatch(/"workspace":"w_[0-9a-f]{16}"/);
    expect(activity).not.toContain('canary');
  });

  test('refuses readers above its bound', async () => {
    const open = await Promise.all(
      Array.from({ length: 33 }, async () => {
        const each = request(`${page.url}page/events`).end();
        const [response] = (await once(each, 'response')) as [{ statusCode: number }];
        return { each, status: response.statusCode };
      }),
    );
    expect(open.filter(({ status }) => status === 503)).toHaveLength(1);
    for (const { each } of open) each.destroy();
  });
});

describe('the timeline of the live page', () => {
  test('keeps a quarter of an hour, and counts each fact once', () => {
    const timeline = new Timeline(settableClock());
    timeline.absorbed('acme', 'lm');
    const live = [{ upstream: 'lm', dimensions: [], waiting: 1, oldestMs: 10.4, inFlight: 2 }];
    const process = { overloadRefusals: 0 };
    expect(timeline.sample(live, process).upstreams['lm']).toMatchObject({
      waiting: 1,
      oldestMs: 10,
      absorbed: 1,
    });
    expect(timeline.sample(live, process).upstreams['lm']).toMatchObject({ absorbed: 0 });
    for (let i = 0; i < 1_000; i++) timeline.sample(live, process);
    expect(timeline.samples).toHaveLength(sampleCount);
  });
});

describe('the verdict of the live page', () => {
  const calm: VerdictInput = {
    mode: 'redis',
    redisErrorsLastMinute: 0,
    leasesLostLastMinute: 0,
    sheddingShare: 0,
    overloadedLastMinute: 0,
    upstreams: [],
  };
  const lm = {
    name: 'lm',
    fullest: 0.4,
    closedMs: 0,
    waiting: 0,
    oldestMs: 0,
    refusing: null,
    shedLastMinute: 0,
    absorbedLastMinute: 0,
    throttledLastMinute: 0,
    whole: null,
  };
  test.each<[Partial<VerdictInput>, string, string]>([
    [{ upstreams: [lm] }, 'calm', 'Nothing waits, no throttles, fullest limit at 40 %.'],
    [{ mode: 'memory' }, 'calm', 'Nothing waits, no throttles, no limit in use yet.'],
    [
      { upstreams: [{ ...lm, fullest: null }, lm] },
      'calm',
      'Nothing waits, no throttles, fullest limit at 40 %.',
    ],
    [
      { upstreams: [{ ...lm, waiting: 1, whole: { waiting: 4, shed: 0, absorbed: 2 } }] },
      'calm',
      '1 call waits briefly, 2 throttles absorbed since the last full minute, fullest limit at 40 %.',
    ],
    [
      { upstreams: [{ ...lm, whole: { waiting: 4, shed: 0, absorbed: 0 } }] },
      'calm',
      'Nothing waits here, 4 calls on other replicas, no throttles, fullest limit at 40 %.',
    ],
    [
      { upstreams: [{ ...lm, throttledLastMinute: 1 }] },
      'pressed',
      '1 throttle of lm reached clients in the last minute.',
    ],
    [
      { upstreams: [lm], sheddingShare: 0.004 },
      'degraded',
      'This replica is overloaded and refuses 1 % of new calls.',
    ],
    [
      { mode: 'local', sheddingShare: 0.5 },
      'degraded',
      'This replica is overloaded and refuses 50 % of new calls.',
    ],
    [{ upstreams: [{ ...lm, fullest: 0.93 }] }, 'pressed', 'lm uses 93 % of a limit.'],
    [
      { upstreams: [{ ...lm, closedMs: 12_000, waiting: 7 }] },
      'pressed',
      'lm is closed for 12 s; 7 calls wait.',
    ],
    [
      { upstreams: [{ ...lm, oldestMs: 61_000, closedMs: 1 }] },
      'pressed',
      'A call to lm has waited for 61 s.',
    ],
    [
      { upstreams: [lm, { ...lm, name: 'shop', shedLastMinute: 3 }] },
      'pressed',
      'Sluice refused 3 calls to shop in the last minute.',
    ],
    [
      { upstreams: [{ ...lm, shedLastMinute: 9, refusing: { status: 402, retryInMs: 42_000 } }] },
      'pressed',
      'lm refuses calls with 402; it is asked again in 42 s.',
    ],
    [{ redisErrorsLastMinute: 2 }, 'degraded', 'Redis errors in the last minute: 2.'],
    [
      { leasesLostLastMinute: 1, redisErrorsLastMinute: 2 },
      'degraded',
      '1 in-flight leases were lost in the last minute.',
    ],
    [
      { mode: 'local', upstreams: [{ ...lm, shedLastMinute: 1 }] },
      'degraded',
      'Redis is away: this replica enforces its own share of every limit.',
    ],
    [{ mode: 'deny' }, 'degraded', 'Redis is away and this replica refuses calls.'],
  ])('on %j is %s: %s', (given, level, detail) => {
    expect(verdict({ ...calm, ...given })).toMatchObject({ level, detail });
  });
});
