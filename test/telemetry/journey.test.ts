import { describe, expect, test } from '@jest/globals';
import { workspaceLabel } from '../../src/identity.ts';
import type { CallRecord } from '../../src/telemetry/call-record.ts';
import { callAt, driven, entered as enter, lm, shop } from './drive.ts';

const label = workspaceLabel('a label key of a test', 'acme');

/** Waits 200 ms, is throttled after 50 ms, waits 1 s, is answered after 300 ms. */
function throttledOnce(given: ReturnType<typeof driven>): CallRecord {
  const call = enter(given);
  call.queued();
  given.clock.advance(200);
  call.sent();
  given.clock.advance(50);
  call.answered(429, { kind: 'rate', waitMs: 1000, meter: 'requests' });
  call.absorbed();
  call.queued();
  given.clock.advance(1000);
  call.sent();
  given.clock.advance(300);
  call.answered(200, null);
  return call;
}

describe('the metrics of a call', () => {
  const by = { workspace: label, upstream: 'lm' };
  const ofLm = { upstream: 'lm' };
  const ok = { outcome: 'ok', status: 200, code: null } as const;

  test('count its outcome under its label, sum its waits, and time each attempt to the head of its response', async () => {
    const given = driven();
    throttledOnce(given).ended(ok);
    expect(await given.value('sluice_requests_total', { ...by, outcome: 'ok' })).toBe(1);
    expect(await given.value('sluice_requests_total', { ...by, outcome: 'throttled' })).toBe(0);
    expect(await given.value('sluice_upstream_throttles_total', { ...by, kind: 'rate' })).toBe(1);
    expect(await given.value('sluice_retries_absorbed_total', by)).toBe(1);
    const waited = await given.value('sluice_queue_wait_seconds_sum', { ...ofLm, outcome: 'ok' });
    expect(waited).toBeCloseTo(1.2);
    expect(await given.value('sluice_upstream_seconds_count', ofLm)).toBe(2);
    expect(await given.value('sluice_upstream_seconds_sum', ofLm)).toBeCloseTo(0.35);
  });

  test('count as overhead the time without waits, the upstream and the client’s sending', async () => {
    const given = driven();
    const { advance } = given.clock;
    const call = given.telemetry.begin(callAt(given.clock));
    advance(2);
    call.workspaceId = 'acme';
    call.routed(lm);
    advance(5_000);
    call.admitting();
    advance(1);
    call.queued();
    advance(700);
    call.sent();
    advance(90);
    call.answered(200, null);
    advance(10_000);
    call.ended(ok);
    expect(await given.value('sluice_overhead_seconds_sum', ofLm)).toBeCloseTo(0.003);
  });

  /** Calls that wait, the age of the oldest, and calls in flight. */
  const gauges = async ({ value }: ReturnType<typeof driven>) => [
    await value('sluice_queue_depth', ofLm),
    await value('sluice_queue_oldest_seconds', ofLm),
    await value('sluice_in_flight', ofLm),
  ];

  test('show it waiting, then in flight, then not at all', async () => {
    const given = driven();
    const call = enter(given);
    call.queued();
    given.clock.advance(4_000);
    expect(await gauges(given)).toEqual([1, 4, 0]);
    call.sent();
    expect(await gauges(given)).toEqual([0, 0, 1]);
    call.ended({ outcome: 'client_gone', status: 0, code: null });
    expect(await gauges(given)).toEqual([0, 0, 0]);
  });

  test.each([0, 1, 2, 3])(
    'leave no gauge raised and count only its first end, after %d steps',
    async (steps) => {
      const given = driven();
      const call = enter(given);
      if (steps > 0) call.queued();
      if (steps > 1) call.sent();
      if (steps > 2) call.answered(200, null);
      call.ended({ outcome: 'failed', status: 502, code: 'upstream_unreachable' });
      call.ended(ok);
      call.queued();
      call.sent();
      expect(await gauges(given)).toEqual([0, 0, 0]);
      expect(await given.value('sluice_requests_total', { ...by, outcome: 'failed' })).toBe(1);
      expect(await given.value('sluice_requests_total', { ...by, outcome: 'ok' })).toBe(0);
    },
  );

  test('count a refusal by its code, and one without a workspace under no label', async () => {
    const given = driven();
    enter(given, { upstream: shop }).ended({ outcome: 'shed', status: 429, code: 'queue_full' });
    const stranger = { outcome: 'rejected', status: 401, code: 'unauthenticated' } as const;
    given.telemetry.begin(callAt(given.clock)).ended(stranger);
    const reason = { workspace: label, upstream: 'shop', reason: 'queue_full' };
    expect(await given.value('sluice_shed_total', reason)).toBe(1);
    const none = { workspace: 'none', upstream: 'none', outcome: 'rejected' };
    expect(await given.value('sluice_requests_total', none)).toBe(1);
    expect(await given.scrape()).not.toContain('sluice_queue_wait_seconds_count{upstream="none"');
  });

  test('count sending for a client that has left, which must never happen', async () => {
    const given = driven();
    const counted = () => given.value('sluice_dispatched_after_client_gone_total');
    expect(await counted()).toBe(0);
    given.telemetry.begin(callAt(given.clock, { clientGone: AbortSignal.abort() })).sent();
    expect(await counted()).toBe(1);
  });
});

test('telemetry that breaks does not break the call, and is reported once', () => {
  const broken = () => {
    throw new Error('canary message with https://secret.example');
  };
  const given = driven({ activity: { arrived: broken, counted: broken, ended: broken } });
  for (let n = 0; n < 2; n += 1) throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
  const bugs = given.lines().filter((line) => line['level'] === 'error');
  expect(bugs).toHaveLength(1);
  expect(JSON.stringify(bugs)).not.toContain('secret.example');
});
