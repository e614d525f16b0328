/** `sluice init`: what it writes can be used as it is, and nothing that was there is lost. */
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseEnv } from 'node:util';
import { beforeEach, expect, test } from '@jest/globals';
import { ran } from '../support/command.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-init-'));
});
const file = (name: string): string => join(folder, name);
const read = (name: string): string => readFileSync(file(name), 'utf8');
const init = (name = 'sluice.yaml', env = {}, ...more: readonly string[]) =>
  ran(['init', '--config', file(name), ...more], { env });
const check = (env = {}) => ran(['check', '--config', file('sluice.yaml')], { env });

test.each(['openai', 'shopify', 'https://api.example.com'])(
  'a first configuration for %s is usable once its credential is filled in',
  async (upstream) => {
    const { code, out } = await init('sluice.yaml', {}, '--upstream', upstream);
    expect(code).toBe(0);
    const secret = /Write the credential of the upstream into \S+: (\w+)=/.exec(out)?.[1] ?? 'not said';
    const refused = await check();
    expect([refused.code, refused.err]).toEqual([1, expect.stringContaining(`${secret}, which is empty`)]);

    writeFileSync(file('.env'), read('.env').replace(`${secret}=`, `${secret}=filled-in`));
    expect(await check()).toMatchObject({ code: 0, err: '' });
    const { SLUICE_KEY = '' } = parseEnv(read('.env'));
    expect(read('sluice.yaml')).toContain(createHash('sha256').update(SLUICE_KEY).digest('hex'));
    expect(read('sluice.yaml')).not.toContain(SLUICE_KEY);
    expect(statSync(file('.env')).mode & 0o077).toBe(0);
  },
);

test('the first call of an origin with a wildcard has a place for its host', async () => {
  const { out } = await init('sluice.yaml', {}, '--upstream', 'https://*.api.example.com:8443');
  expect(out).toMatch(/\/via\/api\/YOUR-HOST\.api\.example\.com:8443\/$/);
});

test('a variable of the environment stands before that of the file', async () => {
  await init();
  writeFileSync(file('.env'), read('.env').replace('OPENAI_API_KEY=', 'OPENAI_API_KEY=${NO'));
  const { code, err } = await check({ OPENAI_API_KEY: '' });
  expect([code, err]).toEqual([1, expect.stringContaining('OPENAI_API_KEY, which is empty')]);
});

test('an .env that exists keeps what it has, and gets what it lacks', async () => {
  writeFileSync(file('.env'), 'OPENAI_API_KEY=mine\nOTHER=1');
  const { code, out } = await init();
  expect([code, out.includes('Write the credential')]).toEqual([0, false]);
  expect(read('.env').startsWith('OPENAI_API_KEY=mine\nOTHER=1\n')).toBe(true);
  const written = { OPENAI_API_KEY: 'mine', SLUICE_KEY: expect.stringMatching(/^slc_/) };
  expect(parseEnv(read('.env'))).toMatchObject(written);
  expect(await check()).toMatchObject({ code: 0 });
});

test('a second time nothing is written, and it says what to do', async () => {
  await init();
  const before = [read('sluice.yaml'), read('.env')];
  const said = async (name: string) => Object.values(await init(name));
  expect(await said('sluice.yaml')).toEqual([1, '', expect.stringContaining('a file in another folder')]);
  expect(await said('other.yaml')).toEqual([1, '', expect.stringContaining('has a SLUICE_KEY already')]);
  expect([read('sluice.yaml'), read('.env')]).toEqual(before);
});

test.each([
  ['sluice', /^ {2}2\. npm run sluice -- check --config \S+\n {2}3\. npm run sluice -- serve /m],
  ['npx', /^ {2}3\. npx sluice serve /m],
  [undefined, /^ {2}2\. sluice check /m],
])('the next commands are written as this one was, by %s', async (npm_lifecycle_event, words) =>
  expect((await init('sluice.yaml', { npm_lifecycle_event })).out).toMatch(words),
);

test('a folder that is not there is said', async () => {
  const { code, err } = await init('nowhere/sluice.yaml');
  expect([code, err]).toEqual([1, expect.stringMatching(/could not be written.*nowhere/)]);
});
