/** A judge that cannot be had is said to be missing, with the reason and no other result: its silence is never a pass. */
import { afterEach, expect, test } from '@jest/globals';
import { execFile } from 'node:child_process';
import { chmod, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const root = new URL('../../', import.meta.url).pathname;
const folders: string[] = [];
afterEach(async () => {
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true });
});

async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-judges-test-'));
  folders.push(folder);
  return folder;
}

/** The run on a machine whose PATH has only these programs, given as shell scripts. */
async function run(programs: Readonly<Record<string, string>>, names: readonly string[] = []) {
  const path = await newFolder();
  await symlink('/bin/sh', join(path, 'sh'));
  for (const [name, script] of Object.entries(programs)) {
    await writeFile(join(path, name), `#!/bin/sh\n${script}\n`);
    await chmod(join(path, name), 0o755);
  }
  const env = { ...process.env, PATH: path, SLUICE_JUDGES_TOOLS: await newFolder() };
  return new Promise<{ status: unknown; lines: string[] }>((resolve) => {
    const args = ['scripts/verify-judges.ts', ...names];
    execFile(process.execPath, args, { cwd: root, env }, (failure, stdout, stderr) =>
      resolve({ status: failure?.code ?? 0, lines: `${stdout}${stderr}`.trim().split('\n') }),
    );
  });
}

const judges = ['schemathesis', 'httplint', 'porcupine'];

test.each([
  ['without Python and Go', {}, [/spawn python3 ENOENT/, /go: not found/]],
  [
    'where nothing can be downloaded',
    {
      python3:
        '/bin/mkdir -p "$3/bin"; printf \'#!/bin/sh\\necho no network of pip; exit 1\\n\' > "$3/bin/pip"; /bin/chmod +x "$3/bin/pip"',
      go: 'echo no network of go; exit 1',
    },
    [/pip: no network of pip/, /no network of go/],
  ],
] as const)('every judge is SKIPPED with its reason %s', async (_name, programs, reasons) => {
  const { status, lines } = await run(programs);
  const skipped = lines.filter((line) => line.startsWith('SKIPPED '));
  expect(skipped.map((line) => line.slice('SKIPPED '.length).split(':')[0])).toEqual(judges);
  for (const reason of reasons) expect(skipped.join('\n')).toMatch(reason);
  expect(lines.filter((line) => line.startsWith('ok '))).toEqual([]);
  expect([status, lines.at(-1)]).toEqual([0, `judges: 0 passed, 0 failed, ${judges.length} skipped`]);
});

test('a judge that does not exist ends the run, with the names of those that do', async () => {
  const { status, lines } = await run({}, ['httplinter']);
  expect([status, lines]).toEqual([2, [`no such judge: httplinter; there are ${judges.join(', ')}`]]);
});
