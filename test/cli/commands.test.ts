/**
 * What the command line says of mistakes and of itself; commands that read a configuration and write or show keys, labels and what the
 * configuration means, none of which shows a secret; and `sluice init`.
 */
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseEnv } from 'node:util';
import { afterAll, beforeEach, describe, expect, test } from '@jest/globals';
import { commandNames, commands } from '../../src/cli/commands.ts';
import { createKey } from '../../src/cli/keys.ts';
import { parseSettings } from '../../src/config/load.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { ran } from '../support/command.ts';

const said = (line: string) => ran(line.split(' ').filter((word) => word !== ''));

describe('the command line', () => {
  test.each([
    ['', 'Usage: sluice <command>'],
    ['start', 'Unknown command "start"'],
    ['chekc', 'Unknown command "chekc". Did you mean check?'],
    ['toString', 'Unknown command "toString"'],
    ['serve --conf x', "Unknown option '--conf'"],
    ['serve x.yaml', 'Unexpected "x.yaml"'],
    ['serve --config=', '--config is missing'],
    ['serve --config', '--config'],
    ['pause -u a --second 9', "Unknown option '--second'. Did you mean --seconds?"],
    ['pause -u a --seconds 25h', '--seconds is a time of whole seconds from 1 to 86400'],
    ['resume -u a --seconds 9', "Unknown option '--seconds'"],
    ['open', '--upstream is missing.\n\nUsage: sluice open --upstream NAME'],
    ['open -u a --admin b:1', '--admin is a URL'],
    ['init openai', 'Unexpected "openai".'],
    ['init --upstream http://api.example.com', 'For http:// say https://, then write http://'],
    ['init --upstream https://api.example.com/v1', '--upstream: write one of openai'],
    ['init --upstream opanai', 'did you mean openai?'],
    ['keys', '--workspace is missing'],
    ['keys creat --workspace x', 'Did you mean keys create?'],
    ['keys create', '--workspace is missing'],
    ['learn', 'Give one HAR file.'],
    ['demo --port 99999', '--port is a whole number from 0 to 65535'],
    ['demo --port -1', 'sluice demo [--calls N | --serve]'],
    ['demo --calls 9 --serve', '--calls and --serve exclude each other: --serve sends no burst.'],
    ['demo --calls 0', '--calls is a whole number'],
    ['demo --calls many', '--calls is a whole number'],
  ])('explains the usage error in %j', async (line, words) => {
    const { code, out, err } = await said(line);
    expect([code, out, err]).toEqual([2, '', expect.stringContaining(words)]);
    expect(err).toContain('Usage: sluice');
  });

  test.each(['--help', 'serve --help', 'check -h', 'keys create -h', 'keys --help', 'demo --help'])(
    'shows usage for %j',
    async (line) =>
      expect(await said(line)).toMatchObject({ code: 0, out: expect.stringMatching(/^Usage: sluice/) }),
  );

  test('knows its version and lists every command with its purpose', async () => {
    expect((await said('--version')).out).toMatch(/^\d+\.\d+\.\d+$/);
    const { out } = await said('--help');
    for (const name of commandNames) expect(out).toContain(`  ${name} `);
    for (const { purpose } of Object.values(commands)) expect(out).toContain(purpose);
  });
});

const now = Date.UTC(2026, 5, 1);
const folder = mkdtempSync(join(tmpdir(), 'sluice-keys-'));
afterAll(() => rmSync(folder, { recursive: true }));
const good = (name: string): string => new URL(`../config/good/${name}`, import.meta.url).pathname;

describe('sluice check', () => {
  const secrets = {
    REDIS_URL: 'redis://:canary-redis@127.0.0.1:6379',
    SLUICE_LABEL_KEY: 'canary-label-key-0001',
    OPENAI_API_KEY: 'canary-openai',
    SHOP_TOKEN: 'canary-shop',
    ACME_SHOP_TOKEN: 'canary-acme',
  };
  const check = (file: string, env = {}, at = now) =>
    ran(['check', '--config', good(file)], { env, now: at });

  test('sums up a usable file without a secret', async () => {
    const { code, out, err } = await check('contract.yaml', secrets);
    expect([code, err]).toEqual([0, '']);
    for (const words of [
      'openai (language-model): https://api.openai.com, credential: authorization, ceiling: 500/min 10000/day',
      'shop (commerce): https://*.myshopify.com',
      'acme: 1 key, may call: openai shop',
    ])
      expect(out).toContain(words);
    expect(out).not.toMatch(/canary|sha256|ca978112/);
  });

  test('reports every problem and ends with 1', async () => {
    const { code, out, err } = await check('contract.yaml');
    expect([code, out]).toEqual([1, '']);
    for (const name of Object.keys(secrets)) expect(err).toContain(name);
  });

  test.each([
    ['every-place.yaml', 'privacy.labelKey is not set: '],
    ['revoked.yaml', 'workspace acme has no valid key: nobody can call with this workspace\n'],
    ['revoked.yaml', 'workspace globex has no valid key: nobody can call with this workspace\n'],
    ['nobody-can-call.yaml', 'workspaces is empty: nobody can call\n'],
  ])('warns of what is probably unintended: %s, %s', async (file, warning) => {
    const { code, out } = await check(file, { PORT: '8123' }, Date.UTC(2028, 0, 1));
    expect(code).toBe(0);
    expect(`${out}\n`).toContain(`\nwarning: ${warning}`);
  });

  test.each(['check', 'serve'])(
    'and %s say how to write a first file where it is missing',
    async (command) => {
      const { code, err } = await ran([command, '--config', '/nowhere/sluice.yaml']);
      expect(code).toBe(1);
      expect(err).toMatch(/the file does not exist[^]*run `npx sluice init` to write one .* with --config/);
    },
  );
});

describe('sluice keys create', () => {
  const create = (workspace: string, ...more: readonly string[]) =>
    ran(['keys', 'create', '--workspace', workspace, ...more], { now });
  /** Settings of a file with the lines that were printed for it. */
  const pasted = (out: string) =>
    parseSettings(
      `upstreams: { a: { origins: ['https://a.example.com'] } }\n${out.slice(out.indexOf('workspaces:'))}`,
      { path: 'snippet', env: {} },
    );

  test('prints another key each time, once, with its hash, and lines that the configuration takes', async () => {
    const { out } = await create('acme', '--expires', '2027-01-01');
    const key = /^key: {2}(slc_[0-9a-f]{10}_[A-Za-z0-9_-]{43})$/m.exec(out)?.[1] ?? '';
    const sha256 = createHash('sha256').update(key).digest('hex');
    expect(out).toContain(`hash: sha256:${sha256}`);
    expect(out.split(key)).toHaveLength(2);
    const entry = { sha256, id: key.split('_')[1], expiresAt: Date.UTC(2027, 0, 1), isBackground: false };
    expect(pasted(out).workspaces.get('acme')?.keys).toEqual([entry]);
    expect((await create('acme', '--expires', '2027-01-01')).out).not.toBe(out);
  });

  test('quotes names of more than a word', async () =>
    expect([...pasted((await create('a: "b" # c')).out).workspaces.keys()]).toEqual(['a: "b" # c']));

  test.each([
    ['', null, 'is missing'],
    ['x'.repeat(129), null, '1 to 128 printable'],
    ['a\nb', null, '1 to 128 printable'],
    [' a', null, 'has a blank at either end'],
    ['acme', 'soon', 'not a date'],
    ['acme', '2026-02-31', 'not a date'],
    ['acme', '2020-01-01', 'in the past'],
  ])('refuses the name %j with the date %j', async (workspace, expires, reason) => {
    const { code, out, err } = await create(workspace, ...(expires === null ? [] : ['--expires', expires]));
    expect([code, out, err]).toEqual([2, '', expect.stringContaining(reason)]);
  });
});

describe('names in metrics and logs lead back to a workspace:', () => {
  const [first, second] = [createKey(), createKey()];
  const labelKey = 'a label key for tests only';
  const file = (privacy: string): string => {
    const path = join(folder, 'sluice.yaml');
    writeFileSync(
      path,
      `${privacy}
upstreams: { up: { origins: ["https://up.example"], credential: "Bearer canary" } }
workspaces:
  acme: { keys: [{ id: "${first.id}", hash: "${first.hash}" }], requestsPerMinute: none }
  "two words": { keys: ["${second.hash}"], requestsPerDay: { up: none } }
  nobody: { keys: [] }
`,
    );
    return path;
  };
  const labels = (privacy: string) => ran(['labels', '--config', file(privacy)], { now });

  test('sluice labels shows each with its key ids', async () => {
    const { code, out } = await labels(`privacy: { labelKey: "${labelKey}" }`);
    expect([code, out.split('\n')]).toEqual([
      0,
      [
        expect.stringMatching(/^label +workspace +keys$/),
        expect.stringMatching(`^${workspaceLabel(labelKey, 'acme')} +"acme" +${first.id}$`),
        expect.stringMatching(`^w_[0-9a-f]{16} +"two words" +${second.hash.slice(0, 19)}…$`),
        expect.stringMatching(/"nobody" +no key$/),
      ],
    ]);
    expect(out).not.toMatch(/canary|label key/);
  });

  test('sluice labels says that labels of no key do not last, and what to set', async () =>
    expect(await labels('')).toMatchObject({
      code: 1,
      err: expect.stringMatching(/^privacy\.labelKey is not set: .* Set it\.$/),
    }));
});

/** A folder of its own for each test. */
let initFolder: string;
beforeEach(() => void (initFolder = mkdtempSync(join(folder, 'init-'))));
const file = (name: string): string => join(initFolder, name);
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
