import { describe, expect, test } from '@jest/globals';
import { workspaceLabel } from '../../src/identity.ts';
import type { CallRecord } from '../../src/telemetry/call-record.ts';
import { callAt, driven, lm, shop } from './drive.ts';

const label = workspaceLabel('a label key of a test', 'acme');

function enter(given: ReturnType<typeof driven>, upstream = lm, workspace = 'acme'): CallRecord {
  const call = given.telemetry.begin(callAt(given.clock));
  call.workspaceId = workspace;
  call.routed(upstream);
  call.admitting();
  return call;
}

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

test('the log line of a call names its absorbed attempts by the ids of the upstream', () => {
  const given = driven();
  const call = enter(given);
  const throttle = { kind: 'rate', waitMs: 1, meter: null } as const;
  for (const id of ['req_1', null, 'req_3']) {
    call.sent();
    call.answered(429, throttle, id);
    call.absorbed();
  }
  call.sent();
  call.answered(429, throttle, 'req_passed');
  call.ended({ outcome: 'throttled', status: 429, code: null });
  expect(given.lines()[0]?.['absorbedIds']).toEqual(['req_1', 'req_3']);

  enter(given).ended({ outcome: 'ok', status: 200, code: null });
  expect(given.lines()[1]).not.toHaveProperty('absorbedIds');
});

describe('the metrics of a call', () => {
  test('count its outcome under the label of its workspace', async () => {
    const given = driven();
    throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
    const by = { workspace: label, upstream: 'lm' };
    expect(await given.value('sluice_requests_total', { ...by, outcome: 'ok' })).toBe(1);
    expect(await given.value('sluice_upstream_throttles_total', { ...by, kind: 'rate' })).toBe(1);
    expect(await given.value('sluice_retries_absorbed_total', by)).toBe(1);
    expect(await given.value('sluice_requests_total', { ...by, outcome: 'throttled' })).toBe(0);
  });

  test('sum its waits and time each attempt to the head of its response', async () => {
    const given = driven();
    throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
    expect(await given.value('sluice_queue_wait_seconds_sum', { upstream: 'lm', outcome: 'ok' })).toBeCloseTo(
      1.2,
    );
    expect(await given.value('sluice_upstream_seconds_count', { upstream: 'lm' })).toBe(2);
    expect(await given.value('sluice_upstream_seconds_sum', { upstream: 'lm' })).toBeCloseTo(0.35);
  });

  test('count as overhead the time without waits, the upstream and the client’s sending', async () => {
    const given = driven();
    const call = given.telemetry.begin(callAt(given.clock));
    given.clock.advance(2);
    call.workspaceId = 'acme';
    call.routed(lm);
    given.clock.advance(5_000);
    call.admitting();
    given.clock.advance(1);
    call.queued();
    given.clock.advance(700);
    call.sent();
    given.clock.advance(90);
    call.answered(200, null);
    given.clock.advance(10_000);
    call.ended({ outcome: 'ok', status: 200, code: null });
    expect(await given.value('sluice_overhead_seconds_sum', { upstream: 'lm' })).toBeCloseTo(0.003);
  });

  test('show it waiting, then in flight, then not at all', async () => {
    const given = driven();
    const call = enter(given);
    call.queued();
    given.clock.advance(4_000);
    expect(await given.value('sluice_queue_depth', { upstream: 'lm' })).toBe(1);
    expect(await given.value('sluice_queue_oldest_seconds', { upstream: 'lm' })).toBeCloseTo(4);
    call.sent();
    expect(await given.value('sluice_queue_depth', { upstream: 'lm' })).toBe(0);
    expect(await given.value('sluice_in_flight', { upstream: 'lm' })).toBe(1);
    call.ended({ outcome: 'client_gone', status: 0, code: null });
    expect(await given.value('sluice_in_flight', { upstream: 'lm' })).toBe(0);
    expect(await given.value('sluice_queue_oldest_seconds', { upstream: 'lm' })).toBe(0);
  });

  test('keep the age of a call that goes back to its lane', async () => {
    const given = driven();
    const old = enter(given);
    old.queued();
    given.clock.advance(3_000);
    enter(given).queued();
    old.sent();
    old.answered(429, { kind: 'rate', waitMs: 1, meter: null });
    old.absorbed();
    old.queued();
    expect(await given.value('sluice_queue_oldest_seconds', { upstream: 'lm' })).toBeCloseTo(3);
  });

  test('leave no gauge raised, wherever the call ends, and count only its first end', async () => {
    for (const steps of [0, 1, 2, 3]) {
      const given = driven();
      const call = enter(given);
      if (steps > 0) call.queued();
      if (steps > 1) call.sent();
      if (steps > 2) call.answered(200, null);
      call.ended({ outcome: 'failed', status: 502, code: 'upstream_unreachable' });
      call.ended({ outcome: 'ok', status: 200, code: null });
      call.queued();
      call.sent();
      expect(await given.value('sluice_queue_depth', { upstream: 'lm' })).toBe(0);
      expect(await given.value('sluice_in_flight', { upstream: 'lm' })).toBe(0);
      const by = { workspace: label, upstream: 'lm' };
      expect(await given.value('sluice_requests_total', { ...by, outcome: 'failed' })).toBe(1);
      expect(await given.value('sluice_requests_total', { ...by, outcome: 'ok' })).toBe(0);
    }
  });

  test('count a refusal by its code, and one without a workspace under no label', async () => {
    const given = driven();
    enter(given, shop).ended({ outcome: 'shed', status: 429, code: 'queue_full' });
    given.telemetry
      .begin(callAt(given.clock))
      .ended({ outcome: 'rejected', status: 401, code: 'unauthenticated' });
    const reason = { workspace: label, upstream: 'shop', reason: 'queue_full' };
    expect(await given.value('sluice_shed_total', reason)).toBe(1);
    expect(
      await given.value('sluice_requests_total', {
        workspace: 'none',
        upstream: 'none',
        outcome: 'rejected',
      }),
    ).toBe(1);
    expect(await given.scrape()).not.toContain('sluice_queue_wait_seconds_count{upstream="none"');
  });

  test('count sending for a client that has left, which must never happen', async () => {
    const given = driven();
    expect(await given.value('sluice_dispatched_after_client_gone_total')).toBe(0);
    const gone = AbortSignal.abort();
    given.telemetry.begin(callAt(given.clock, { clientGone: gone })).sent();
    expect(await given.value('sluice_dispatched_after_client_gone_total')).toBe(1);
  });
});

describe('telemetry that breaks', () => {
  test('does not break the call, and is reported once', () => {
    const broken = () => {
      throw new Error('canary message with https://secret.example');
    };
    const given = driven({
      activity: { arrived: broken, throttled: broken, absorbed: broken, ended: broken },
    });
    throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
    throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
    const bugs = given.lines().filter((line) => line['level'] === 'error');
    expect(bugs).toHaveLength(1);
    expect(JSON.stringify(bugs)).not.toContain('secret.example');
  });
});
