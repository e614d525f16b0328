import { describe, expect, test } from '@jest/globals';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { endAll, start } from '../cli/started.ts';
import { parseSettings } from '../../src/config/load.ts';
import { withStartedValues, restartKeys } from '../../src/config/schema.ts';

const settingsOf = (text: string, rest = 'upstreams: { up: { origins: ["https://up.example"] } }') =>
  parseSettings(`${text}\n${rest}\nworkspaces: {}`, { path: 'test.yaml', env: {} });
const key = 'privacy: { labelKey: "a label key for tests" }';
const started = settingsOf(`server: { port: 0, drainSeconds: 5 }\nredis: { url: "redis://a:6379" }\n${key}`);

describe('a key that takes effect at the next start', () => {
  test.each([
    ['nothing', 'server: { port: 0, drainSeconds: 5 }\nredis: { url: "redis://a:6379" }', []],
    ['a port', 'server: { port: 1, drainSeconds: 5 }\nredis: { url: "redis://a:6379" }', ['server.port']],
    [
      'a password',
      'server: { port: 0, drainSeconds: 5 }\nredis: { url: "redis://:canary@a:6379", whenDown: deny }',
      ['redis.whenDown', 'redis.url'],
    ],
    ['the whole section', 'server: { port: 0, drainSeconds: 5 }', ['redis']],
    [
      'a default that was written out, and waits',
      'server: { port: 0, drainSeconds: 5, adminPort: 9090, maxWaitSeconds: 9 }\nredis: { url: "redis://a:6379" }',
      [],
    ],
  ])('is kept while the rest is applied: %s', (_change, text, keys) => {
    const next = settingsOf(`${text}\n${key}`);
    expect([...restartKeys(started, next)].sort()).toEqual([...keys].sort());
  });

  test('is the label key; a reload keeps the value of every such key from the start, and takes over the rest', () => {
    const next = settingsOf(
      'server: { port: 7 }\nprivacy: { labelKey: "another label key for tests" }',
      'upstreams: { new: { origins: ["https://new.example"] } }',
    );
    expect(restartKeys(started, next)).toContain('privacy.labelKey');
    const used = withStartedValues(started, next);
    expect([used.server, used.redis, used.privacy]).toEqual([started.server, started.redis, started.privacy]);
    expect([...used.upstreams.keys()]).toEqual(['new']);
  });
});

test('serve warns of keys that need a restart and applies the rest', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-restart-'));
  const file = join(folder, 'sluice.yaml');
  const text = (server: string, upstream: string): string =>
    `server: { host: 127.0.0.1, adminHost: 127.0.0.1, adminPort: 0, ${server} }\nupstreams: { ${upstream}: { origins: ["https://up.example"] } }\nworkspaces: {}\n`;
  writeFileSync(file, text('port: 0', 'old'));
  const serve = start(process.execPath, ['src/main.ts', 'serve', '--config', file]);
  try {
    await serve.saying('"message":"serving"');
    writeFileSync(file, text('port: 0, keepAliveSeconds: 9', 'new'));
    serve.signal('SIGHUP');
    expect(await serve.saying('take effect at the next start')).toContain('"keys":"server.keepAliveSeconds"');
  } finally {
    await endAll();
    rmSync(folder, { recursive: true });
  }
});
