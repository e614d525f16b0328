/** What the image runs is compiled; what is not reached by an import there is still found. */
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
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
  await run(process.execPath, ['scripts/build.mjs', join(folder, 'dist')], { cwd: root });
});

afterAll(() => rmSync(folder, { recursive: true }));

test('the compiled sources have the presets', async () => {
  const file = join(folder, 'preset.yaml');
  writeFileSync(
    file,
    JSON.stringify({
      upstreams: { hub: { origins: ['https://api.github.com'], credential: 'Bearer one', speaks: 'github' } },
      workspaces: { acme: { keys: [`sha256:${'ab'.repeat(32)}`] } },
    }),
  );
  const { stdout } = await run(process.execPath, [join(folder, 'dist/main.js'), 'check', '--config', file]);
  expect(stdout).toContain(`${file}: usable`);
});

test('the thread that checks a configuration also starts from the compiled sources', async () => {
  const task = { text: `upstreams: {} ${' '.repeat(20_000)}`, path: 'compiled.yaml', env: {} };
  const code = `const { settingsApart } = await import(${JSON.stringify(join(folder, 'dist/src/config/load.js'))});
    await settingsApart(${JSON.stringify(task)}, new AbortController().signal).catch((error) => console.log(error.message));`;
  const { stdout } = await run(process.execPath, ['--input-type=module', '-e', code]);
  expect(stdout).toContain('line 1, workspaces: is missing');
});
