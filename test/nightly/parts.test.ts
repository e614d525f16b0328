/** Parts of the nightly run as processes: what becomes of each, that all of them exist, and that the workflows run them. */
import { readdirSync, readFileSync } from 'node:fs';
import { execPath } from 'node:process';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { parts } from '../../scripts/nightly/parts.ts';
import { runPart, summedUp } from '../../scripts/nightly/run.ts';

const figuresFile = fileURLToPath(new URL('../../scripts/nightly/figures.ts', import.meta.url));
const part = (source: string) => ({
  name: 'a part',
  what: 'nothing',
  command: [execPath, '--input-type=module', '--eval', source] as const,
});

describe('a part', () => {
  const figures = [
    { name: 'a', value: 1.5, unit: '× plain' },
    { name: 'b', value: 2, unit: 'µs' },
  ];
  const totals = 'soak: 3 passed, 0 failed, 0 skipped';
  const recording = `import { record } from '${figuresFile}'; record(...${JSON.stringify(figures)});`;

  test.each([
    ['ends well', `${recording} console.log('${totals}');`, 'passed', totals, figures],
    ['breaks off', `${recording} process.exit(3);`, 'FAILED', 'ended with 3', figures],
    ['is killed', `process.kill(process.pid, 'SIGKILL');`, 'FAILED', 'ended with SIGKILL', []],
  ])('that %s is told with what it printed last, and keeps the figures that it had', async (...row) => {
    const [, source, result, words, kept] = row;
    const outcome = await runPart(part(source));
    expect(outcome).toMatchObject({ result, words: expect.stringContaining(words), figures: kept });
    expect(outcome.minutes).toBeGreaterThan(0);
  });

  test('whose program is not there has failed, and says so', async () => {
    const outcome = await runPart({ ...part(''), command: ['no-such-program-of-sluice'] });
    expect([outcome.result, outcome.words]).toEqual(['FAILED', expect.stringContaining('ENOENT')]);
  });

  test.each([
    [0, ['image: 2 passed, 0 failed, 1 skipped', 'SKIPPED image: no docker'], 'passed'],
    [0, ['SKIPPED Kubernetes: no go', 'kubernetes: 0 passed, 0 failed, 1 skipped'], 'not run'],
    [1, ['SKIPPED image: no docker', 'packaging: 1 passed, 1 failed, 1 skipped'], 'FAILED'],
    [0, ['mutations: 3 found, 1 survive for a reason, 0 found by nobody'], 'passed'],
    [0, [], 'passed'],
  ] as const)('that ends with %d after %j', (code, lines, result) => {
    const summary = summedUp(code, lines);
    expect(summary.result).toBe(result);
    // Whatever was left out is in the summary, with its reason.
    for (const line of lines) expect(summary.words).toContain(line);
  });
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
