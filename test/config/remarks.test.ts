import { expect, test } from '@jest/globals';
import { parseSettings } from '../../src/config/load.ts';
import { configurationRemarks } from '../../src/config/warnings.ts';

const hash = `sha256:${'0'.repeat(64)}`;
const remarksOf = (upstream: string, workspace = '', more = ''): readonly string[] =>
  configurationRemarks(
    parseSettings(
      `privacy: { labelKey: "a label key for tests only" }
upstreams:
  shop: { ${upstream} }
workspaces:
  acme: { keys: ["${hash}"]${workspace} }
${more}
`,
      { path: 'test.yaml', env: {} },
    ),
  );
const shops = 'kind: commerce, origins: ["https://*.myshopify.com"]';
const common = 'credential: { header: x-shopify-access-token, value: token }';

test('one quota for all shops of a wildcard is remarked on', () => {
  const limits = 'limits: { requestsPerMinute: none }';
  expect(remarksOf(`${shops}, ${common}, ${limits}`)).toEqual([
    expect.stringContaining('upstream shop: all hosts under its wildcard share one quota'),
  ]);
  expect(remarksOf(`${shops}, ${common}, ${limits}, bucketBy: [credential, host]`)).toEqual([]);
  expect(remarksOf(`${shops}, ${limits}`)).toEqual([]);
});

test('a ceiling of the day that a restart forgets is remarked on', () => {
  const minute = 'requestsPerMinute: none';
  const forgotten = [expect.stringContaining('upstream shop: without redis, the count of requestsPerDay')];
  expect(remarksOf(`${shops}, limits: { ${minute}, requestsPerDay: 100 }`)).toEqual(forgotten);
  expect(remarksOf(`${shops}, limits: { ${minute} }`, ', requestsPerDay: { shop: 100 }')).toEqual(forgotten);
  expect(remarksOf(`${shops}, limits: { ${minute}, requestsPerDay: none }`)).toEqual([]);
  expect(
    remarksOf(`${shops}, limits: { ${minute}, requestsPerDay: 100 }`, '', 'redis: { url: "redis://redis" }'),
  ).toEqual([]);
});

test('a default ceiling that nobody wrote is remarked on, with its number', () => {
  expect(remarksOf(shops)).toEqual([
    expect.stringContaining('may send 40 calls a minute until a response states one'),
  ]);
  expect(remarksOf(`${shops}, limits: { requestsPerMinute: 40 }`)).toEqual([]);
  expect(remarksOf(shops, ', requestsPerMinute: { shop: 10 }')).toEqual([]);
  expect(remarksOf(`${shops}, mode: observe`)).toEqual([]);
});
