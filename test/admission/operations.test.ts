/** Which windows a call counts in, where an upstream has some for single operations. */
import { describe, expect, test } from '@jest/globals';
import { settingsOfOperation } from '../../src/admission/buckets.policy.ts';
import type { UpstreamSettings } from '../../src/config/settings.ts';
import { parseSettings } from '../../src/config/load.ts';

function upstreamOf(speaks: string): UpstreamSettings {
  const text = `upstreams: { api: { origins: ['https://api.example.com'], speaks: ${speaks} } }\nworkspaces: {}\n`;
  const upstream = parseSettings(text, { path: 'sluice.yaml', env: {} }).upstreams.get('api');
  if (upstream === undefined) throw new Error('no upstream');
  return upstream;
}

const described = upstreamOf(`{ windows: [
  { requests: 100, seconds: 60 },
  { requests: 1, seconds: 1, calls: GET /search/code },
  { requests: 2, seconds: 1, calls: ['GET /search/{}', /find] },
  { requests: 9, seconds: 60, calls: ['GET /search/{}', /find] },
  { requests: 3, seconds: 1, calls: 'PUT /items/{*}' },
  { requests: 4, seconds: 1, calls: DELETE }] }`);
const limitsFor = (operation: string, upstream = described): readonly number[] =>
  (settingsOfOperation(upstream, operation).dialect?.windows ?? []).map(({ requests }) => requests);

describe('a call counts in', () => {
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
  ])(
    'the windows of the first calls that it is one of, else in those of all others: %s',
    (operation, limits) => {
      expect(limitsFor(operation)).toEqual(limits);
    },
  );
});

test('calls without an operation have the settings of their upstream themselves, those of one operation the same ones', () => {
  expect(settingsOfOperation(described, 'GET /')).toBe(described);
  expect(settingsOfOperation(described, 'POST /find')).toBe(
    settingsOfOperation(described, 'GET /search/issues'),
  );
});

test('a preset keeps its windows for calls that the file does not name', () => {
  const search = 'POST /crm/v3/objects/contacts/search';
  const faster = upstreamOf('{ preset: hubspot, windows: [{ requests: 190, seconds: 10 }] }');
  expect([limitsFor('GET /crm/v3/objects/contacts', faster), limitsFor(search, faster)]).toEqual([
    [190],
    [5],
  ]);
  const own = upstreamOf(`{ preset: hubspot, windows: [{ requests: 4, seconds: 1, calls: '${search}' }] }`);
  expect([limitsFor('GET /crm/v3/objects/contacts', own), limitsFor(search, own)]).toEqual([[100], [4]]);
});
