/** The table of docs/upstreams/apis.md is current, and the configuration that the page shows can be used. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { parseSettings } from '../../src/config/load.ts';
import { pageWithTable } from '../../scripts/presets-table.ts';

const page = readFileSync(new URL('../../docs/upstreams/apis.md', import.meta.url), 'utf8');

test('docs/upstreams/apis.md has the table that scripts/presets-table.ts writes', () => {
  expect(page).toBe(pageWithTable(page));
});

test('what docs/upstreams/apis.md shows as configuration can be used', () => {
  const examples = [...page.matchAll(/```yaml\n([^]*?)```/g)].map(([, text = '']) => text);
  expect(examples).toHaveLength(2);
  const hash = 'sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb';
  for (const example of examples) {
    const yaml = JSON.stringify({ ...(parse(example) as object), workspaces: { acme: { keys: [hash] } } });
    const settings = parseSettings(yaml, {
      path: 'test.yaml',
      env: { HUBSPOT_TOKEN: 'hubspot-token', ACME_TOKEN: 'acme-token' },
    });
    expect([...settings.upstreams.values()].every(({ dialect }) => dialect !== null)).toBe(true);
  }
});
