/** What the pod of `helm test` runs, taken from the chart and run beside a gateway: a release that does not reach its Redis fails it. */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { afterEach, expect, test } from '@jest/globals';
import { clean, serve, yamlOf } from '../cli/started.ts';
import { freePort } from '../support/free-port.ts';
import { until } from '../support/until.ts';

afterEach(clean);

const template = readFileSync('helm/sluice/templates/tests/serves.yaml', 'utf8');
const [, program = ''] = /- -e\n\s+- \|\n([^]*?)\n\s+- http:/.exec(template) ?? [];

/** Exit code and words of the program, asked about this gateway. */
async function tested({
  url,
  adminUrl,
}: Awaited<ReturnType<typeof serve>>): Promise<readonly [code: number, words: string]> {
  return promisify(execFile)(process.execPath, ['-e', program, url, adminUrl])
    .then(({ stdout }) => [0, stdout] as const)
    .catch(({ code, stdout }: { code: number; stdout: string }) => [code, stdout] as const);
}

test('a release that serves passes', async () => {
  expect(await tested(await serve(yamlOf()))).toEqual([
    0,
    'readyz 200: ok\na call without a key: 401 unauthenticated\n',
  ]);
});

test('a release that has never reached its Redis fails, also when its pods are ready', async () => {
  const redis = `redis: { url: "redis://127.0.0.1:${await freePort()}", replicas: 2, startSeconds: 1 }`;
  const served = await serve(yamlOf('', redis));
  await until(async () => (await fetch(`${served.adminUrl}/readyz`)).status === 200);
  const [code, words] = await tested(served);
  expect([code, words]).toEqual([1, expect.stringMatching(/^Redis has never been reached/m)]);
});
