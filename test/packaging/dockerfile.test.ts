import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';

test('no script of a package runs while the image is built', () => {
  const text = readFileSync('Dockerfile', 'utf8').replaceAll('\\\n', ' ');
  const installing = text
    .split(/\n|&&/)
    .filter((line) => /\bnpm (ci|install|i|prune|rebuild)\b/.test(line) && !line.startsWith('#'));
  expect(installing.length).toBeGreaterThanOrEqual(2);
  for (const line of installing) expect(line).toContain('--ignore-scripts');
});

test('what the build reads is in the build context', () => {
  const build = readFileSync('scripts/build.mjs', 'utf8');
  const read = [...build.matchAll(/(?:cpSync|readdirSync|readFileSync)\(['`]([\w-]+)/g)].map(
    ([, folder]) => folder,
  );
  const sent = readFileSync('.dockerignore', 'utf8').matchAll(/^!([\w-]+)/gm);
  expect(read.length).toBeGreaterThan(2);
  expect([...sent].map(([, folder]) => folder)).toEqual(expect.arrayContaining(read));
});
