/** What a user installs: the packages of the lock file that are neither for tests nor for building. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';

interface Locked {
  readonly dev?: boolean;
  readonly devOptional?: boolean;
}
const lock = JSON.parse(readFileSync(new URL('../../package-lock.json', import.meta.url), 'utf8')) as {
  readonly packages: Readonly<Record<string, Locked>>;
};

test('a user installs 200 packages at most, none of them an SDK, a browser or a generator', () => {
  const installed = Object.entries(lock.packages)
    .filter(([path, { dev = false, devOptional = false }]) => path !== '' && !dev && !devOptional)
    .map(([path]) => path);
  expect(installed.length).toBeLessThanOrEqual(200);
  expect(installed.filter((path) => /openai|anthropic|playwright|grafana|jest|shopify/.test(path))).toEqual(
    [],
  );
});
