/** What the image runs is compiled; what is not reached by an import there is still found. */
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from '@jest/globals';

const run = promisify(execFile);
const root = new URL('../..', import.meta.url).pathname;
const folder = mkdtempSync(join(tmpdir(), 'sluice-compiled-'));

beforeAll(async () => {
  cpSync(join(root, 'package.json'), join(folder, 'package.json'));
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  const compiler = join(root, 'node_modules/typescript/bin/tsc');
  await run(process.execPath, [
    compiler,
    '-p',
    join(root, 'tsconfig.build.json'),
    '--outDir',
    join(folder, 'dist'),
  ]);
});

afterAll(() => rmSync(folder, { recursive: true }));

test('the thread that checks a configuration also starts from the compiled sources', async () => {
  const task = { text: 'upstreams: {}', path: 'compiled.yaml', env: {} };
  const code = `const { checkInThread } = await import(${JSON.stringify(join(folder, 'dist/src/config/check-thread.js'))});
    await checkInThread(${JSON.stringify(task)}, new AbortController().signal).catch((error) => console.log(error.message));`;
  const { stdout } = await run(process.execPath, ['--input-type=module', '-e', code]);
  expect(stdout).toContain('line 1, upstreams: is empty');
});
