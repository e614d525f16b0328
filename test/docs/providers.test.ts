/** The configuration that the pages of docs/upstreams/providers show can be used. */
import { readFileSync, readdirSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { parseSettings } from '../../src/config/load.ts';

const folder = new URL('../../docs/upstreams/providers/', import.meta.url);
const pages = readdirSync(folder).map((name) => ({
  name,
  text: readFileSync(new URL(name, folder), 'utf8'),
}));
const hash = 'sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb';

test.each(pages)('$name shows configuration that can be used', ({ text }) => {
  const [, yaml = ''] = /```yaml\n([^]*?)```/.exec(text) ?? [];
  const config = { ...(parse(yaml) as object), workspaces: { acme: { keys: [hash] } } };
  const env = Object.fromEntries([...yaml.matchAll(/\$\{(\w+)\}/g)].map(([, key = '']) => [key, 'secret']));
  const settings = parseSettings(JSON.stringify(config), { path: 'test.yaml', env });
  expect([...settings.upstreams.values()].map(({ kind }) => kind)).toEqual(['language-model']);
});
