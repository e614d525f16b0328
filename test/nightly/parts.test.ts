/** Parts of the nightly run as processes: what becomes of each, and that all of them exist. */
import { readFileSync } from 'node:fs';
import { execPath } from 'node:process';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from '@jest/globals';
import { parts } from '../../scripts/nightly/parts.ts';
import { runPart, summedUp } from '../../scripts/nightly/run.ts';

const figuresFile = fileURLToPath(new URL('../../scripts/nightly/figures.ts', import.meta.url));
const part = (source: string) => ({
  name: 'a part',
  what: 'nothing',
  command: [execPath, '--input-type=module', '--eval', source] as const,
});

describe('a part', () => {
  test('that ends well has passed, with its totals and its figures', async () => {
    const outcome = await runPart(
      part(`
        import { record } from '${figuresFile}';
        record({ name: 'a', value: 1.5, unit: '× plain' }, { name: 'b', value: 2, unit: 'µs' });
        console.log('soak: 3 passed, 0 failed, 0 skipped');`),
    );
    expect(outcome).toMatchObject({ result: 'passed', words: 'soak: 3 passed, 0 failed, 0 skipped' });
    expect(outcome.figures).toEqual([
      { name: 'a', value: 1.5, unit: '× plain' },
      { name: 'b', value: 2, unit: 'µs' },
    ]);
    expect(outcome.minutes).toBeGreaterThan(0);
  });

  test('that breaks off has failed, and keeps the figures that it had', async () => {
    const outcome = await runPart(
      part(`
        import { record } from '${figuresFile}';
        record({ name: 'a', value: 1, unit: 's' });
        process.exit(3);`),
    );
    expect(outcome).toMatchObject({ result: 'FAILED', words: 'ended with 3' });
    expect(outcome.figures).toHaveLength(1);
  });

  test('that is killed has failed', async () => {
    const outcome = await runPart(part(`process.kill(process.pid, 'SIGKILL');`));
    expect(outcome).toMatchObject({ result: 'FAILED', words: 'ended with SIGKILL' });
  });

  test('whose program is not there has failed, and says so', async () => {
    const outcome = await runPart({ ...part(''), command: ['no-such-program-of-sluice'] });
    expect(outcome.result).toBe('FAILED');
    expect(outcome.words).toContain('ENOENT');
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

test('every part is a script of package.json', () => {
  const { scripts } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    readonly scripts: Readonly<Record<string, string>>;
  };
  for (const { command } of parts) expect(Object.keys(scripts)).toContain(command[3]);
});
