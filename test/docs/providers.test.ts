/** Holds docs/upstreams/providers to the providers that are read, and to configuration that can be used. */
import { readFileSync, readdirSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { parseSettings } from '../../src/config/load.ts';
import { providers } from '../../src/dispatch/feedback/providers/providers.policy.ts';

const folder = new URL('../../docs/upstreams/providers/', import.meta.url);
const pages = readdirSync(folder).map((name) => ({
  name,
  text: readFileSync(new URL(name, folder), 'utf8'),
}));
const index = readFileSync(new URL('../../docs/upstreams/language-models.md', import.meta.url), 'utf8');
const hash = 'sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb';

test('every provider whose responses are read has a page, or a row on the page of the others', () => {
  const rows = pages.find(({ name }) => name === 'others.md')?.text.toLowerCase() ?? '';
  for (const provider of Object.keys(providers)) {
    const hasPage = pages.some(({ name }) => name.startsWith(provider));
    expect([provider, hasPage || rows.includes(`| ${provider} |`)]).toEqual([provider, true]);
  }
});

describe.each(pages)('$name', ({ name, text }) => {
  test('is linked from the page of all language models', () => {
    expect(index).toContain(`(providers/${name})`);
  });

  test('shows configuration that can be used', () => {
    const [, yaml = ''] = /```yaml\n([^]*?)```/.exec(text) ?? [];
    const config = { ...(parse(yaml) as object), workspaces: { acme: { keys: [hash] } } };
    const env = Object.fromEntries([...yaml.matchAll(/\$\{(\w+)\}/g)].map(([, key = '']) => [key, 'secret']));
    const settings = parseSettings(JSON.stringify(config), { path: 'test.yaml', env });
    expect([...settings.upstreams.values()].map(({ kind }) => kind)).toEqual(['language-model']);
  });
});
