/** Holds the folders of `test/` to those of `src/` and to test/README.md, and every path of a test that is written down to a file. */
import { existsSync, globSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from '@jest/globals';

const root = fileURLToPath(new URL('../../', import.meta.url));
const read = (file: string): string => readFileSync(`${root}${file}`, 'utf8');
const found = (pattern: string): string[] => globSync(pattern, { cwd: root }).toSorted();

const page = read('test/README.md');
const [, folders = '', lookingFor = ''] = page.split(/^## .*$/m);
/** Top folders that test what goes across `src/`, by the page. */
const crossCutting = [...folders.matchAll(/^\| `([\w-]+)\/`/gm)].map(([, name = '']) => name);

const tests = found('test/**/*.test.ts').map((file) => file.slice('test/'.length));
const isCrossCutting = (file: string): boolean => crossCutting.includes(file.split('/')[0] ?? '');
const mirroring = tests.filter((file) => !isCrossCutting(file));

/** The sources that a test imports, from the folders of `src/`: what stands in `src/` itself is used by all. */
const sourcesOf = (file: string): string[] =>
  [...read(`test/${file}`).matchAll(/(?:\.\.\/)+src\/([\w./-]+\/[\w.-]+\.ts)'/g)].map(
    ([, path = '']) => path,
  );

describe('a test folder', () => {
  test.each([...new Set(mirroring.map(dirname))])('has the name of a folder of src: %s', (folder) => {
    expect({ folder, exists: existsSync(`${root}src/${folder}`) }).toEqual({ folder, exists: true });
  });

  test('is named as cross-cutting in test/README.md only if it has no counterpart in src', () => {
    expect(crossCutting.length).toBeGreaterThan(5);
    expect(crossCutting.filter((name) => existsSync(`${root}src/${name}`))).toEqual([]);
    expect(crossCutting.filter((name) => !existsSync(`${root}test/${name}`))).toEqual([]);
  });

  /** Over Redis it is the store's agreement between replicas that is tested, by way of the policy. */
  const isOverRedis = (file: string): boolean => file.startsWith('limiter/redis/');
  const policyTests = mirroring.filter((file) => {
    const sources = sourcesOf(file);
    const isOfOneFolder = new Set(sources.map(dirname)).size === 1;
    return isOfOneFolder && sources.some((path) => path.endsWith('.policy.ts')) && !isOverRedis(file);
  });
  test.each(policyTests)('is the one of the policy that the test is about: %s', (file) => {
    expect(policyTests.length).toBeGreaterThan(20);
    expect(sourcesOf(file).map(dirname)).toContain(dirname(file));
  });
});

describe('a path of a test', () => {
  const named = [...lookingFor.matchAll(/`([\w/*.-]+(?:\.ts|\/))`/g)].map(([, path = '']) => `test/${path}`);
  test.each(named)('in test/README.md is one of a file: %s', (path) => {
    expect(found(path)).not.toEqual([]);
  });

  const writers = [
    ...found('{*.md,*.json,*.mjs,.ci/run}'),
    ...found('docs/**/*.md'),
    ...found('{src,test,scripts,bench}/**/*.{ts,mjs,lua}'),
  ].filter((file) => file !== 'package-lock.json');
  test('in a document, a comment or the configuration is one of a file', () => {
    const dangling = writers.flatMap((file) =>
      [...read(file).matchAll(/(?<![\w./-])test\/[\w/*.-]+\.(?:ts|mjs|json)\b/g)]
        .filter(([path]) => (path.includes('*') ? found(path).length === 0 : !existsSync(`${root}${path}`)))
        .map(([path]) => `${file}: ${path}`),
    );
    expect(dangling).toEqual([]);
  });
});
