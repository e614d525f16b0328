/** Which bucket, windows and ceiling a call counts in. */
import { describe, expect, test } from '@jest/globals';
import {
  bucketParts,
  bucketSetting,
  ceilingLimits,
  settingsOfOperation,
} from '../../src/admission/buckets.policy.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { UpstreamLimits, UpstreamSettings } from '../../src/config/settings.ts';
import { unstatedLimits, upstreamSettings, workspaceSettings } from '../support/upstream-settings.ts';

const upstream = (kind: UpstreamSettings['kind'], own: Partial<UpstreamLimits> = {}): UpstreamSettings =>
  upstreamSettings('u', [], { kind, limits: { ...unstatedLimits, ...own } });

describe('the bucket of a call', () => {
  test.each<[UpstreamSettings['bucketBy'], string | null, object]>([
    [['credential'], 'm', { host: '', model: '' }],
    [['credential', 'host'], 'm', { host: 'a.example', model: '' }],
    [['credential', 'model'], 'm', { host: '', model: 'm' }],
    [['credential', 'model'], null, { host: '', model: '' }],
  ])('is identified by what the upstream counts by: %j of model %p', (bucketBy, model, parts) => {
    const call = { credential: 'c', host: 'a.example', model, separate: [] };
    const found = bucketParts({ ...upstream('generic'), bucketBy }, call);
    expect(found).toEqual({ upstream: 'u', credential: 'c', separate: [], ...parts });
  });

  const leak = { meter: 'requests', limit: 40, windowMs: 20_000 };
  test.each<[UpstreamSettings['kind'], Partial<UpstreamLimits>, object[]]>([
    ['commerce', {}, [leak]],
    [
      'commerce',
      { cost: { capacity: 1_000, restorePerSecond: 50 }, requestsPerMinute: 120 },
      [leak, { meter: 'cost', limit: 1_000, windowMs: 20_000 }],
    ],
    [
      'language-model',
      { requestsPerMinute: 500, tokensPerMinute: 30_000, tokensPerDay: 1_000_000 },
      [
        { meter: 'requests', limit: 500, windowMs: 60_000 },
        { meter: 'tokens', limit: 30_000, windowMs: 60_000 },
        { meter: 'tokens_day', limit: 1_000_000, windowMs: 86_400_000 },
      ],
    ],
    ['language-model', {}, []],
  ])('of a %s upstream with %j has the meters %j', (kind, stated, meters) => {
    expect(bucketSetting(upstream(kind, stated)).meters).toEqual(meters);
  });

  test('has a cap on calls in flight where one is stated', () => {
    expect(bucketSetting(upstream('generic', { maxInFlightTotal: 3 })).maxInFlightTotal).toBe(3);
    expect(bucketSetting(upstream('generic'))).not.toHaveProperty('maxInFlightTotal');
  });

  test('starts with probes, unless nothing is known of the upstream', () => {
    const all = [upstream('language-model', { probe: 2 }), upstream('commerce'), upstream('generic')];
    expect(all.map((each) => bucketSetting(each).probe)).toEqual([2, 1, 0]);
    expect(bucketSetting(upstream('generic', { learn: false })).learn).toBe(false);
  });
});

test.each<[object, object, object]>([
  [{}, { requestsPerMinute: 40, requestsPerDay: 900 }, { perMinute: 40, perDay: 900 }],
  [
    { requestsPerMinute: { u: 7 }, requestsPerDay: { u: 8 } },
    { requestsPerMinute: 40 },
    { perMinute: 7, perDay: 8 },
  ],
  [{ requestsPerMinute: { other: 7 } }, {}, { perMinute: null, perDay: null }],
])('a ceiling is what the workspace has, else what the upstream states: %j %j', (own, stated, limits) => {
  const maps = Object.entries(own).map(([name, of]) => [name, new Map(Object.entries(of as object))]);
  const workspace = workspaceSettings('w', ['u'], Object.fromEntries(maps));
  expect(ceilingLimits(workspace, upstream('generic', stated))).toEqual(limits);
});

describe('where an upstream has windows for single operations, a call counts in', () => {
  function upstreamOf(speaks: string): UpstreamSettings {
    const text = `upstreams: { api: { origins: ['https://api.example.com'], speaks: ${speaks} } }\nworkspaces: {}\n`;
    const found = parseSettings(text, { path: 'sluice.yaml', env: {} }).upstreams.get('api');
    if (found === undefined) throw new Error('no upstream');
    return found;
  }
  const described = upstreamOf(`{ windows: [
    { requests: 100, seconds: 60 },
    { requests: 1, seconds: 1, calls: GET /search/code },
    { requests: 2, seconds: 1, calls: ['GET /search/{}', /find] },
    { requests: 9, seconds: 60, calls: ['GET /search/{}', /find] },
    { requests: 3, seconds: 1, calls: 'PUT /items/{*}' },
    { requests: 4, seconds: 1, calls: DELETE }] }`);
  const limitsFor = (operation: string, of = described): readonly number[] =>
    (settingsOfOperation(of, operation).dialect?.windows ?? []).map(({ requests }) => requests);

  test.each([
    ['GET /search/code', [1]],
    ['GET /search/issues', [2, 9]],
    ['GET /search/issues/', [2, 9]],
    ['HEAD /search/issues', [2, 9]],
    ['GET /search//', [100]],
    ['POST /find', [2, 9]],
    ['POST /search/issues', [100]],
    ['GET /search', [100]],
    ['GET /search/', [100]],
    ['GET /search/code/more', [100]],
    ['PUT /items/7', [3]],
    ['DELETE /items/7', [4]],
    ['DELETE /', [4]],
    ['GET /', [100]],
    ['* *', [100]],
  ])('those of the first calls that it is one of, else in those of all others: %s', (operation, limits) => {
    expect(limitsFor(operation)).toEqual(limits);
  });

  test('those of its upstream itself where it has no operation; calls of one operation have the same ones', () => {
    expect(settingsOfOperation(described, 'GET /')).toBe(described);
    const found = settingsOfOperation(described, 'POST /find');
    expect(found).toBe(settingsOfOperation(described, 'GET /search/issues'));
  });

  test('those of its preset where the file does not name it', () => {
    const [contacts, search] = ['GET /crm/v3/objects/contacts', 'POST /crm/v3/objects/contacts/search'];
    const faster = upstreamOf('{ preset: hubspot, windows: [{ requests: 190, seconds: 10 }] }');
    expect([limitsFor(contacts, faster), limitsFor(search, faster)]).toEqual([[190], [5]]);
    const own = upstreamOf(`{ preset: hubspot, windows: [{ requests: 4, seconds: 1, calls: '${search}' }] }`);
    expect([limitsFor(contacts, own), limitsFor(search, own)]).toEqual([[100], [4]]);
  });
});
