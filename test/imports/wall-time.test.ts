/**
 * No test asserts how long something took by the system's clock: such an assertion fails on a busy machine. Instants that a
 * fixture recorded may be compared, because "not before a stated time" holds on every machine.
 */
import { expect, test } from '@jest/globals';
import { globSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../', import.meta.url));

const reading = /\b(?:performance|Date)\.now\(\)/;
/** A constant that is the time elapsed until now. */
const elapsed = /\b(?:const|let) (\w+) = (?:performance|Date)\.now\(\) - /g;
/** What is asserted about: the argument of `expect`, with calls of one level in it. */
const asserted = /\bexpect\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)/g;

/** The arguments of `expect` that are measured by the system's clock. */
function wallTimesIn(source: string): readonly string[] {
  const names = [...source.matchAll(elapsed)].map(([, name = '']) => name);
  const isMeasured = (text: string): boolean =>
    reading.test(text) || names.some((name) => new RegExp(`\\b${name}\\b`).test(text));
  return [...source.matchAll(asserted)].map(([, text = '']) => text).filter(isMeasured);
}

test.each([
  [
    'an elapsed time',
    'expect(performance.now() - startedAt).toBeLessThan(3_000);',
    'performance.now() - startedAt',
  ],
  ['an elapsed time of the day', 'expect(Date.now() - at).toBeLessThan(9);', 'Date.now() - at'],
  [
    'a constant that is one',
    'const tookMs = performance.now() - startedAt;\nexpect(Math.round(tookMs)).toBe(3);',
    'Math.round(tookMs)',
  ],
])('%s in an assertion is found', (_, source, found) => {
  expect(wallTimesIn(source)).toEqual([found]);
});

test('a comparison of recorded instants is none', () => {
  expect(wallTimesIn('const at = performance.now();\nexpect(grantedAt - at).toBeGreaterThan(2);')).toEqual(
    [],
  );
});

test('no test asserts on the system’s clock', () => {
  const files = globSync('test/**/*.ts', { cwd: root }).filter((file) => !file.endsWith('wall-time.test.ts'));
  const found = files.flatMap((file) =>
    wallTimesIn(readFileSync(`${root}${file}`, 'utf8')).map((text) => `${file}: ${text}`),
  );
  expect(found).toEqual([]);
});
