import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { LineCounter, parseDocument } from 'yaml';
import { readDocument } from '../../src/config/check-text.ts';
import { ConfigError, loadSettings, parseSettings } from '../../src/config/load.ts';
import type { Env, Problem } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';

const good = (file: string): string => new URL(`good/${file}`, import.meta.url).pathname;
const hash = `sha256:${'1f'.repeat(32)}`;
const base = `upstreams:\n  api: { origins: ['https://api.example.com'] }\nworkspaces:\n  acme: { keys: ['${hash}'] }\n`;

const parse = (text: string, env: Env = {}): Settings => parseSettings(text, { path: 'test.yaml', env });

function problemsOf(text: string, env: Env = {}): readonly Problem[] {
  try {
    parse(text, env);
  } catch (error) {
    if (error instanceof ConfigError) return error.problems;
    throw error;
  }
  return [];
}

describe('a key that stands twice in the configuration', () => {
  test.each([
    ['in lines', 'a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n'],
    ['in braces', 'a: { b: 1, c: 2, b: 3 }\n'],
    ['three times', 'a: 1\na: 2\nb: 1\na: 3\n'],
    ['in a list of sections', 'a:\n  - { b: 1 }\n  - b: 1\n    b: 2\n'],
    ['by number and by text', '1: x\n"1": y\n1.0: z\n'],
    ['in quotes and without', 'a: 1\n"a": 2\n'],
    ['as a merge', 'x: &x { b: 1 }\ny:\n  <<: *x\n  <<: *x\n'],
    ['in another section only', 'a: { b: 1 }\nc: { b: 1 }\n'],
  ])('is reported where the parser would report it: %s', (_, text) => {
    const lines = new LineCounter();
    const { errors } = parseDocument(text, { lineCounter: lines, merge: true, prettyErrors: false });
    expect(errors.every(({ code }) => code === 'DUPLICATE_KEY')).toBe(true);
    expect(readDocument(text, {}).faults.map(({ line }) => line)).toEqual(
      errors.map(({ pos }) => lines.linePos(pos[0]).line),
    );
  });
});

describe('the address of the admin port', () => {
  test.each([
    ['', {}, '127.0.0.1'],
    ['', { SLUICE_ADMIN_HOST: '0.0.0.0' }, '0.0.0.0'],
    ['', { SLUICE_ADMIN_HOST: '' }, '127.0.0.1'],
    ['server: { adminHost: 10.0.0.1 }\n', { SLUICE_ADMIN_HOST: '0.0.0.0' }, '10.0.0.1'],
  ])('is, for %j and %j, %s', (text, env, expected) => {
    expect(parse(base + text, env).server.adminHost).toBe(expected);
  });

  test('is 0.0.0.0 in the image, whose port nobody reaches otherwise', () => {
    const image = readFileSync(new URL('../../Dockerfile', import.meta.url), 'utf8');
    expect(image).toMatch(/^ENV SLUICE_ADMIN_HOST=0\.0\.0\.0$/m);
  });
});

describe('defaults', () => {
  test('fill in everything but upstreams and workspaces', () => {
    const settings = parse(base);
    expect(settings.server).toEqual({
      host: '0.0.0.0',
      port: 8080,
      adminHost: '127.0.0.1',
      adminPort: 9090,
      adminNames: [],
      adminToken: null,
      maxBodyBytes: 10 * 1024 * 1024,
      maxReplayBytes: 10 * 1024 * 1024,
      maxHeldBytes: 256 * 1024 * 1024,
      maxConnections: 50_000,
      maxCallsPerConnection: 100,
      maxOpenCalls: 50_000,
      maxEventLoopDelayMs: 250,
      maxMemoryRatio: 0.85,
      drainSeconds: 25,
      drainDelaySeconds: 5,
      keepAliveSeconds: 75,
      publicHosts: [],
    });
    expect(settings.redis).toBeNull();
    expect(settings.log).toEqual({ level: 'info', sampleSuccesses: 1 });
    expect(settings.upstreams.get('api')).toMatchObject({
      kind: 'generic',
      credential: null,
      bucketBy: ['credential'],
      allowPrivateAddresses: false,
      cookies: 'scoped',
      propagateTrace: false,
      maxSockets: 512,
      commentMs: null,
      caFile: null,
      timeouts: { connectMs: 10_000, headMs: 300_000, idleMs: 300_000, totalMs: null },
      limits: { maxQueued: 1000, maxWaitSeconds: 75, maxWaitCeilingSeconds: 600, learn: true, probe: 1 },
    });
    expect(settings.workspaces.get('acme')).toMatchObject({ weight: 1, upstreams: new Set(['api']) });
  });

  test.each([
    ['generic', null, null, null, 300_000],
    ['language-model', 500, 10_000, null, 300_000],
    ['commerce', 40, null, 1, 60_000],
  ] as const)('of kind %s are those of the platform', (kind, perMinute, perDay, inFlight, headMs) => {
    const upstream = parse(base.replace('{ origins', `{ kind: ${kind}, origins`)).upstreams.get('api');
    expect(upstream?.limits).toMatchObject({
      requestsPerMinute: perMinute,
      requestsPerDay: perDay,
      maxInFlight: inFlight,
      maxInFlightTotal: null,
      bucket: { capacity: 40, leakPerSecond: 2 },
      cost: null,
    });
    expect(upstream?.timeouts.headMs).toBe(headMs);
  });

  test('give a label key of the process without Redis, the same for every load', () => {
    const [first, second] = [parse(base).privacy, parse(base).privacy];
    expect(first.labelKeyGenerated).toBe(true);
    expect(first.labelKey.length).toBeGreaterThanOrEqual(32);
    expect(second.labelKey).toBe(first.labelKey);
  });
});

describe('a setting with several sources', () => {
  const settings = loadSettings({ path: good('every-place.yaml'), env: { PORT: '8123' } });

  test('merges limits, the nearest source first', () => {
    expect(settings.server.port).toBe(8123);
    expect(settings.upstreams.get('shop')?.limits).toMatchObject({
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
    expect(settings.upstreams.get('stats')?.limits).toMatchObject({
      maxQueued: 50,
      maxWaitSeconds: 5,
      maxWaitCeilingSeconds: 60,
    });
  });

  test('keeps host, wildcard and port of origins', () => {
    expect(settings.upstreams.get('shop')?.origins).toEqual([
      { scheme: 'http', host: 'localhost', wildcard: true, port: 4010 },
      { scheme: 'http', host: '[::1]', wildcard: false, port: 4011 },
      { scheme: 'http', host: '10.0.0.7', wildcard: false, port: 80 },
    ]);
    expect(settings.upstreams.get('stats')?.origins).toEqual([
      { scheme: 'https', host: 'stats.example.com', wildcard: false, port: 8443 },
    ]);
  });

  test('gives values of a workspace to all its upstreams', () => {
    const workspace = settings.workspaces.get('acme & söhne');
    expect(workspace?.requestsPerMinute).toEqual(new Map(Object.entries({ shop: 30, stats: 30 })));
    expect(workspace?.requestsPerDay).toEqual(new Map(Object.entries({ stats: 900 })));
    expect(workspace?.credentials.get('shop')).toMatchObject({
      field: 'x-shop-key',
      source: { kind: 'value', value: 'own-token' },
    });
    expect(workspace?.credentials.get('stats')).toMatchObject({
      field: 'authorization',
      source: { kind: 'value', value: 'Bearer ${literal}' },
    });
    expect(workspace?.keys[1]?.expiresAt).toBe(Date.UTC(2027, 0, 1));
    expect(settings.upstreams.get('shop')?.credential?.field).toBe('x-shopify-access-token');
  });

  test('inherits the maximum wait before a wait is judged', () => {
    const text = `server: { maxWaitCeilingSeconds: 900 }\n${base.replace('{ origins', '{ limits: { maxWaitSeconds: 700 }, origins')}`;
    expect(parse(text).upstreams.get('api')?.limits.maxWaitSeconds).toBe(700);
    expect(problemsOf(text.replace('900', '650'))).toMatchObject([
      { path: 'upstreams.api.limits.maxWaitSeconds', reason: 'is above maxWaitCeilingSeconds (650)' },
    ]);
  });

  test('puts a short workspace credential into the field of its upstream', () => {
    const text = base
      .replace("com']", "com'], credential: { header: X-Api-Key, value: one }")
      .replace("'] }", "'], credentials: { api: two } }");
    expect(parse(text).workspaces.get('acme')?.credentials.get('api')).toMatchObject({
      field: 'x-api-key',
      source: { kind: 'value', value: 'two' },
    });
  });
});

describe('the messages about a configuration file', () => {
  test('name every problem of the file at once', () => {
    const text = base
      .replace('{ origins', '{ limits: { requestsPerMinute: 0, typo: 1 }, credential: "${NOT_SET}", origins')
      .replace('keys:', 'weight: -1, keys:');
    expect(
      problemsOf(`${text}server: { port: x }\n`)
        .map(({ path }) => path)
        .toSorted(),
    ).toEqual([
      'server.port',
      'upstreams.api.credential',
      'upstreams.api.limits.requestsPerMinute',
      'upstreams.api.limits.typo',
      'workspaces.acme.weight',
    ]);
  });

  test('name every contradiction between sections at once, in a file without mistakes of form', () => {
    const text = base.replace('keys:', 'upstreams: [nowhere], keys:');
    const paths = (more: string) =>
      problemsOf(text + more)
        .map(({ path }) => path)
        .toSorted();
    expect(paths('redis: { url: "redis://r" }\n')).toEqual([
      'privacy.labelKey',
      'workspaces.acme.upstreams[0]',
    ]);
    expect(paths('server: { port: x }\n')).toEqual(['server.port']);
  });

  test('read as file, line, key, reason and fix', () => {
    const text = `${base}server: { port: -1 }\n`;
    expect(() => parse(text)).toThrow(
      'test.yaml: 1 problem\n' +
        '  line 5, server.port: must be at least 0, not -1\n' +
        '    fix: write a number in that range, or leave the key out for the default',
    );
  });

  test.each([
    ['an unknown key', 'kidn: generic', 'did you mean kind? known here: kind, '],
    ['an unknown key with one character too many', 'origin: []', 'did you mean origins? known here: '],
    ['an unknown kind', 'kind: comerce', 'did you mean commerce? use one of the words given'],
    ['an unknown preset', 'speaks: gihub', 'did you mean github? use one of the words given'],
    ['the unknown preset of a dialect', 'speaks: { preset: Stripe }', 'did you mean stripe? use one of'],
    ['a key that is like none', 'sunshine: 1', 'known here: kind, '],
    ['a preset that is like none', 'speaks: weather', 'use one of the words given'],
  ])('say what was probably meant: %s', (_what, key, words) => {
    const [problem] = problemsOf(base.replace('{ origins', `{ ${key}, origins`));
    expect(problem?.fix.slice(0, words.length)).toBe(words);
  });

  test('say which upstream was probably meant', () => {
    const text = base.replace('  api:', "  chat: { origins: ['https://chat.example.com'] }\n  api:");
    const fixOf = (name: string) =>
      problemsOf(text.replace('keys:', `requestsPerDay: { ${name}: 5 }, keys:`))[0]?.fix;
    expect(fixOf('cahts')).toBe('did you mean chat? use one of: chat, api');
    expect(fixOf('weather')).toBe('use one of: chat, api');
  });

  test('name the word that may stand in place of a number', () => {
    const text = base.replace("com'] ", "com'], limits: { requestsPerMinute: unlimited } ");
    expect(problemsOf(text)[0]?.fix).toBe('write a plain number such as 30, without quotes or unit, or none');
  });

  test('never show a value that may be secret', () => {
    const canary = 'canary-5c1f';
    const wrong = [
      `credential: "changeme${canary}"`,
      `credential: { header: "${canary} x", value: "${canary}\\n" }`,
      `credential: { value: ["${canary}"] }`,
      `limits: { requestsPerMinute: "${canary}" }`,
      `kind: ${canary}`,
      `credential: "\${CANARY} \${NOT_SET}"`,
      `origins: ["https://u:${canary}@x.com"], bucketBy: [${canary}]`,
      `credential: "${canary}`,
      `credential: [${canary}`,
      `credential: !!int ${canary}`,
      `credential: *${canary}x`,
    ];
    const texts = [
      ...wrong.map((line) => base.replace('{ origins', `{ ${line}, origins`)),
      `${base}redis: |${canary}\n  x\n`,
      `${base}redis: !${canary} x\n`,
      `${base}%${canary}\n`,
      `${base}redis: @${canary}\n`,
    ];
    for (const rest of texts) {
      const text = `privacy: { labelKey: ${canary} }\n${rest}`;
      let message = '';
      try {
        parse(text, { CANARY: canary });
      } catch (error) {
        message = String(error);
      }
      expect(message).toContain('ConfigError');
      expect(message).not.toContain(canary);
    }
  });

  test('report an empty section once', () => {
    expect(problemsOf('upstreams: {}\nworkspaces: {}\n')).toHaveLength(1);
    expect(problemsOf('upstreams: {}\nworkspaces:\n')).toHaveLength(1);
  });

  test('point at invalid YAML', () => {
    expect(problemsOf('upstreams: [\n')).toMatchObject([{ line: 2, path: '' }]);
    expect(problemsOf(`${base}--- \nmore: 1\n`)[0]?.reason).toContain('multiple documents');
  });

  test('say that the file does not exist', () => {
    expect(() => loadSettings({ path: '/nowhere/sluice.yaml', env: {} })).toThrow(
      '/nowhere/sluice.yaml: 1 problem\n  the file does not exist',
    );
  });

  test('name a certificate file that cannot be read', () => {
    const text = base.replace('{ origins', '{ caFile: no-such.pem, origins');
    expect(parse(text).upstreams.get('api')?.caFile).toBe('no-such.pem');
    expect(() =>
      loadSettings({ path: new URL('files/with-ca.yml', import.meta.url).pathname, env: {} }),
    ).toThrow('upstreams.api.caFile: cannot be read');
  });
});

describe('variables', () => {
  const withCredential = (value: string): string =>
    base.replace('{ origins', `{ credential: ${value}, origins`);
  const credential = (value: string, env: Env): string | undefined => {
    const source = parse(withCredential(value), env).upstreams.get('api')?.credential?.source;
    return source?.kind === 'value' ? source.value : undefined;
  };

  test('fill in part of a value, more than once', () => {
    expect(credential('"Bearer ${A}-${B}"', { A: 'x', B: 'y' })).toBe('Bearer x-y');
  });

  test('are data: their text is neither YAML nor another reference', () => {
    const text = 'a", "b: ${B} {x} # no';
    expect(credential('"${A}"', { A: text, B: 'never' })).toBe(text);
  });

  test('stay text where text is wanted, and are numbers where numbers are', () => {
    expect(credential('"${A}"', { A: '12345' })).toBe('12345');
    const text = base.replace('{ origins', '{ limits: { requestsPerMinute: "${N}", learn: "${L}" }, origins');
    expect(parse(text, { N: '70', L: 'false' }).upstreams.get('api')?.limits).toMatchObject({
      requestsPerMinute: 70,
      learn: false,
    });
    expect(problemsOf(text, { N: '70 per minute', L: 'no' })).toHaveLength(2);
    expect(problemsOf(text, { N: '-1', L: 'true' })[0]?.reason).toBe('must be at least 1, not -1');
  });

  test('may not be empty, and names of the object prototype are not set', () => {
    expect(problemsOf(withCredential('"${A}"'), { A: '' })[0]?.reason).toContain('A, which is empty');
    expect(problemsOf(withCredential('"${toString}"'))[0]?.reason).toContain('toString, which is not set');
  });
});

describe('settings', () => {
  test('are frozen to the leaves', () => {
    const settings = parse(base);
    const upstream = settings.upstreams.get('api');
    const parts = [settings, settings.server, upstream, upstream?.limits.bucket, upstream?.origins[0]];
    for (const part of parts) expect(Object.isFrozen(part)).toBe(true);
  });

  test('come out of the example file', () => {
    const path = new URL('../../sluice.example.yaml', import.meta.url).pathname;
    const env = Object.fromEntries(
      [...readFileSync(path, 'utf8').matchAll(/(?<!\$)\$\{([A-Z_]+)\}/g)].map(([, name = ''], index) => [
        name,
        name.endsWith('_HASH') ? `sha256:${String(index).padStart(64, '0')}` : `value-of-${name}`,
      ]),
    );
    const settings = loadSettings({ path, env: { ...env, NAME: 'x', REDIS_URL: 'rediss://redis:6379' } });
    expect([...settings.upstreams.keys()]).toEqual(['openai', 'anthropic', 'shop', 'reports']);
    expect(settings.workspaces.get('batch')?.requestsPerMinute.get('reports')).toBe(100);
  });
});
