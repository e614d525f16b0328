import { describe, expect, test } from '@jest/globals';
import { workspaceLabel } from '../../src/identity.ts';
import type { CallTelemetry } from '../../src/telemetry/events.ts';
import { callAt, callerNamed, driven, lm, shop } from './drive.ts';

const label = workspaceLabel('a label key of a test', 'acme');

function enter(given: ReturnType<typeof driven>, upstream = lm, workspace = 'acme'): CallTelemetry {
  const call = given.telemetry.begin(callAt(given.clock));
  call.identified(callerNamed(workspace));
  call.routed(upstream);
  call.admitting();
  return call;
}

/** Waits 200 ms, is throttled after 50 ms, waits 1 s, is answered after 300 ms. */
function throttledOnce(given: ReturnType<typeof driven>): CallTelemetry {
  const call = enter(given);
  call.queued('lane');
  given.clock.advance(200);
  call.granted();
  call.sent();
  given.clock.advance(50);
  call.answered(429, { kind: 'rate', waitMs: 1000, meter: 'requests' });
  call.absorbed();
  call.queued('lane');
  given.clock.advance(1000);
  call.granted();
  call.sent();
  given.clock.advance(300);
  call.answered(200, null);
  return call;
}

describe('the metrics of a call', () => {
  test('count how it ended under the label of its workspace', async () => {
    const given = driven();
    throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
    const by = { workspace: label, upstream: 'lm' };
    expect(await given.value('sluice_requests_total', { ...by, outcome: 'ok' })).toBe(1);
    expect(await given.value('sluice_upstream_throttles_total', { ...by, kind: 'rate' })).toBe(1);
    expect(await given.value('sluice_retries_absorbed_total', by)).toBe(1);
    expect(await given.value('sluice_requests_total', { ...by, outcome: 'throttled' })).toBe(0);
  });

  test('sum its waits and time each attempt to the head of its answer', async () => {
    const given = driven();
    throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
    expect(await given.value('sluice_queue_wait_seconds_sum', { upstream: 'lm', outcome: 'ok' })).toBeCloseTo(
      1.2,
    );
    expect(await given.value('sluice_upstream_seconds_count', { upstream: 'lm' })).toBe(2);
    expect(await given.value('sluice_upstream_seconds_sum', { upstream: 'lm' })).toBeCloseTo(0.35);
  });

  test('overhead is what is left: not waiting, not the upstream, not the client sending its body', async () => {
    const given = driven();
    const call = given.telemetry.begin(callAt(given.clock));
    given.clock.advance(2);
    call.identified(callerNamed('acme'));
    call.routed(lm);
    given.clock.advance(5_000);
    call.admitting();
    given.clock.advance(1);
    call.queued('lane');
    given.clock.advance(700);
    call.sent();
    given.clock.advance(90);
    call.answered(200, null);
    given.clock.advance(10_000);
    call.ended({ outcome: 'ok', status: 200, code: null });
    expect(await given.value('sluice_overhead_seconds_sum', { upstream: 'lm' })).toBeCloseTo(0.003);
  });

  test('show it waiting, then in flight, then nowhere', async () => {
    const given = driven();
    const call = enter(given);
    call.queued('lane');
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

  test('a call that goes back to its line is still the oldest', async () => {
    const given = driven();
    const old = enter(given);
    old.queued('lane');
    given.clock.advance(3_000);
    enter(given).queued('lane');
    old.sent();
    old.answered(429, { kind: 'rate', waitMs: 1, meter: null });
    old.absorbed();
    old.queued('lane');
    expect(await given.value('sluice_queue_oldest_seconds', { upstream: 'lm' })).toBeCloseTo(3);
  });

  test('a call that ends anywhere leaves nothing raised, and only its first end counts', async () => {
    for (const steps of [0, 1, 2, 3]) {
      const given = driven();
      const call = enter(given);
      if (steps > 0) call.queued('lane');
      if (steps > 1) call.sent();
      if (steps > 2) call.answered(200, null);
      call.ended({ outcome: 'failed', status: 502, code: 'upstream_unreachable' });
      call.ended({ outcome: 'ok', status: 200, code: null });
      call.queued('lane');
      call.sent();
      expect(await given.value('sluice_queue_depth', { upstream: 'lm' })).toBe(0);
      expect(await given.value('sluice_in_flight', { upstream: 'lm' })).toBe(0);
      const by = { workspace: label, upstream: 'lm' };
      expect(await given.value('sluice_requests_total', { ...by, outcome: 'failed' })).toBe(1);
      expect(await given.value('sluice_requests_total', { ...by, outcome: 'ok' })).toBe(0);
    }
  });

  test('a refusal counts by its code, and one without a workspace under none', async () => {
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

  test('sending for a client that has left is counted, which must never happen', async () => {
    const given = driven();
    expect(await given.value('sluice_dispatched_after_client_gone_total')).toBe(0);
    const gone = AbortSignal.abort();
    given.telemetry.begin(callAt(given.clock, { clientGone: gone })).sent();
    expect(await given.value('sluice_dispatched_after_client_gone_total')).toBe(1);
  });
});

describe('telemetry that breaks', () => {
  test('never breaks the call, and says so once', () => {
    const broken = () => {
      throw new Error('canary message with https://secret.example');
    };
    const given = driven({
      sinks: [{ arrived: broken, throttled: broken, absorbed: broken, ended: broken }],
    });
    throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
    throttledOnce(given).ended({ outcome: 'ok', status: 200, code: null });
    const bugs = given.lines().filter((line) => line['level'] === 'error');
    expect(bugs).toHaveLength(1);
    expect(JSON.stringify(bugs)).not.toContain('secret.example');
  });
});
