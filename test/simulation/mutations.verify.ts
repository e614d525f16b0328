/**
 * The histories can fail: every mutation is applied to a copy of the product and must be found within a bounded number
 * of seeds. Prints the table of lines and invariants.
 */
import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { execPath, stdout } from 'node:process';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { mutations, type Mutation } from './mutations.ts';

const execute = promisify(execFile);
const root = resolve(import.meta.dirname, '../..');
/** Seeds in which a mutation must be found. */
const mostSeeds = 4_000;
const needed = [
  'src/admission',
  'src/limiter',
  'src/dispatch/resend.policy.ts',
  'src/clock.ts',
  'src/errors.ts',
  'src/call.ts',
  'src/short-lived.ts',
  'test/simulation',
  'test/support/fake-clock.ts',
];

let folder = '';
const found: string[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sluice-mutations-'));
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
  await symlink(join(root, 'node_modules'), join(folder, 'node_modules'));
  for (const path of needed) {
    await mkdir(join(folder, path, '..'), { recursive: true });
    await cp(join(root, path), join(folder, path), { recursive: true });
  }
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
  stdout.write(`invariant | mutation | found by\n${found.join('\n')}\n`);
});

test('the product as it stands is not found wrong', async () => {
  expect(await firstFailure(200)).toBe('');
}, 60_000);

test.each(mutations.map((mutation) => [`${mutation.keeps}: ${mutation.what}`, mutation] as const))(
  'invariant %s',
  async (_, mutation) => {
    const failure = await withMutation(mutation, () => firstFailure(mostSeeds));
    found.push(`${mutation.keeps.padEnd(9)} | ${mutation.what} | ${failure.trim().slice(0, 110)}`);
    expect(failure).toMatch(/^seed \d+: /);
  },
  90_000,
);

async function withMutation<T>(mutation: Mutation, run: () => Promise<T>): Promise<T> {
  const path = join(folder, mutation.file);
  const source = await readFile(join(root, mutation.file), 'utf8');
  expect(source).toContain(mutation.find);
  await writeFile(
    path,
    source.replace(mutation.find, () => mutation.put),
  );
  try {
    return await run();
  } finally {
    await writeFile(path, source);
  }
}

/** First wrong history of the copy; a crash or a hang counts as found too. */
async function firstFailure(seeds: number): Promise<string> {
  const script = join(folder, 'test/simulation/run.ts');
  try {
    const { stdout: told } = await execute(execPath, [script, '1', String(seeds)], { timeout: 60_000 });
    return told;
  } catch (failure) {
    return `seed 0: the run broke: ${failure instanceof Error ? failure.message.slice(0, 200) : 'unknown'}`;
  }
}
