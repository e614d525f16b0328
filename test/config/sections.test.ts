/** Sections with rules of their own: Redis, presets, keys that take effect at the next start, names that objects have for themselves. */
import { resolve } from 'node:path';
import { describe, expect, test } from '@jest/globals';
import { restartKeys, withStartedValues } from '../../src/config/settings.ts';
import { presetNames, presetOf, readPreset } from '../../src/config/speaks.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { file, hash, parse, problemsOf, strongKey } from './parse.ts';

describe('the redis section', () => {
  const at = (host: string, port: number) => ({ host, port });
  const cluster = { mode: 'cluster', username: 'u', tls: { caFile: null }, nodes: [at('a', 1), at('b', 2)] };
  const tls = { caFile: resolve('ca.pem') };
  const single = { username: 'lim@iter', password: 'p:ss', nodes: [at('::1', 7000)], database: 3, tls };
  const nodes = [at('a', 26_379), at('b', 5000)];
  const sentinels = { mode: 'sentinel', sentinelName: 'main', nodes, password: 'p' };
  test.each([
    [`url: 'rediss://lim%40iter:p%3Ass@[::1]:7000/3', tls: { caFile: ca.pem }`, single],
    [`url: 'redis+sentinel://:p@a,b:5000/main'`, sentinels],
    [`url: 'redis+sentinel://u:p@a/main'`, { sentinelPassword: 'p' }],
    [`url: 'redis+sentinel://u:p@a/main', sentinelPassword: s`, { sentinelPassword: 's' }],
    [`url: 'rediss+cluster://u:p@a:1,b:2'`, cluster],
  ])('takes from %s all that it states', (section, expected) => {
    expect(parse(`${strongKey}${file()}redis: { ${section} }\n`).redis).toMatchObject(expected);
  });

  test('needs only a URL', () => {
    const { redis } = parse(`${strongKey}${file()}redis: { url: 'redis://r' }\n`);
    expect(redis).toEqual(plainRedis({ nodes: [at('r', 6379)] }));
  });

  const wrong = 'http://r redis:// redis://a,b redis://a:0 redis://a:70000 redis://a/x redis://%zz@a';
  test.each(wrong.split(' '))('%s is refused as a URL', (text) =>
    expect(problemsOf(`${strongKey}${file()}redis: { url: '${text}' }\n`)[0]?.reason).toBe(
      'is not a Redis URL',
    ),
  );
});

describe('a preset is held to the rules of a user’s own dialect:', () => {
  test.each([
    ['{ windows: [{ requests: 0, seconds: 60 }] }', 'line 5, speaks.windows[0].requests: must be at least 1'],
    ['{ bucketBy: [host] }', 'line 5, speaks.bucketBy: leaves credential out'],
    ['{ preset: github }', 'line 5, speaks.preset: is not a known key'],
    ['{ windows: [', 'line 6: Flow sequence in block collection'],
  ])('%s is refused with its line', (speaks, message) => {
    const text = `title: Acme\nsource: https://acme.example/limits\ncounts: Calls per minute.\nmissing: null\nspeaks: ${speaks}\n`;
    expect(() => readPreset(text, 'acme.yaml')).toThrow(message);
  });

  test('all that there are can be used', () => {
    expect(presetNames).toContain('github');
    for (const name of presetNames) expect(() => presetOf(name)).not.toThrow();
  });
});

describe('a key that takes effect at the next start', () => {
  const settingsOf = (text: string, upstreams = 'upstreams: { up: { origins: ["https://up.example"] } }') =>
    parse(`${text}\n${upstreams}\nworkspaces: {}`);
  const server = 'port: 0, drainSeconds: 5';
  const redis = 'redis: { url: "redis://a:6379" }';
  const withPassword = 'redis: { url: "redis://:canary@a:6379", whenDown: deny }';
  const started = settingsOf(`server: { ${server} }\n${redis}\n${strongKey}`);

  test.each([
    ['nothing', server, redis, []],
    ['a port', 'port: 1, drainSeconds: 5', redis, ['server.port']],
    ['a password', server, withPassword, ['redis.url', 'redis.whenDown']],
    ['the whole section', server, '', ['redis']],
    ['a default that was written out, and waits', `${server}, adminPort: 9090, maxWaitSeconds: 9`, redis, []],
  ])('is kept while the rest is applied: %s', (_change, ofServer, ofRedis, keys) => {
    const next = settingsOf(`server: { ${ofServer} }\n${ofRedis}\n${strongKey}`);
    expect([...restartKeys(started, next)].toSorted()).toEqual(keys);
  });

  test('is the label key; a reload keeps the value of every such key from the start, and takes over the rest', () => {
    const text = 'server: { port: 7 }\nprivacy: { labelKey: "another label key for tests" }';
    const next = settingsOf(text, 'upstreams: { new: { origins: ["https://new.example"] } }');
    expect(restartKeys(started, next)).toContain('privacy.labelKey');
    const used = withStartedValues(started, next);
    expect([used.server, used.redis, used.privacy]).toEqual([started.server, started.redis, started.privacy]);
    expect([...used.upstreams.keys()]).toEqual(['new']);
  });
});

describe('a name that objects of JavaScript have for themselves', () => {
  const upstreams =
    'upstreams:\n  constructor: { origins: ["https://a.example"] }\n  api: { origins: ["https://b.example"] }\n';

  const ofObjects = 'constructor toString hasOwnProperty valueOf isPrototypeOf __defineGetter__ prototype';
  test.each(ofObjects.split(' '))('names a workspace with all that it states: %s', (name) => {
    const { workspaces } = parse(
      `${upstreams}workspaces:\n  other: { keys: [] }\n  ${name}:\n    keys: ["${hash}"]\n    upstreams: [constructor, api]\n    requestsPerMinute: { constructor: 5 }\n    credentials: { constructor: "Bearer a", api: "Bearer b" }\n    accounts: { api: ours }\n`,
    );
    const workspace = workspaces.get(name);
    expect([...workspaces.keys()]).toEqual(['other', name]);
    expect([...(workspace?.requestsPerMinute ?? [])]).toEqual([['constructor', 5]]);
    // Without an account the value is the quota's name; none is inherited.
    const quotaOf = (upstream: string) => workspace?.credentials.get(upstream)?.quota;
    expect([quotaOf('constructor'), quotaOf('api')]).toEqual(['Bearer a', 'account\nours']);
  });

  const cannot = 'cannot name anything';
  test.each([
    ['workspaces:\n  other: { keys: [] }\n  __proto__: { keys: [] }', cannot],
    ['workspaces:\n  other: { keys: [] }\n  "__proto__": { keys: [] }', cannot],
    ["workspaces:\n  other: { keys: [] }\n  '__proto__': { keys: [] }", cannot],
    ['workspaces: { __proto__: {}, other: {} }', cannot],
    ['workspaces: { a: { keys: [], credentials: { __proto__: x } } }', cannot],
    ['workspaces: { a: { keys: [], requestsPerDay: { __proto__: 1 } } }', cannot],
    ['workspaces: { a: { keys: [], __proto__: { weight: 2 } } }', 'is not a known key'],
    ['server: { __proto__: { port: 1 } }\nworkspaces: {}', 'is not a known key'],
    ['workspaces: { a: { keys: [], upstreams: [__proto__] } }', 'names an upstream that is not configured'],
  ])('is refused alone, with its line, where it cannot be kept: %j', (text, reason) => {
    const line = 4 + text.slice(0, text.indexOf('__proto__')).split('\n').length - 1;
    const [problem, ...others] = problemsOf(upstreams + text);
    expect([problem?.line, problem?.reason, others]).toEqual([line, expect.stringContaining(reason), []]);
  });
});
