/** What log lines and metrics say of calls, and of those without a valid API key. */
import { describe, expect, test } from '@jest/globals';
import type { LogSettings } from '../../src/config/settings.ts';
import { workspaceLabel } from '../../src/identity.ts';
import type { CallRecord } from '../../src/telemetry/call-record.ts';
import type { CallEnd } from '../../src/telemetry/events.ts';
import { describeError } from '../../src/telemetry/logger.ts';
import { callAt, driven, entered, fixedRandom, lm, shop } from './drive.ts';

const label = workspaceLabel('a label key of a test', 'acme');

/** Waits 200 ms, is throttled after 50 ms, waits 1 s, is answered after 300 ms. */
function throttledOnce(given: ReturnType<typeof driven>): CallRecord {
  const call = entered(given);
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
    const call = entered(given);
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
      const call = entered(given);
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
    entered(given, { upstream: shop }).ended({ outcome: 'shed', status: 429, code: 'queue_full' });
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

function end(given: ReturnType<typeof driven>, how: CallEnd, method = 'POST'): void {
  entered(given, { method, workspace: 'canary-workspace' }).ended(how);
}
const ok: CallEnd = { outcome: 'ok', status: 200, code: null };

describe('calls without a valid API key', () => {
  const strangers = (given: ReturnType<typeof driven>, count: number): void => {
    for (let at = 0; at < count; at += 1)
      given.telemetry
        .begin(callAt(given.clock))
        .ended({ outcome: 'rejected', status: 401, code: 'unauthenticated' });
  };

  test('get ten lines a minute, whatever the sampling; a metric says how many were left out', async () => {
    for (const sampleSuccesses of [0, 1]) {
      const given = driven({ sampleSuccesses });
      strangers(given, 200);
      expect(given.lines()).toHaveLength(10);
      expect(await given.value('sluice_log_lines_left_out_total')).toBe(190);
      given.clock.advance(59_999);
      strangers(given, 1);
      expect(given.lines()).toHaveLength(10);
      given.clock.advance(1);
      strangers(given, 2);
      expect(given.lines()).toHaveLength(12);
      const rejected = { workspace: 'none', upstream: 'none', outcome: 'rejected' };
      expect(await given.value('sluice_requests_total', rejected)).toBe(203);
    }
  });

  test('do not take the lines of calls with one', () => {
    const given = driven();
    strangers(given, 50);
    for (let at = 0; at < 50; at += 1)
      end(given, { outcome: 'rejected', status: 403, code: 'target_forbidden' });
    expect(given.lines()).toHaveLength(60);
  });
});

describe('the log line of a call', () => {
  test('has the label, the outcome and the times, and nothing else', () => {
    const given = driven();
    end(given, {
      outcome: 'shed',
      status: 429,
      code: 'wait_too_long',
      admission: { waitedMs: 1.26, attempts: 2, absorbed: 1, held: [] },
    });
    const [line] = given.lines();
    const fields =
      'absorbed attempts code durationMs heldBy level message method outcome overheadMs reason requestId status time traceId upstream upstreamMs waitedMs workspace';
    expect(Object.keys(line ?? {}).toSorted()).toEqual(fields.split(' '));
    expect(line).toMatchObject({
      level: 'warn',
      outcome: 'shed',
      code: 'wait_too_long',
      waitedMs: 1.3,
      attempts: 2,
      absorbed: 1,
      upstream: 'lm',
    });
    expect(line?.['workspace']).toMatch(/^w_[0-9a-f]{16}$/);
  });

  test('says what held the call, in milliseconds by cause', () => {
    const given = driven();
    const held = { closed: 1_000.26, serialized: 20 };
    const causes = Object.entries(held).map(([cause, ms]) => ({ cause: cause as keyof typeof held, ms }));
    end(
      given,
      { ...ok, admission: { waitedMs: 1_020.26, attempts: 2, absorbed: 1, held: causes } },
      'CANARY',
    );
    expect(given.lines()[0]).toMatchObject({ heldMs: { closed: 1_000.3, serialized: 20 } });
    expect(JSON.stringify(given.lines())).not.toMatch(/canary/i);
  });

  test('is written for the sampled share of successes and for everything else', () => {
    const unlucky = driven({ sampleSuccesses: 0.1, random: fixedRandom(0.5) });
    end(unlucky, ok);
    end(unlucky, { outcome: 'rejected', status: 403, code: 'target_forbidden' });
    end(unlucky, { outcome: 'throttled', status: 429, code: null });
    expect(unlucky.lines().map((line) => line['outcome'])).toEqual(['rejected', 'throttled']);
    const lucky = driven({ sampleSuccesses: 0.1, random: fixedRandom(0.05) });
    end(lucky, ok);
    expect(lucky.lines()).toHaveLength(1);
  });

  test('follows level and sampling of new settings at once', () => {
    const given = driven();
    const log = (level: LogSettings['level'], sampleSuccesses: number): void =>
      given.telemetry.reload({ log: { level, sampleSuccesses }, upstreams: new Map() });
    const logged = (): unknown[] => given.lines().map(({ message, outcome }) => outcome ?? message);
    log('warn', 1);
    given.telemetry.log.info('below');
    end(given, ok);
    end(given, { outcome: 'throttled', status: 429, code: null });
    expect(logged()).toEqual(['throttled']);
    log('debug', 0);
    given.telemetry.log.debug('detail');
    end(given, ok);
    expect(logged()).toEqual(['throttled', 'detail']);
    log('info', 1);
    end(given, ok);
    expect(logged()).toEqual(['throttled', 'detail', 'ok']);
  });
});

describe('other log lines', () => {
  test('name an unexpected error by name, code and frames, never by message', () => {
    const error = Object.assign(new TypeError('getaddrinfo failed for canary.example\nkey slc_canary'), {
      code: 'ENOTFOUND',
    });
    const logged = describeError(error);
    expect(logged).toMatchObject({ error: 'TypeError', errorCode: 'ENOTFOUND' });
    expect(JSON.stringify(logged)).not.toContain('canary');
    expect(String(logged['stack'])).toMatch(/journey\.test/);
  });

  test('censor a field with a secret name', () => {
    const given = driven();
    given.telemetry.log.info('careless', { url: 'https://canary.example', key: 'slc_canary', replicas: 3 });
    expect(given.lines()[0]).toMatchObject({ url: '[redacted]', key: '[redacted]', replicas: 3 });
  });
});
