import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, describe, expect, test } from '@jest/globals';
import { LineCounter, parseDocument } from 'yaml';
import { readDocument } from '../../src/config/check-text.ts';
import { loadSettings, type Env } from '../../src/config/load.ts';
import type { UpstreamSettings } from '../../src/config/settings.ts';
import { file, parse, problemsOf } from './parse.ts';

const pathOf = (name: string): string => new URL(name, import.meta.url).pathname;
const upstreamOf = (text: string, env: Env = {}): UpstreamSettings | undefined =>
  parse(text, env).upstreams.get('api');
const pathsOf = (text: string): string[] =>
  problemsOf(text)
    .map(({ path }) => path)
    .toSorted();

test.each([
  ['in lines', 'a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n'],
  ['in braces', 'a: { b: 1, c: 2, b: 3 }\n'],
  ['three times', 'a: 1\na: 2\nb: 1\na: 3\n'],
  ['in a list of sections', 'a:\n  - { b: 1 }\n  - b: 1\n    b: 2\n'],
  ['by number and by text', '1: x\n"1": y\n1.0: z\n'],
  ['in quotes and without', 'a: 1\n"a": 2\n'],
  ['as a merge', 'x: &x { b: 1 }\ny:\n  <<: *x\n  <<: *x\n'],
  ['in another section only', 'a: { b: 1 }\nc: { b: 1 }\n'],
])('a key that stands twice is reported where the parser would report it: %s', (_, text) => {
  const lines = new LineCounter();
  const { errors } = parseDocument(text, { lineCounter: lines, merge: true, prettyErrors: false });
  expect(errors.every(({ code }) => code === 'DUPLICATE_KEY')).toBe(true);
  const expected = errors.map(({ pos }) => lines.linePos(pos[0]).line);
  expect(readDocument(text, {}).faults.map(({ line }) => line)).toEqual(expected);
});

test('a thousand workspaces may share one section by its anchor, and a section that unfolds without bound is refused', () => {
  const names = Array.from({ length: 1_000 }, (_, index) => `w${index}`);
  const written = (name: string, index: number): string =>
    `  ${name}: { keys: [], upstreams: ${index === 0 ? '&all [api]' : '*all'} }\n`;
  const [upstreams = ''] = file().split('workspaces:');
  const text = `${upstreams}workspaces:\n${names.map(written).join('')}`;
  expect([...(parse(text).workspaces.get('w999')?.upstreams ?? [])]).toEqual(['api']);
  const tenOf = (n: number): string => `&a${n} [${`*a${n - 1}, `.repeat(10)}]`;
  const layers = ['&a0 [x]', ...Array.from({ length: 8 }, (_, at) => tenOf(at + 1))];
  const [fault] = readDocument(`[${layers.join(', ')}]`, {}).faults;
  expect(fault?.reason).toContain('multiply too far');
});

describe('the address of the admin port', () => {
  test.each([
    ['', {}, '127.0.0.1'],
    ['', { SLUICE_ADMIN_HOST: '0.0.0.0' }, '0.0.0.0'],
    ['', { SLUICE_ADMIN_HOST: '' }, '127.0.0.1'],
    ['server: { adminHost: 10.0.0.1 }\n', { SLUICE_ADMIN_HOST: '0.0.0.0' }, '10.0.0.1'],
  ])('is, for %j and %j, %s', (more, env, expected) =>
    expect(parse(file({ more }), env).server.adminHost).toBe(expected),
  );

  test('is 0.0.0.0 in the image, whose port nobody reaches otherwise', () =>
    expect(readFileSync('Dockerfile', 'utf8')).toMatch(/^ENV SLUICE_ADMIN_HOST=0\.0\.0\.0$/m));
});

describe('defaults', () => {
  // Those that stand in the schema are held by published.test.ts.
  test('that follow from other keys, or from the absence of a key, are filled in', () => {
    const { server, redis, upstreams, workspaces } = parse(file());
    const [maxReplayBytes, maxHeldBytes] = [10_485_760, 268_435_456];
    expect(server).toMatchObject({ adminHost: '127.0.0.1', adminToken: null, maxReplayBytes, maxHeldBytes });
    expect(redis).toBeNull();
    expect(upstreams.get('api')).toMatchObject({
      credential: null,
      bucketBy: ['credential'],
      commentMs: null,
      caFile: null,
      timeouts: { connectMs: 10_000, headMs: 300_000, idleMs: 300_000, totalMs: null },
      limits: { maxQueued: 1000, maxWaitSeconds: 75, maxWaitCeilingSeconds: 600, learn: true, probe: 1 },
    });
    expect(workspaces.get('acme')).toMatchObject({ weight: 1, upstreams: new Set(['api']) });
  });

  test.each([
    ['generic', null, null, null, 300_000],
    ['language-model', 500, 10_000, null, 300_000],
    ['commerce', 40, null, 1, 60_000],
  ] as const)('of kind %s are those of the platform', (kind, perMinute, perDay, maxInFlight, headMs) => {
    const upstream = upstreamOf(file({ api: `kind: ${kind}, ` }));
    expect(upstream?.limits).toMatchObject({
      requestsPerMinute: perMinute,
      requestsPerDay: perDay,
      maxInFlight,
      maxInFlightTotal: null,
      bucket: { capacity: 40, leakPerSecond: 2 },
      cost: null,
    });
    expect(upstream?.timeouts.headMs).toBe(headMs);
  });

  test('give a label key of the process without Redis, the same for every load', () => {
    const [first, second] = [parse(file()).privacy, parse(file()).privacy];
    expect(first.labelKeyGenerated).toBe(true);
    expect(first.labelKey.length).toBeGreaterThanOrEqual(32);
    expect(second.labelKey).toBe(first.labelKey);
  });
});

describe('a setting with several sources', () => {
  const settings = loadSettings({ path: pathOf('good/every-place.yaml'), env: { PORT: '8123' } });
  const [shop, stats] = ['shop', 'stats'].map((name) => settings.upstreams.get(name));

  test('merges limits, the nearest source first', () => {
    expect(settings.server.port).toBe(8123);
    expect(shop?.limits).toMatchObject({
      requestsPerMinute: null,
      maxInFlight: null,
      maxInFlightTotal: 6,
      maxQueued: 7,
      maxWaitSeconds: 20,
      maxWaitCeilingSeconds: 30,
      learn: false,
      probe: 3,
      bucket: { capacity: 80, leakPerSecond: 4 },
    });
    expect(stats?.limits).toMatchObject({ maxQueued: 50, maxWaitSeconds: 5, maxWaitCeilingSeconds: 60 });
  });

  test('keeps host, wildcard and port of origins', () => {
    expect(shop?.origins).toEqual([
      { scheme: 'http', host: 'localhost', wildcard: true, port: 4010 },
      { scheme: 'http', host: '[::1]', wildcard: false, port: 4011 },
      { scheme: 'http', host: '10.0.0.7', wildcard: false, port: 80 },
    ]);
    const own = { scheme: 'https', host: 'stats.example.com', wildcard: false, port: 8443 };
    expect(stats?.origins).toEqual([own]);
  });

  test('gives values of a workspace to all its upstreams', () => {
    const workspace = settings.workspaces.get('acme & söhne');
    expect(Object.fromEntries(workspace?.requestsPerMinute ?? [])).toEqual({ shop: 30, stats: 30 });
    expect(Object.fromEntries(workspace?.requestsPerDay ?? [])).toEqual({ stats: 900 });
    const credentialOf = (name: string) => workspace?.credentials.get(name);
    expect(credentialOf('shop')).toMatchObject({ field: 'x-shop-key', source: { value: 'own-token' } });
    const literal = { field: 'authorization', source: { kind: 'value', value: 'Bearer ${literal}' } };
    expect(credentialOf('stats')).toMatchObject(literal);
    expect(workspace?.keys[1]?.expiresAt).toBe(Date.UTC(2027, 0, 1));
    expect(shop?.credential?.field).toBe('x-shopify-access-token');
  });

  test('inherits the maximum wait before a wait is judged', () => {
    const api = 'limits: { maxWaitSeconds: 700 }, ';
    const text = (most: number) => file({ api, more: `server: { maxWaitCeilingSeconds: ${most} }\n` });
    expect(upstreamOf(text(900))?.limits.maxWaitSeconds).toBe(700);
    expect(problemsOf(text(650))).toMatchObject([
      { path: 'upstreams.api.limits.maxWaitSeconds', reason: 'is above maxWaitCeilingSeconds (650)' },
    ]);
  });

  test('puts a short workspace credential into the field of its upstream', () => {
    const api = 'credential: { header: X-Api-Key, value: one }, ';
    const { workspaces } = parse(file({ api, acme: 'credentials: { api: two }, ' }));
    const expected = { field: 'x-api-key', source: { kind: 'value', value: 'two' } };
    expect(workspaces.get('acme')?.credentials.get('api')).toMatchObject(expected);
  });
});

describe('the messages about a configuration file', () => {
  const [wrongPort, nowhere] = [{ more: 'server: { port: x }\n' }, { acme: 'upstreams: [nowhere], ' }];
  test.each([
    [
      'every problem of the file at once',
      {
        ...wrongPort,
        api: 'limits: { requestsPerMinute: 0, typo: 1 }, credential: "${NOT_SET}", ',
        acme: 'weight: -1, ',
      },
      'server.port api.credential api.limits.requestsPerMinute api.limits.typo acme.weight',
    ],
    [
      'every contradiction between sections at once',
      { ...nowhere, more: 'redis: { url: "redis://r" }\n' },
      'privacy.labelKey acme.upstreams[0]',
    ],
    ['contradictions without mistakes of form only', { ...wrongPort, ...nowhere }, 'server.port'],
  ])('name %s', (_, text, paths) =>
    expect(
      pathsOf(file(text))
        .join(' ')
        .replaceAll(/upstreams\.(?=api)|workspaces\./g, ''),
    ).toBe(paths),
  );

  test('read as file, line, key, reason and fix', () =>
    expect(() => parse(file({ more: 'server: { port: -1 }\n' }))).toThrow(
      'test.yaml: 1 problem\n' +
        '  line 5, server.port: must be at least 0, not -1\n' +
        '    fix: write a number in that range, or leave the key out for the default',
    ));

  test.each([
    ['an unknown key', 'kidn: generic', 'did you mean kind? known here: kind, '],
    ['an unknown key with one character too many', 'origin: []', 'did you mean origins? known here: '],
    ['an unknown kind', 'kind: comerce', 'did you mean commerce? use one of the words given'],
    ['an unknown preset', 'speaks: gihub', 'did you mean github? use one of the words given'],
    ['the unknown preset of a dialect', 'speaks: { preset: Stripe }', 'did you mean stripe? use one of'],
    ['a key that is like none', 'sunshine: 1', 'known here: kind, '],
    ['a preset that is like none', 'speaks: weather', 'use one of the words given'],
    ['a word as a number', 'maxQueued: many', 'write a plain number such as 30, without quotes or unit'],
  ])('say what was probably meant: %s', (_what, key, words) => {
    const [problem] = problemsOf(file({ api: `${key}, ` }));
    expect(problem?.fix.slice(0, words.length)).toBe(words);
  });

  const canary = 'canary-5c1f';
  test.each([
    file({ api: `credential: "changeme${canary}", ` }),
    file({ api: `credential: { header: "${canary} x", value: "${canary}\\n" }, ` }),
    file({ api: `credential: { value: ["${canary}"] }, ` }),
    file({ api: `limits: { requestsPerMinute: "${canary}" }, ` }),
    file({ api: `kind: ${canary}, ` }),
    file({ api: `credential: "\${CANARY} \${NOT_SET}", ` }),
    file({ api: `origins: ["https://u:${canary}@x.com"], bucketBy: [${canary}], ` }),
    file({ api: `credential: "${canary}, ` }),
    file({ api: `credential: [${canary}, ` }),
    file({ api: `credential: !!int ${canary}, ` }),
    file({ api: `credential: *${canary}x, ` }),
    file({ more: `redis: |${canary}\n  x\n` }),
    file({ more: `redis: !${canary} x\n` }),
    file({ more: `%${canary}\n` }),
    file({ more: `redis: @${canary}\n` }),
  ])('never show a value that may be secret: %j', (text) => {
    let message = '';
    try {
      parse(`privacy: { labelKey: ${canary} }\n${text}`, { CANARY: canary });
    } catch (error) {
      message = String(error);
    }
    expect(message).toContain('ConfigError');
    expect(message).not.toContain(canary);
  });

  test.each([
    ['a: 1\na: 2\n', 2, 'remove one'],
    ['a:\n  b: 1\n c: 2\n', 3, 'same number of blanks'],
    ['a:\n\tb: 1\n', 2, 'blanks'],
    ['server: { port: ${PORT}, adminPort: 0 }\n', 1, '${NAME} within { }'],
    ['a: &a 1\nb: *a\nc: *b\nd: *d\n', 3, 'put the anchor (&name) before it'],
  ])('give advice that fits the mistake, once a line: %j', (text, line, fix) =>
    expect(problemsOf(text)).toMatchObject([{ line, fix: expect.stringContaining(fix) }]),
  );

  test('name a certificate file that cannot be read', () => {
    expect(upstreamOf(file({ api: 'caFile: no-such.pem, ' }))?.caFile).toBe(resolve('no-such.pem'));
    const load = () => loadSettings({ path: pathOf('files/with-ca.yml'), env: {} });
    expect(load).toThrow('upstreams.api.caFile: cannot be read');
  });
});

describe('variables', () => {
  const data = 'a", "b: ${B} # no';
  const withCredential = (value: string): string => file({ api: `credential: ${value}, ` });
  test.each([
    ['fill in part of a value, more than once', '"Bearer ${A}-${B}"', { A: 'x', B: 'y' }, 'Bearer x-y'],
    ['are data, neither YAML nor references', '"${A}"', { A: data, B: '-' }, data],
    ['stay text where text is wanted', '"${A}"', { A: '12345' }, '12345'],
  ])('%s', (_, written, env, value) =>
    expect(upstreamOf(withCredential(written), env)?.credential?.source).toEqual({ kind: 'value', value }),
  );

  test('are numbers where numbers are wanted', () => {
    const text = file({ api: 'limits: { requestsPerMinute: "${N}", learn: "${L}" }, ' });
    const limits = upstreamOf(text, { N: '70', L: 'false' })?.limits;
    expect(limits).toMatchObject({ requestsPerMinute: 70, learn: false });
    expect(problemsOf(text, { N: '70 per minute', L: 'no' })).toHaveLength(2);
    expect(problemsOf(text, { N: '-1', L: 'true' })[0]?.reason).toBe('must be at least 1, not -1');
  });

  test.each([
    ['"${A}"', 'A, which is empty'],
    ['"${toString}"', 'toString, which is not set'],
  ])('may not be empty, and names of the object prototype are not set: %s', (written, reason) =>
    expect(problemsOf(withCredential(written), { A: '' })[0]?.reason).toContain(reason),
  );
});

describe('files as other editors save them', () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-encoding-'));
  afterAll(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'sluice.yaml');
  const load = (written: string, encoding: BufferEncoding, variables = '') => {
    writeFileSync(path, written, encoding);
    writeFileSync(join(folder, '.env'), variables);
    return loadSettings({ path, env: {} });
  };

  test('may begin with a byte order mark', () => {
    const text = file({ api: "credential: '${TOKEN}', " });
    const settings = load(`\uFEFF${text}`, 'utf8', '\uFEFFTOKEN=from-the-file\r\n');
    expect(settings.upstreams.get('api')?.credential?.source).toMatchObject({ value: 'from-the-file' });
  });

  test.each(['utf16le', 'latin1'] as const)('are refused with their reason where they are %s', (encoding) =>
    expect(() => load(`\uFEFF# größer\n${file()}`, encoding)).toThrow(
      /the file is not UTF-8\n {4}fix: save it as UTF-8/,
    ),
  );
});
