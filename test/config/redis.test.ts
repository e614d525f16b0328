import { describe, expect, test } from '@jest/globals';
import { parseSettings } from '../../src/config/load.ts';
import { readRedisUrl } from '../../src/config/redis.ts';

const hash = `sha256:${'1f'.repeat(32)}`;
const base = `privacy: { labelKey: 0123456789abcdef-x }\nupstreams:\n  api: { origins: ['https://api.example.com'] }\nworkspaces:\n  acme: { keys: ['${hash}'] }\n`;
const redisOf = (section: string) =>
  parseSettings(`${base}redis: ${section}\n`, { path: 'test.yaml', env: {} }).redis;

describe('the redis section', () => {
  test('needs only a URL', () => {
    expect(redisOf(`{ url: 'redis://r' }`)).toEqual({
      whenDown: 'local',
      replicas: null,
      startSeconds: 30,
      mode: 'single',
      nodes: [{ host: 'r', port: 6379 }],
      sentinelName: null,
      sentinelPassword: null,
      username: null,
      password: null,
      database: 0,
      tls: null,
      commandTimeoutMs: 250,
      keyPrefix: '',
    });
  });

  test('takes user, password, database and TLS from the URL', () => {
    expect(
      redisOf(`{ url: 'rediss://lim%40iter:p%3Ass@[::1]:7000/3', tls: { caFile: ca.pem } }`),
    ).toMatchObject({
      username: 'lim@iter',
      password: 'p:ss',
      nodes: [{ host: '::1', port: 7000 }],
      database: 3,
      tls: { caFile: 'ca.pem' },
    });
  });

  test('names Sentinels by its URL', () => {
    const nodes = [
      { host: 'a', port: 26_379 },
      { host: 'b', port: 5000 },
    ];
    const settings = redisOf(`{ url: 'redis+sentinel://:p@a,b:5000/main' }`);
    expect(settings).toMatchObject({ mode: 'sentinel', sentinelName: 'main', nodes, password: 'p' });
  });

  test('gives Sentinels the password of the URL, unless they have one of their own', () => {
    const url = `url: 'redis+sentinel://u:p@a/main'`;
    expect(redisOf(`{ ${url} }`)?.sentinelPassword).toBe('p');
    expect(redisOf(`{ ${url}, sentinelPassword: s }`)?.sentinelPassword).toBe('s');
  });

  test('names a Cluster by its URL', () => {
    const nodes = [
      { host: 'a', port: 1 },
      { host: 'b', port: 2 },
    ];
    const settings = redisOf(`{ url: 'rediss+cluster://u:p@a:1,b:2' }`);
    expect(settings).toMatchObject({ mode: 'cluster', username: 'u', tls: { caFile: null }, nodes });
  });
});

test.each([
  'http://r',
  'redis://',
  'redis://a,b',
  'redis://a:0',
  'redis://a:70000',
  'redis://a/x',
  'redis://%zz@a',
])('%s is refused as a Redis URL', (text) => {
  expect(readRedisUrl(text)).toMatchObject({ reason: 'is not a Redis URL' });
});
