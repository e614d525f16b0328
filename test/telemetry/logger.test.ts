import { describe, expect, test } from '@jest/globals';
import { describeError } from '../../src/telemetry/logger.ts';
import type { LogSettings } from '../../src/config/settings.ts';
import type { CallEnd } from '../../src/telemetry/events.ts';
import { callAt, driven, entered, fixedRandom } from './drive.ts';

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
    expect(String(logged['stack'])).toMatch(/logger\.test/);
  });

  test('censor a field with a secret name', () => {
    const given = driven();
    given.telemetry.log.info('careless', { url: 'https://canary.example', key: 'slc_canary', replicas: 3 });
    expect(given.lines()[0]).toMatchObject({ url: '[redacted]', key: '[redacted]', replicas: 3 });
  });
});
