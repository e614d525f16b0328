/** Holds docs/upstreams/apis.md to the presets, and each preset to its file and its source. */
import { readFileSync, readdirSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { parseSettings } from '../../src/config/load.ts';
import { presetNames } from '../../src/config/presets/names.ts';
import { presets } from '../../src/config/presets/presets.ts';
import { pageWithTable } from '../../scripts/presets-table.ts';

const page = readFileSync(new URL('../../docs/upstreams/apis.md', import.meta.url), 'utf8');
const folder = new URL('../../src/config/presets/', import.meta.url);

test('docs/upstreams/apis.md has the table that scripts/presets-table.ts writes', () => {
  expect(page).toBe(pageWithTable(page));
});

test('each preset has a file of its name, a source and a row of its own', () => {
  const files = readdirSync(folder).map((file) => file.replace('.ts', ''));
  expect(files.filter((file) => !['names', 'preset', 'presets'].includes(file)).toSorted()).toEqual([
    ...presetNames,
  ]);
  for (const name of presetNames) {
    expect(presets[name].source).toMatch(/^https:\/\//);
    expect(page.split('\n').filter((line) => line.startsWith(`| \`${name}\` |`))).toHaveLength(1);
  }
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
