/** Commands that read a configuration and write or show keys, labels and what the configuration means; none shows a secret. */
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { parseSettings } from '../../src/config/load.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { ran } from '../support/command.ts';

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
