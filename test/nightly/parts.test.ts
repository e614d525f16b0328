/** Parts of the nightly run: how each is summed up, that all of them exist, and that the workflows run them. */
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { parts } from '../../scripts/nightly/parts.ts';
import { summedUp } from '../../scripts/nightly/run.ts';

test.each([
  [0, ['image: 2 passed, 0 failed, 1 skipped', 'SKIPPED image: no docker'], 'passed'],
  [0, ['SKIPPED Kubernetes: no go', 'kubernetes: 0 passed, 0 failed, 1 skipped'], 'not run'],
  [1, ['SKIPPED image: no docker', 'packaging: 1 passed, 1 failed, 1 skipped'], 'FAILED'],
  [0, ['mutations: 3 found, 1 survive for a reason, 0 found by nobody'], 'passed'],
  [0, [], 'passed'],
] as const)('a part that ends with %d after %j', (code, lines, result) => {
  const summary = summedUp(code, lines);
  expect(summary.result).toBe(result);
  // Whatever was left out is in the summary, with its reason.
  for (const line of lines) expect(summary.words).toContain(line);
});

const folder = new URL('../../.github/workflows/', import.meta.url);
const textOf = (file: string): string => readFileSync(new URL(file, folder), 'utf8');
const { scripts } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  readonly scripts: Readonly<Record<string, string>>;
};

test('every part is a script of package.json', () => {
  for (const { command } of parts) expect(Object.keys(scripts)).toContain(command[3]);
});

test('the nightly workflow has a job for every part, and those that take hours run weekly', () => {
  interface Job {
    readonly strategy: { readonly matrix: { readonly part: string[] } };
  }
  const { jobs } = parse(textOf('nightly.yml')) as {
    readonly jobs: Readonly<Record<'part' | 'weekly', Job>>;
  };
  const named = (isWeekly: boolean): string[] =>
    parts.filter((one) => (one.isWeekly ?? false) === isWeekly).map(({ name }) => name);
  expect(jobs.part.strategy.matrix.part).toEqual(named(false));
  expect(jobs.weekly.strategy.matrix.part).toEqual(named(true));
});

test.each(readdirSync(folder))('%s runs scripts of package.json, and actions of a stated version', (file) => {
  for (const [, script = ''] of textOf(file).matchAll(/npm run (?:--silent )?([\w:]+)/g))
    expect(Object.keys(scripts)).toContain(script);
  for (const [, action = ''] of textOf(file).matchAll(/uses: (\S+)/g))
    expect(action).toMatch(/^[\w-]+\/[\w-]+@v\d+$/);
});
