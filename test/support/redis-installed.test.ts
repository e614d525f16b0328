/** Where there is no redis-server, the tests say once how to get one, and those that need it fail at once. */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { execFile } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../', import.meta.url));
const setUp = join(root, 'test/support/redis-installed.mjs');
const folder = mkdtempSync(join(tmpdir(), 'sluice-no-redis-'));
const aptWasRun = join(folder, 'apt-was-run');

/** A folder for PATH, with these programs as shell scripts. */
function pathWith(name: string, programs: Readonly<Record<string, string>>): string {
  const path = join(folder, name);
  mkdirSync(path);
  for (const [program, script] of Object.entries(programs)) {
    writeFileSync(join(path, program), `#!/bin/sh\n${script}\n`);
    chmodSync(join(path, program), 0o755);
  }
  return path;
}
const nothing = pathWith('nothing', {});
const withApt = pathWith('with-apt', { 'apt-get': `: > ${aptWasRun}; echo no network of apt >&2; exit 100` });
const withServer = pathWith('with-server', { 'redis-server': 'exit 0' });

afterAll(() => rmSync(folder, { recursive: true }));

/** Runs Node, and gives what it wrote. Its exit code is that of Jest where tests fail. */
function run(
  args: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<{ readonly stdout: string; readonly stderr: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd: folder, env }, (_failure, stdout, stderr) =>
      resolve({ stdout, stderr }),
    );
  });
}

/** What the set-up says to the user with this id. */
async function said(userId: number, env: Readonly<Record<string, string>>): Promise<string> {
  const code = `process.getuid = () => ${userId}; await (await import(${JSON.stringify(setUp)})).default();`;
  const { stderr } = await run(['--no-warnings', '--input-type=module', '-e', code], env);
  return stderr;
}

const help =
  'Tests that need Redis start a server of their own: install it (Debian, Ubuntu: sudo apt-get install redis-server; ' +
  'macOS: brew install redis), or set REDIS_SERVER to the path of one.\n';

describe('the set-up of the tests', () => {
  test.each([
    ['a user without apt-get', 1_000, { PATH: nothing }],
    ['root without apt-get', 0, { PATH: nothing }],
    ['a user who may not use apt-get', 1_000, { PATH: withApt }],
  ])('says how to get redis-server to %s, and installs nothing', async (_who, userId, env) => {
    expect(await said(userId, env)).toBe(`redis-server is not on PATH. ${help}`);
    expect(existsSync(aptWasRun)).toBe(false);
  });

  test('says why apt-get installed nothing for root, and how to get redis-server otherwise', async () => {
    const words = await said(0, { PATH: withApt });
    expect(words).toContain('apt-get could not install redis-server: ');
    expect(words).toContain('no network of apt');
    expect(words).toContain(help);
  });

  test('says so when REDIS_SERVER names no program', async () => {
    const words = await said(1_000, { PATH: withServer, REDIS_SERVER: join(folder, 'absent') });
    expect(words).toBe(
      `REDIS_SERVER names ${join(folder, 'absent')}, which is not a program that can be run. ${help}`,
    );
  });

  test.each([
    ['is on PATH', { PATH: withServer }],
    ['is named by REDIS_SERVER', { PATH: nothing, REDIS_SERVER: join(withServer, 'redis-server') }],
  ])('says nothing when redis-server %s', async (_where, env) => {
    expect(await said(1_000, env)).toBe('');
  });
});

describe('without redis-server', () => {
  /** Members of Jest's JSON report. */
  interface Result {
    readonly name: string;
    readonly status: string;
    readonly message: string;
    readonly assertionResults: readonly unknown[];
  }
  const results = new Map<string, Result>();
  let printed = { stdout: '', stderr: '' };

  beforeAll(async () => {
    const tests = `import { test } from '@jest/globals'; test('one', () => {}); test('other', () => {});`;
    writeFileSync(join(folder, 'without.test.ts'), tests);
    const needs = `import { startRedis } from '${root}test/support/redis.ts'; export { startRedis };`;
    writeFileSync(join(folder, 'needs.test.ts'), `${needs} ${tests}`);
    const config = {
      rootDir: folder,
      cacheDirectory: join(folder, 'cache'),
      globalSetup: setUp,
      extensionsToTreatAsEsm: ['.ts'],
      transform: { '\\.ts$': join(root, 'test/support/strip-types.mjs') },
      testMatch: ['<rootDir>/*.test.ts'],
      reporters: [join(root, 'test/support/plain-summary.mjs')],
    };
    const report = join(folder, 'report.json');
    const jest = join(root, 'node_modules/jest/bin/jest.js');
    const options = ['--config', JSON.stringify(config), '--json', '--outputFile', report, '-i'];
    printed = await run(['--no-warnings', '--experimental-vm-modules', jest, ...options], { PATH: nothing });
    const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as { testResults: readonly Result[] };
    for (const result of testResults) results.set(basename(result.name), result);
  });

  test('a test file that needs it fails once, with the words of the set-up and no stack', () => {
    const { status, message, assertionResults } = results.get('needs.test.ts') ?? {};
    expect([status, assertionResults]).toEqual(['failed', []]);
    expect(message).toContain(`redis-server is not on PATH. ${help.trim()}`);
    expect(message).not.toContain('redis.ts:');
    expect(printed.stderr.split('redis-server is not on PATH.')).toHaveLength(2);
  });

  test('the last line of the run counts such a file as failed', () => {
    expect(printed.stdout).toContain('tests: 2 passed, 1 failed, 0 skipped\n');
  });

  test('a test file that does not need it passes', () => {
    expect(results.get('without.test.ts')).toMatchObject({ status: 'passed', assertionResults: [{}, {}] });
  });
});
