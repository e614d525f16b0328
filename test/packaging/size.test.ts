/**
 * What a user of the package installs: the packages of the lock file that are neither for tests nor for building. `npm run verify:package`
 * measures the bytes.
 */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';

interface Locked {
  readonly dev?: boolean;
  readonly devOptional?: boolean;
  /** A workspace of this repository. */
  readonly link?: boolean;
}
const read = (path: string): unknown =>
  JSON.parse(readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8'));
const lock = read('package-lock.json') as { readonly packages: Readonly<Record<string, Locked>> };

test('a user installs 200 packages at most, none of them an SDK, a browser, a generator or a Node', () => {
  const ofWorkspaces = Object.keys(
    (read('tools/node/package.json') as { optionalDependencies: object }).optionalDependencies,
  );
  const installed = Object.entries(lock.packages)
    .filter(
      ([path, { dev, devOptional, link }]) =>
        path.startsWith('node_modules/') && !(dev || devOptional || link),
    )
    .map(([path]) => path.replace('node_modules/', ''))
    .filter((name) => !ofWorkspaces.includes(name));
  expect(installed.length).toBeLessThanOrEqual(200);
  expect(
    installed.filter((name) => /openai|anthropic|playwright|grafana|jest|shopify|^node-/.test(name)),
  ).toEqual([]);
  expect(read('package.json')).not.toHaveProperty('optionalDependencies');
});
