/** `sluice init`: what it writes can be used as it is, and nothing that was there is lost. */
import { mkdtempSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseEnv } from 'node:util';
import { beforeEach, expect, test } from '@jest/globals';
import { createHash } from 'node:crypto';
import { readCommand } from '../../src/cli/commands.ts';
import { firstUpstreams } from '../../src/cli/first-upstreams.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-init-'));
});

/** Runs a command line as a person would, in an environment without variables. */
async function run(...argv: readonly string[]): Promise<{ code: number; out: string; err: string }> {
  return runIn({}, argv);
}

async function runIn(env: Readonly<Record<string, string>>, argv: readonly string[]) {
  const written = { out: '', err: '' };
  const command = readCommand(argv);
  if (command.kind !== 'command') throw new Error(`no command: ${argv.join(' ')}`);
  const code = await command.run({
    out: (text) => (written.out += `${text}\n`),
    err: (text) => (written.err += `${text}\n`),
    env,
    terminals: { out: null, err: false },
    readerGone: new AbortController().signal,
    clock: { now: () => Date.UTC(2026, 5, 1) },
  });
  return { code, ...written };
}
const file = (name: string): string => join(folder, name);
const read = (name: string): string => readFileSync(file(name), 'utf8');

test.each([...firstUpstreams, 'https://api.example.com'])(
  'a first configuration for %s is usable once its credential is filled in',
  async (upstream) => {
    const config = file('sluice.yaml');
    const { code, out } = await run('init', '--upstream', upstream, '--config', config);
    expect(code).toBe(0);
    const secret = /Write the credential of the upstream into \S+: (\w+)=/.exec(out)?.[1] ?? 'not said';
    const refused = await run('check', '--config', config);
    expect([refused.code, refused.err]).toEqual([1, expect.stringContaining(`${secret}, which is empty`)]);

    writeFileSync(file('.env'), read('.env').replace(`${secret}=`, `${secret}=filled-in`));
    expect(await run('check', '--config', config)).toMatchObject({ code: 0, err: '' });
    const { SLUICE_KEY = '' } = parseEnv(read('.env'));
    expect(read('sluice.yaml')).toContain(createHash('sha256').update(SLUICE_KEY).digest('hex'));
    expect(read('sluice.yaml')).not.toContain(SLUICE_KEY);
    expect(statSync(file('.env')).mode & 0o077).toBe(0);
  },
);

test('a variable of the environment stands before that of the file', async () => {
  const config = file('sluice.yaml');
  await run('init', '--config', config);
  writeFileSync(file('.env'), read('.env').replace('OPENAI_API_KEY=', 'OPENAI_API_KEY=${NO'));
  const command = readCommand(['check', '--config', config]);
  const said: string[] = [];
  const io = {
    out: () => {},
    err: (text: string) => void said.push(text),
    env: { OPENAI_API_KEY: '' },
    terminals: { out: null, err: false },
    readerGone: new AbortController().signal,
  };
  const code = command.kind === 'command' ? await command.run({ ...io, clock: { now: () => 0 } }) : null;
  expect([code, said.join()]).toEqual([1, expect.stringContaining('OPENAI_API_KEY, which is empty')]);
});

test('an .env that exists keeps what it has, and gets what it lacks', async () => {
  writeFileSync(file('.env'), 'OPENAI_API_KEY=mine\nOTHER=1');
  const { code, out } = await run('init', '--config', file('sluice.yaml'));
  expect([code, out.includes('Write the credential')]).toEqual([0, false]);
  expect(read('.env').startsWith('OPENAI_API_KEY=mine\nOTHER=1\n')).toBe(true);
  expect(parseEnv(read('.env'))).toMatchObject({
    OPENAI_API_KEY: 'mine',
    SLUICE_KEY: expect.stringMatching(/^slc_/),
  });
  expect(await run('check', '--config', file('sluice.yaml'))).toMatchObject({ code: 0 });
});

test('a second time nothing is written, and it says what to do', async () => {
  await run('init', '--config', file('sluice.yaml'));
  const before = [read('sluice.yaml'), read('.env')];
  const again = await run('init', '--config', file('sluice.yaml'));
  const beside = await run('init', '--config', file('other.yaml'));
  expect([again.code, again.err]).toEqual([1, expect.stringContaining('name a file in another folder')]);
  expect([beside.code, beside.err]).toEqual([1, expect.stringContaining('has a SLUICE_KEY already')]);
  expect([read('sluice.yaml'), read('.env')]).toEqual(before);
});

test('the next commands are written as this one was', async () => {
  const argv = ['init', '--config', file('sluice.yaml')];
  expect((await runIn({ npm_lifecycle_event: 'sluice' }, argv)).out).toMatch(
    /^ {2}2\. npm run sluice -- check --connect --config \S+\n {2}3\. npm run sluice -- serve /m,
  );
  writeFileSync(file('.env'), '');
  const npx = { npm_lifecycle_event: 'npx' };
  expect((await runIn(npx, ['init', '--config', file('more.yaml')])).out).toMatch(
    /^ {2}3\. npx sluice serve /m,
  );
  writeFileSync(file('.env'), '');
  expect((await run('init', '--config', file('others.yaml'))).out).toMatch(
    /^ {2}2\. sluice check --connect /m,
  );
});

test('a folder that is not there is said', async () => {
  const { code, err } = await run('init', '--config', file('nowhere/sluice.yaml'));
  expect([code, err]).toEqual([1, expect.stringMatching(/could not be written.*nowhere/)]);
});
