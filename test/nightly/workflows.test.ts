/** What the workflows of GitHub run: every part of the nightly run, and no action that is not pinned to a version. */
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { parts } from '../../scripts/nightly/parts.ts';

const folder = new URL('../../.github/workflows/', import.meta.url);
const textOf = (file: string): string => readFileSync(new URL(file, folder), 'utf8');

test('the nightly workflow has a job for every part, and those that take hours run weekly', () => {
  const { jobs } = parse(textOf('nightly.yml')) as {
    readonly jobs: Readonly<
      Record<'part' | 'weekly', { readonly strategy: { readonly matrix: { readonly part: string[] } } }>
    >;
  };
  const named = (isWeekly: boolean): string[] =>
    parts.filter((part) => (part.isWeekly ?? false) === isWeekly).map(({ name }) => name);
  expect(jobs.part.strategy.matrix.part).toEqual(named(false));
  expect(jobs.weekly.strategy.matrix.part).toEqual(named(true));
});

test.each(readdirSync(folder))('%s runs scripts of package.json, and actions of a stated version', (file) => {
  const text = textOf(file);
  const { scripts } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    readonly scripts: Readonly<Record<string, string>>;
  };
  for (const [, script = ''] of text.matchAll(/npm run (?:--silent )?([\w:]+)/g))
    expect(Object.keys(scripts)).toContain(script);
  for (const [, action = ''] of text.matchAll(/uses: (\S+)/g))
    expect(action).toMatch(/^[\w-]+\/[\w-]+@v\d+$/);
});
