import { describe, expect, test } from '@jest/globals';
import { bucketParts, bucketSetting, ceilingLimits } from '../../src/admission/buckets.policy.ts';
import type { UpstreamLimits, UpstreamSettings, WorkspaceSettings } from '../../src/config/settings.ts';
import { unstatedLimits, upstreamSettings, workspaceSettings } from '../support/upstream-settings.ts';

const upstream = (
  kind: UpstreamSettings['kind'],
  own: Partial<UpstreamLimits> = {},
  bucketBy: UpstreamSettings['bucketBy'] = ['credential'],
): UpstreamSettings => upstreamSettings('u', [], { kind, limits: { ...unstatedLimits, ...own }, bucketBy });

const workspace = (perMinute: [string, number][], perDay: [string, number][] = []): WorkspaceSettings =>
  workspaceSettings('w', ['u'], {
    requestsPerMinute: new Map(perMinute),
    requestsPerDay: new Map(perDay),
  });

describe('the bucket of a call', () => {
  const call = { credential: 'c', host: 'a.example', model: 'm', separate: [] };

  test('is identified by the parts that the upstream counts by', () => {
    const parts = (by: UpstreamSettings['bucketBy']) => bucketParts(upstream('generic', {}, by), call);
    expect(parts(['credential'])).toEqual({
      upstream: 'u',
      credential: 'c',
      host: '',
      model: '',
      separate: [],
    });
    expect(parts(['credential', 'host']).host).toBe('a.example');
    expect(parts(['credential', 'model']).model).toBe('m');
    expect(
      bucketParts(upstream('generic', {}, ['credential', 'model']), { ...call, model: null }).model,
    ).toBe('');
  });

  test('has, for a commerce upstream, a meter of requests, and one of cost points where their limits are stated', () => {
    expect(bucketSetting(upstream('commerce')).meters).toEqual([
      { meter: 'requests', limit: 40, windowMs: 20_000 },
    ]);
    const stated = { cost: { capacity: 1_000, restorePerSecond: 50 }, requestsPerMinute: 120 };
    expect(bucketSetting(upstream('commerce', stated)).meters).toEqual([
      { meter: 'requests', limit: 40, windowMs: 20_000 },
      { meter: 'cost', limit: 1_000, windowMs: 20_000 },
    ]);
  });

  test('has, for a language model, a meter for each stated limit and none for the others', () => {
    const stated = { requestsPerMinute: 500, tokensPerMinute: 30_000, tokensPerDay: 1_000_000 };
    expect(bucketSetting(upstream('language-model', stated)).meters).toEqual([
      { meter: 'requests', limit: 500, windowMs: 60_000 },
      { meter: 'tokens', limit: 30_000, windowMs: 60_000 },
      { meter: 'tokens_day', limit: 1_000_000, windowMs: 86_400_000 },
    ]);
    expect(bucketSetting(upstream('language-model')).meters).toEqual([]);
  });

  test('has a cap on calls in flight where one is stated', () => {
    expect(bucketSetting(upstream('generic', { maxInFlightTotal: 3 })).maxInFlightTotal).toBe(3);
    expect(bucketSetting(upstream('generic'))).not.toHaveProperty('maxInFlightTotal');
  });

  test('starts with probes, unless nothing is known of the upstream', () => {
    expect(bucketSetting(upstream('language-model', { probe: 2 })).probe).toBe(2);
    expect(bucketSetting(upstream('commerce')).probe).toBe(1);
    expect(bucketSetting(upstream('generic')).probe).toBe(0);
    expect(bucketSetting(upstream('generic', { learn: false })).learn).toBe(false);
  });
});

describe('the ceiling of a workspace', () => {
  test('is the workspace’s own, else what the upstream states, else none', () => {
    const stated = upstream('generic', { requestsPerMinute: 40, requestsPerDay: 900 });
    expect(ceilingLimits(workspace([]), stated)).toEqual({ perMinute: 40, perDay: 900 });
    expect(ceilingLimits(workspace([['u', 7]], [['u', 8]]), stated)).toEqual({ perMinute: 7, perDay: 8 });
    expect(ceilingLimits(workspace([['other', 7]]), upstream('generic'))).toEqual({
      perMinute: null,
      perDay: null,
    });
  });
});
