import { describe, expect, test } from '@jest/globals';
import { createHash } from 'node:crypto';
import { readCommand } from '../../src/cli/commands.ts';
import { runCheck } from '../../src/cli/check.ts';
import type { CliIo } from '../../src/cli/io.ts';
import { runKeysCreate } from '../../src/cli/keys.ts';
import { parseSettings } from '../../src/config/load.ts';

/** A process that keeps what was written. */
function fakeIo(env: Record<string, string> = {}) {
  const written = { out: '', err: '' };
  const io: CliIo = {
    out: (text) => (written.out += `${text}\n`),
    err: (text) => (written.err += `${text}\n`),
    env,
    terminals: { out: null, err: false },
    readerGone: new AbortController().signal,
    clock: { now: () => Date.UTC(2026, 5, 1) },
  };
  return { io, written };
}

const fileOf = (name: string): string => new URL(`../config/${name}`, import.meta.url).pathname;

describe('the command line', () => {
  test.each([
    [['serve'], 'serve', { config: 'sluice.yaml' }],
    [['serve', '--config', 'a.yaml'], 'serve', { config: 'a.yaml' }],
    [['check', '-c', 'a.yaml'], 'check', { config: 'a.yaml', connect: false, against: null }],
    [['check', '--config=a.yaml'], 'check', { config: 'a.yaml', connect: false, against: null }],
    [['check', '--connect'], 'check', { config: 'sluice.yaml', connect: true, against: null }],
    [['keys', 'create', '--workspace', 'acme'], 'keys create', { workspace: 'acme', expires: null }],
    [
      ['keys', 'create', '--expires', '2027-01-01', '--workspace', 'a b'],
      'keys create',
      { workspace: 'a b', expires: '2027-01-01' },
    ],
    [['keys', 'list', '--find', 'ab'], 'keys list', { config: 'sluice.yaml', find: 'ab' }],
    [['labels', '--config', 'a.yaml'], 'labels', { config: 'a.yaml' }],
    [['demo'], 'demo', { serve: false, calls: 460, port: null, adminPort: null }],
    [['demo', '--calls', '9'], 'demo', { serve: false, calls: 9, port: null, adminPort: null }],
    [
      ['demo', '--serve', '--port', '0', '--admin-port', '9191'],
      'demo',
      { serve: true, calls: 460, port: 0, adminPort: 9191 },
    ],
    [['learn', 'a.har'], 'learn', { file: 'a.har' }],
    [['check', '--against', 'a.har'], 'check', { config: 'sluice.yaml', connect: false, against: 'a.har' }],
    [
      ['open', '-u', 'a'],
      'open',
      { verb: 'open', upstream: 'a', seconds: null, admin: 'http://127.0.0.1:9090' },
    ],
    [
      ['resume', '-u', 'a', '--admin', 'http://b'],
      'resume',
      { verb: 'resume', upstream: 'a', seconds: null, admin: 'http://b' },
    ],
    [
      ['pause', '-u', 'a', '--seconds', '90'],
      'pause',
      { verb: 'pause', upstream: 'a', seconds: 90, admin: 'http://127.0.0.1:9090' },
    ],
    [
      ['pause', '-u', 'a', '--seconds', '90s'],
      'pause',
      { verb: 'pause', upstream: 'a', seconds: 90, admin: 'http://127.0.0.1:9090' },
    ],
    [
      ['pause', '-u', 'a', '--seconds', '5m'],
      'pause',
      { verb: 'pause', upstream: 'a', seconds: 300, admin: 'http://127.0.0.1:9090' },
    ],
    [
      ['pause', '-u', 'a', '--seconds', '1.5h'],
      'pause',
      { verb: 'pause', upstream: 'a', seconds: 5400, admin: 'http://127.0.0.1:9090' },
    ],
    [
      ['pause', '-u', 'a'],
      'pause',
      { verb: 'pause', upstream: 'a', seconds: 86_400, admin: 'http://127.0.0.1:9090' },
    ],
  ])('accepts %j as %s', (argv, name, read) => {
    expect(readCommand(argv)).toEqual({ kind: 'command', name, read, run: expect.any(Function) });
  });

  test('knows its version and lists every command with its purpose', () => {
    expect(readCommand(['--version'])).toEqual({ kind: 'version' });
    const overview = readCommand(['--help']);
    const text = overview.kind === 'help' ? overview.text : '';
    for (const name of ['serve', 'check', 'keys create', 'keys list', 'pause', 'demo'])
      expect(text).toMatch(new RegExp(`^  ${name} +[a-z]`, 'm'));
  });

  test.each([
    [[], 'Usage: sluice <command>'],
    [['start'], 'Unknown command "start"'],
    [['chekc'], 'Unknown command "chekc". Did you mean check?'],
    [['pause', '-u', 'a', '--second', '9'], "Unknown option '--second'. Did you mean --seconds?"],
    [['pause', '-u', 'a', '--seconds', '25h'], '--seconds is a time above 0'],
    [['init', 'openai'], 'Unexpected "openai". Say --upstream openai.'],
    [
      ['init', 'https://api.example.com'],
      'Unexpected "https://api.example.com". Say --upstream https://api.',
    ],
    [['init', '--upstream', 'http://api.example.com'], 'For http:// say https://, then write http://'],
    [['init', '--upstream', 'https://api.example.com/v1'], '--upstream is one of openai'],
    [['resume', '-u', 'a', '--seconds', '9'], "Unknown option '--seconds'"],
    [['open', '-u', 'a', '--admin', 'b:1'], '--admin is a URL'],
    [['toString'], 'Unknown command "toString"'],
    [['serve', '--conf', 'x'], "Unknown option '--conf'"],
    [['serve', 'x.yaml'], 'Unexpected "x.yaml"'],
    [['serve', '--config', ''], '--config needs a file name'],
    [['serve', '--config'], '--config'],
    [['keys'], 'The two things to do with keys are: create and list.\n'],
    [['keys', 'creat'], 'The two things to do with keys are: create and list. Did you mean create?'],
    [['completion', 'zhs'], 'Give one of bash, zsh, fish. Did you mean zsh?'],
    [['init', '--upstream', 'opanai'], 'Did you mean openai?'],
    [['keys', 'delete', '--workspace', 'x'], 'create'],
    [['keys', 'create'], '--workspace is missing'],
    [['demo', '--port', '99999'], 'A port is a whole number'],
    [['demo', '--port', '-1'], 'sluice demo'],
    [['demo', '--calls', '9', '--serve'], '--calls and --serve exclude each other'],
    [['demo', '--calls', '0'], '--calls is a whole number'],
    [['demo', '--calls', 'many'], '--calls is a whole number'],
  ])('explains the usage error in %j', (argv, text) => {
    const command = readCommand(argv);
    expect(command.kind).toBe('usage-error');
    expect(command.kind === 'usage-error' ? command.text : '').toContain(text);
    expect(command.kind === 'usage-error' ? command.text : '').toContain('Usage: sluice');
  });

  test.each([[['--help']], [['serve', '--help']], [['check', '-h']], [['keys', '-h']], [['demo', '--help']]])(
    'shows the usage for %j',
    (argv) => {
      const command = readCommand(argv);
      expect(command.kind === 'help' ? command.text : '').toMatch(/^Usage: sluice/);
    },
  );
});

describe('sluice check', () => {
  const secrets = {
    REDIS_URL: 'redis://:canary-redis@127.0.0.1:6379',
    SLUICE_LABEL_KEY: 'canary-label-key-0001',
    OPENAI_API_KEY: 'canary-openai',
    SHOP_TOKEN: 'canary-shop',
    ACME_SHOP_TOKEN: 'canary-acme',
  };

  test('sums up a usable file without a secret', async () => {
    const { io, written } = fakeIo(secrets);
    expect(await runCheck({ config: fileOf('good/contract.yaml'), connect: false, against: null }, io)).toBe(
      0,
    );
    expect(written.err).toBe('');
    expect(written.out).toContain(
      'openai (language-model): https://api.openai.com, credential: authorization, ceiling: 500/min 10000/day',
    );
    expect(written.out).toContain('shop (commerce): https://*.myshopify.com');
    expect(written.out).toContain('acme: 1 key, may call: openai shop, own ceilings: openai 300/min');
    expect(written.out).not.toMatch(/canary|sha256|ca978112/);
  });

  test('reports every problem and ends with 1', async () => {
    const { io, written } = fakeIo();
    expect(await runCheck({ config: fileOf('good/contract.yaml'), connect: false, against: null }, io)).toBe(
      1,
    );
    expect(written.out).toBe('');
    for (const name of Object.keys(secrets)) expect(written.err).toContain(name);
  });

  test('warns of settings that are probably unintended', async () => {
    const { io, written } = fakeIo({ PORT: '8123' });
    io.clock.now = () => Date.UTC(2028, 0, 1);
    expect(
      await runCheck({ config: fileOf('good/every-place.yaml'), connect: false, against: null }, io),
    ).toBe(0);
    expect(written.out).toContain('warning: privacy.labelKey is not set');
    expect(written.out).toContain('warning: workspace acme & söhne: 1 of 2 keys expired\n');
  });

  test.each([
    ['good/revoked.yaml', 'workspace acme has no key: nobody can call with this workspace'],
    ['good/revoked.yaml', 'workspace globex: 1 of 1 keys expired: nobody can call with this workspace'],
    ['good/nobody-can-call.yaml', 'workspaces is empty: nobody can call'],
  ])('warns when no workspace can call an upstream: %s, %s', async (file, warning) => {
    const { io, written } = fakeIo();
    expect(await runCheck({ config: fileOf(file), connect: false, against: null }, io)).toBe(0);
    expect(written.out.split('\n')).toContain(`warning: ${warning}`);
  });
});

describe('sluice keys create', () => {
  test('prints a key once, with its hash, and lines that the configuration takes', async () => {
    const { io, written } = fakeIo();
    expect(await runKeysCreate({ workspace: 'acme', expires: '2027-01-01' }, io)).toBe(0);
    const key = /^key: {2}(slc_[0-9a-f]{10}_[A-Za-z0-9_-]{43})$/m.exec(written.out)?.[1] ?? '';
    const digest = createHash('sha256').update(key).digest('hex');
    expect(written.out).toContain(`hash: sha256:${digest}`);
    expect(written.out.split(key)).toHaveLength(2);
    const snippet = written.out.slice(written.out.indexOf('workspaces:'));
    const settings = parseSettings(`upstreams: { a: { origins: ['https://a.example.com'] } }\n${snippet}`, {
      path: 'snippet',
      env: {},
    });
    expect(settings.workspaces.get('acme')?.keys).toEqual([
      { sha256: digest, id: key.split('_')[1], expiresAt: Date.UTC(2027, 0, 1), isBackground: false },
    ]);
  });

  test('quotes names of more than a word', async () => {
    const { io, written } = fakeIo();
    await runKeysCreate({ workspace: 'a: "b" # c', expires: null }, io);
    const snippet = written.out.slice(written.out.indexOf('workspaces:'));
    const text = `upstreams: { a: { origins: ['https://a.example.com'] } }\n${snippet}`;
    expect([...parseSettings(text, { path: 'snippet', env: {} }).workspaces.keys()]).toEqual(['a: "b" # c']);
  });

  test('makes a different key each time', async () => {
    const runs = [fakeIo(), fakeIo()];
    for (const { io } of runs) await runKeysCreate({ workspace: 'acme', expires: null }, io);
    expect(runs[0]?.written.out).not.toBe(runs[1]?.written.out);
  });

  test.each([
    ['', null, 'is empty'],
    ['x'.repeat(129), null, 'longer than 128'],
    ['a\nb', null, 'cannot be printed'],
    [' a', null, 'starts or ends with a blank'],
    ['acme', 'soon', 'not a date'],
    ['acme', '2026-02-31', 'not a date'],
    ['acme', '2020-01-01', 'in the past'],
  ])('refuses the name %j with the date %j', async (workspace, expires, reason) => {
    const { io, written } = fakeIo();
    expect(await runKeysCreate({ workspace, expires }, io)).toBe(2);
    expect(written.out).toBe('');
    expect(written.err).toContain(reason);
  });
});
