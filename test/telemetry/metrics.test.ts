import { createHmac } from 'node:crypto';
import { describe, expect, test } from '@jest/globals';
import { digest, workspaceLabel } from '../../src/identity.ts';
import { createLabels } from '../../src/telemetry/labels.ts';
import {
  bucketSnapshot as snapshot,
  driven,
  entered,
  idleProcess,
  lm,
  nothingKnown,
  settableClock,
  shop,
} from './drive.ts';

function oneCall(given: ReturnType<typeof driven>, workspace: string, upstream = lm): void {
  const call = entered(given, { workspace, upstream });
  call.sent();
  given.clock.advance(10);
  call.answered(200, null);
  call.ended({ outcome: 'ok', status: 200, code: null });
}

/** Names, types and labels that dashboards, alerts and black-box tests depend on. */
const published = `
  sluice_requests_total counter workspace upstream outcome
  sluice_queue_wait_seconds histogram upstream outcome
  sluice_would_wait_seconds histogram upstream
  sluice_would_refuse_total counter workspace upstream reason
  sluice_queue_depth gauge upstream
  sluice_queue_oldest_seconds gauge upstream
  sluice_queue_bytes gauge
  sluice_kept_response_bytes gauge
  sluice_head_bytes gauge
  sluice_headroom_ratio gauge upstream
  sluice_in_flight gauge upstream
  sluice_connections gauge
  sluice_open_calls gauge
  sluice_event_loop_delay_seconds gauge
  sluice_memory_used_ratio gauge
  sluice_shedding_ratio gauge
  sluice_overload_total counter bound
  sluice_log_lines_left_out_total counter
  sluice_upstream_throttles_total counter workspace upstream kind
  sluice_retries_absorbed_total counter workspace upstream
  sluice_shed_total counter workspace upstream reason
  sluice_held_refusals_total counter upstream held_by
  sluice_bucket_used_ratio gauge upstream dimension
  sluice_bucket_closed_seconds gauge upstream
  sluice_breaker_open gauge upstream
  sluice_upstream_paused gauge upstream
  sluice_ceiling_used_ratio gauge upstream window
  sluice_build_info gauge version node
  sluice_config_last_reload_successful gauge
  sluice_config_last_reload_success_timestamp_seconds gauge
  sluice_credential_expires_seconds gauge upstream
  sluice_credential_renewals_total counter upstream outcome
  sluice_upstream_failures_total counter upstream reason
  sluice_upstream_seconds histogram upstream
  sluice_overhead_seconds histogram upstream
  sluice_limiter_mode gauge mode
  sluice_redis_command_seconds histogram command
  sluice_redis_errors_total counter kind
  sluice_leases_lost_total counter reason
  sluice_dispatched_after_client_gone_total counter
  sluice_idempotent_replays_total counter upstream
  sluice_repeats_joined_total counter upstream
  sluice_repeats_made_again_total counter upstream`
  .trim()
  .split('\n')
  .map((row) => row.trim().split(' '))
  .map(([name = '', type = '', ...labels]) => [name, type, labels.toSorted().join(' ')] as const);

describe('a scrape of the metrics', () => {
  test('of thousands of series lets other events pass while it is written, and has each line once, also as OpenMetrics', async () => {
    const given = driven();
    for (let n = 0; n < 100; n++) for (const to of [lm, shop]) oneCall(given, `workspace-${n}`, to);
    const whole = await given.scrape();
    const { body: open, contentType } = await given.telemetry.metrics('openmetrics');
    let [turns, isWritten] = [0, false];
    const count = (): void => {
      turns += 1;
      if (!isWritten) setImmediate(count);
    };
    setImmediate(count);
    await given.scrape();
    isWritten = true;
    expect(turns).toBeGreaterThan(published.length / 2);
    for (const text of [whole, open]) {
      const lines = text.split('\n').filter((line) => line !== '');
      expect(new Set(lines).size).toBe(lines.length);
      expect(lines.filter((line) => line.startsWith('sluice_shed_total{')).length).toBeGreaterThan(1_000);
    }
    expect(contentType).toContain('application/openmetrics-text');
    expect(open).toContain('# TYPE sluice_requests counter\nsluice_requests_total{');
    expect(open.endsWith('\n# EOF\n')).toBe(true);
    expect(await given.scrape()).toBe(whole);
  });

  test('has exactly the published names, types, labels and, where they are a closed set, values', async () => {
    const given = driven();
    oneCall(given, 'acme');
    given.telemetry.reckoned('acme', 'lm', { kind: 'wait', waitMs: 1_500 });
    given.telemetry.reckoned('acme', 'lm', { kind: 'refuse', waitMs: 9_000, code: 'wait_too_long' });
    given.telemetry.redisCommand('append', 1);
    for (const mode of ['redis', 'local'] as const) given.telemetry.limiterMode(mode);
    given.telemetry.count('sluice_credential_renewals_total', { upstream: 'lm', outcome: 'renewed' });
    for (const name of ['idempotent_replays', 'repeats_joined', 'repeats_made_again'] as const)
      given.telemetry.count(`sluice_${name}_total`, { upstream: 'lm' });
    given.telemetry.observe({
      ...nothingKnown,
      ceilingsUsed: () => [
        { upstream: 'lm', minute: 0.25, day: 0 },
        { upstream: 'lm', minute: 0.5, day: 0.75 },
      ],
      credentials: () => [
        { upstream: 'lm', expiresInMs: 9_000 },
        { upstream: 'lm', expiresInMs: 3_000 },
      ],
      headrooms: () => Promise.resolve(new Map([['lm', 2]])),
    });
    const text = await given.scrape();
    const types = [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name, type]) => `${name} ${type}`);
    expect(types.toSorted()).toEqual(published.map(([name, type]) => `${name} ${type}`).toSorted());
    const values = new Map<string, Set<string>>();
    for (const [name, type, labels] of published) {
      const lines = [...text.matchAll(new RegExp(`^${name}(?:_bucket)?(?:\\{(.*)\\})? \\S+$`, 'gm'))];
      expect([name, lines.length > 0]).toEqual([name, true]);
      for (const [, inside = ''] of lines) {
        const pairs = [...inside.matchAll(/(\w+)="([^"]*)"/g)].filter(([, label]) => label !== 'le');
        const found = pairs.map(([, label = '']) => label).toSorted();
        expect([name, type, found.join(' ')]).toEqual([name, type, labels]);
        for (const [, label = '', value = ''] of pairs) {
          const key = `${name} ${label}`;
          values.set(key, (values.get(key) ?? new Set()).add(value));
        }
      }
    }
    const of = (key: string): string => [...(values.get(key) ?? [])].toSorted().join(' ');
    const sets = [
      ['sluice_requests_total outcome', 'client_gone failed ok rejected shed throttled upstream_error'],
      [
        'sluice_credential_renewals_total outcome',
        'address_denied grant_ended invalid missing refused renewed shared throttled timeout unreachable unwritable',
      ],
      [
        'sluice_shed_total reason',
        'day_quota_exhausted draining limiter_unavailable overloaded queue_full wait_expired wait_too_long',
      ],
      [
        'sluice_would_refuse_total reason',
        'day_quota_exhausted limiter_unavailable queue_full wait_expired wait_too_long',
      ],
      ['sluice_ceiling_used_ratio window', 'day minute'],
      ['sluice_limiter_mode mode', 'deny local memory redis'],
      ['sluice_upstream_throttles_total kind', 'permanent rate'],
      ['sluice_bucket_used_ratio dimension', 'cost requests requests_day tokens tokens_day'],
    ];
    expect(sets.map(([key = '']) => [key, of(key)])).toEqual(sets);
    expect(text.match(/^sluice_limiter_mode.* 1$/gm)).toEqual(['sluice_limiter_mode{mode="local"} 1']);
    // The next end, and the fullest ceiling.
    expect(text).toContain('sluice_credential_expires_seconds{upstream="lm"} 3\n');
    expect(text).toContain('sluice_ceiling_used_ratio{upstream="lm",window="minute"} 0.5\n');
    expect(text).toContain('sluice_ceiling_used_ratio{upstream="lm",window="day"} 0.75\n');
  });

  test('has the gauges of every configured upstream before the first call', async () => {
    const given = driven();
    for (const upstream of ['lm', 'shop']) {
      for (const name of ['queue_depth', 'queue_oldest_seconds', 'in_flight', 'bucket_closed_seconds']) {
        expect(await given.value(`sluice_${name}`, { upstream })).toBe(0);
      }
    }
    expect(await given.value('sluice_bucket_used_ratio', { upstream: 'lm', dimension: 'tokens' })).toBe(0);
    expect(
      await given.value('sluice_bucket_used_ratio', { upstream: 'lm', dimension: 'cost' }),
    ).toBeUndefined();
  });

  test('follows a reload that adds or removes an upstream', async () => {
    const given = driven();
    given.telemetry.reload({
      log: { level: 'info', sampleSuccesses: 1 },
      upstreams: new Map([[shop.name, shop]]),
    });
    expect(await given.value('sluice_queue_depth', { upstream: 'lm' })).toBeUndefined();
    expect(await given.value('sluice_queue_depth', { upstream: 'shop' })).toBe(0);
    expect(await given.value('sluice_breaker_open', { upstream: 'shop' })).toBe(0);
  });

  test('shows the fullest and the longest-closed bucket of an upstream', async () => {
    const given = driven();
    const meter = (level: number) => ({ meter: 'requests' as const, limit: 500, level, windowMs: 60_000 });
    const meters = [
      meter(400),
      { ...meter(450), meter: 'requests_hour' as const },
      { ...meter(475), meter: 'images' as const },
    ];
    given.telemetry.observe({
      ...nothingKnown,
      process: () => ({ ...idleProcess, heldBytes: 4096 }),
      buckets: () =>
        [{ closedMs: 2500, meters: [meter(100)] }, { meters }].map((each) => ({
          upstream: 'lm',
          snapshot: snapshot(each),
        })),
      breakers: () => [{ status: 402, since: 0, retryInMs: 1_000, said: null }],
      headrooms: () => Promise.resolve(new Map([['lm', 1.4]])),
    });
    expect(await given.value('sluice_breaker_open', { upstream: 'lm' })).toBe(1);
    expect(await given.value('sluice_headroom_ratio', { upstream: 'lm' })).toBe(1.4);
    expect(await given.value('sluice_headroom_ratio', { upstream: 'shop' })).toBeUndefined();
    const usedOf = (dimension: string) =>
      given.value('sluice_bucket_used_ratio', { upstream: 'lm', dimension });
    expect([await usedOf('requests'), await usedOf('images')]).toEqual([0.95, undefined]);
    expect(await given.value('sluice_bucket_closed_seconds', { upstream: 'lm' })).toBe(2.5);
    expect(await given.value('sluice_queue_bytes')).toBe(4096);
  });

  test('no longer has the series of a label that was taken back', async () => {
    const given = driven();
    for (let i = 0; i < 100; i++) oneCall(given, `ws-${i}`);
    given.clock.advance(16 * 60_000);
    const before = (await given.scrape()).split('\n').length;
    oneCall(given, 'one-more');
    expect((await given.scrape()).split('\n').length).toBe(before);
  });
});

describe('a workspace label', () => {
  test('is w_ and the first 16 hex digits of the keyed digest of the id', () => {
    const expected = createHmac('sha256', 'key').update('acme').digest('hex').slice(0, 16);
    expect(workspaceLabel('key', 'acme')).toBe(`w_${expected}`);
  });

  test('is kept while the workspace is active, at most 100 of them, and 10,000 further workspaces fold into other', () => {
    const labels = createLabels('key', settableClock());
    const first = Array.from({ length: 100 }, (_, i) => labels.of(`ws-${i}`));
    expect(new Set(first).size).toBe(100);
    expect(new Set(Array.from({ length: 10_000 }, (_, i) => labels.of(`late-${i}`)))).toEqual(
      new Set(['other']),
    );
    expect(labels.of('ws-0')).toBe(first[0]);
    expect(first.every((_, i) => labels.holds(`ws-${i}`))).toBe(true);
  });

  /** Labels for so many workspaces, which are idle after a minute. */
  function few(limit: number) {
    const clock = settableClock();
    const released: string[] = [];
    const onRelease = (label: string): void => void released.push(label);
    return { clock, released, labels: createLabels('key', clock, { limit, idleMs: 60_000, onRelease }) };
  }

  test('is taken back only from an idle workspace, with its series', () => {
    const { clock, released, labels } = few(2);
    const idle = labels.of('idle');
    clock.advance(30_000);
    labels.of('busy');
    expect(labels.of('late')).toBe('other');
    clock.advance(30_000);
    expect(labels.of('late')).toMatch(/^w_[0-9a-f]{16}$/);
    expect(released).toEqual([idle]);
    expect(labels.of('idle')).toBe('other');
  });

  const prefer = (labels: ReturnType<typeof createLabels>, busy: Readonly<Record<string, number>>) => {
    labels.prefer(new Map(Object.entries(busy)));
    return ['holder', 'first', 'least', 'late', 'a', 'b', 'c', 'd'].filter((id) => labels.holds(id));
  };

  test('goes from the least busy workspace to a clearly busier one, without the old series', () => {
    const { released, labels } = few(2);
    const [, least] = ['first', 'least'].map((id) => labels.of(id));
    expect(prefer(labels, { first: 20, least: 9, late: 20 })).toEqual(['first', 'late']);
    expect([released, labels.of('least')]).toEqual([[least], 'other']);
  });

  test('does not change hands between workspaces that are about as busy, nor between those with next to no calls', () => {
    const { labels } = few(1);
    labels.of('holder');
    for (const [holder, other] of [
      [100, 150],
      [0, 1],
      [1, 3],
    ])
      expect(prefer(labels, { holder: holder ?? 0, other: other ?? 0 })).toEqual(['holder']);
  });

  test('is given to the busiest first while there are labels left', () =>
    expect(prefer(few(2).labels, { a: 1, b: 8, c: 3, d: 9 })).toEqual(['b', 'd']));
});

test('a digest for shared keys differs by purpose, key and boundary between parts, and by nothing else', () => {
  const made = [
    ['key', 'bucket', 'a', 'bc'],
    ['key', 'bucket', 'ab', 'c'],
    ['key', 'bucket', 'abc'],
    ['key', 'lane', 'a', 'bc'],
    ['key2', 'bucket', 'a', 'bc'],
    ['key', 'bucket', 'a', 'bc', ''],
  ] as const;
  const digests = made.map((parts) => digest(...(parts as readonly [string, string, ...string[]])));
  expect(new Set(digests).size).toBe(made.length);
  for (const each of digests) expect(each).toMatch(/^[0-9a-f]{32}$/);
  expect(digest('key', 'bucket', 'a', 'bc')).toBe(digests[0]);
});
