/** The first file that a command runs says which Node is needed, also to a Node that could not read the sources. */
import { execFile, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from '@jest/globals';

const entry = 'bin/sluice.mjs';
const words = (version: string): string =>
  `Sluice needs Node 24.18.1 or newer; this is ${version}. Older versions drop header fields that frame a body. ` +
  'Install Node 24: https://nodejs.org/en/download\n';

/** What the command says in a process that takes itself for this version. */
async function saidBy(version: string): Promise<unknown> {
  const pretence = `Object.defineProperty(process.versions, 'node', { value: '${version}' })`;
  const args = ['--import', `data:text/javascript,${encodeURIComponent(pretence)}`, entry, '--help'];
  const { stdout, stderr, code } = await promisify(execFile)(process.execPath, args)
    .then((said) => ({ ...said, code: 0 }))
    .catch((failure: { stdout: string; stderr: string; code: number }) => failure);
  return { stderr, code, helped: stdout.startsWith('Usage: sluice') };
}

test.each(['14.21.3', '20.19.5', '24.18.0'])('Node %s is told which one is needed', async (version) =>
  expect(await saidBy(version)).toEqual({ stderr: words(version), code: 1, helped: false }),
);

test.each(['24.18.1', '24.19.0', '26.0.0'])('Node %s runs the command', async (version) =>
  expect(await saidBy(version)).toMatchObject({ code: 0, helped: true }),
);

test('so is every Node of this machine that is too old', () => {
  for (const node of new Set(
    (process.env['PATH'] ?? '').split(delimiter).map((folder) => join(folder, 'node')),
  )) {
    if (!existsSync(node)) continue;
    const version = spawnSync(node, ['--version'], { encoding: 'utf8' }).stdout.trim().slice(1);
    if (Number(version.split('.')[0]) >= 24) continue;
    const { status, stderr } = spawnSync(node, [entry], { encoding: 'utf8' });
    expect({ status, stderr }).toEqual({ status: 1, stderr: words(version) });
  }
});
