/** Every whole configuration that a document shows can be used. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { filled, parse as parseSettings } from '../config/parse.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
const hash = 'sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb';
const pages = execFileSync('git', ['ls-files', '-co', '--exclude-standard', 'README.md', 'docs/*.md'], {
  cwd: root,
  encoding: 'utf8',
})
  .split('\n')
  .filter((path) => path !== '');

const shown = pages.flatMap((page) =>
  [...readFileSync(`${root}${page}`, 'utf8').matchAll(/```yaml\n([^]*?)```/g)]
    .map(([, yaml = ''], index) => ({ page, index, yaml }))
    .filter(({ yaml }) => /^upstreams:/m.test(yaml)),
);

test.each(shown)('block $index of $page', ({ yaml }) => {
  const file = { workspaces: { acme: { keys: [hash] } }, ...(parse(yaml) as object) };
  expect(parseSettings(JSON.stringify(file), filled(yaml)).upstreams.size).toBeGreaterThan(0);
});

test('there are such blocks', () => expect(shown.length).toBeGreaterThan(5));
