/** `sluice check --connect` says of Redis, of each origin and of each credential whether it works and, as a refused call does, what helps. */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from '@jest/globals';
import { tryConnections } from '../../src/cli/check.ts';
import { createKey } from '../../src/cli/keys.ts';
import { parseSettings } from '../../src/config/load.ts';
import { freePort } from '../support/free-port.ts';
import { serviceOf } from '../support/gateway.ts';
import { answering, rawUpstream, type RawUpstream, type Script } from '../support/raw-upstream.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { startTokenEndpoint } from '../support/token-endpoint.ts';
import { until } from '../support/until.ts';

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});
async function upstream(...wanted: Parameters<typeof rawUpstream>): Promise<RawUpstream> {
  const one = await rawUpstream(...wanted);
  closers.push(() => one.close());
  return one;
}
async function redis(...args: readonly string[]): Promise<RedisServer> {
  const one = await startRedis({ args });
  closers.push(() => one.stop());
  return one;
}

const responseOf = (status: number): string => `HTTP/1.1 ${status} x\r\ncontent-length: 2\r\n\r\nok`;
/** Knows one credential. */
const guarded: Script = async (connection) => {
  const request = await connection.requests(1);
  connection.send(responseOf(/authorization: Bearer canary-right/i.test(request) ? 200 : 401));
};
const entry = (name: string, origin: string, more = '', inside = 'true'): string =>
  `  ${name}: { origins: ["${origin}"], allowPrivateAddresses: ${inside}${more} }`;
const settingsOf = (upstreams: readonly string[], workspaces = '{}', more = '') =>
  parseSettings(`${more}\nupstreams:\n${upstreams.join('\n')}\nworkspaces: ${workspaces}\n`, {
    path: 'test.yaml',
    env: {},
  });
const redisSection = (url: string): string =>
  `redis: { url: "${url}", commandTimeoutMs: 5000 }\nprivacy: { labelKey: "a label key for tests only" }`;

test('a line for each connection, and no secret', async () => {
  const [model, plain] = [await upstream(guarded), await upstream(answering(responseOf(404)))];
  const section = redisSection((await redis()).url);
  const settings = settingsOf(
    [
      entry('model', model.origin, ', kind: language-model, credential: "Bearer canary-right"'),
      entry('plain', plain.origin, ', credential: "Bearer canary"'),
      '  stores: { kind: commerce, origins: ["https://*.shops.example"], credential: "canary" }',
      entry('gone', `http://127.0.0.1:${await freePort()}`),
      entry('outside', plain.origin.replace('127.0.0.1', 'localhost'), '', '["10.0.0.0/8"]'),
    ],
    '{ acme: { keys: [], upstreams: [model, plain, stores], credentials: { model: "Bearer canary-wrong" } } }',
    section,
  );
  const { lines, failures } = await tryConnections(settings);
  expect(lines).toEqual([
    'ok:     redis: can be used',
    `ok:     model ${model.origin}: answers 200 and takes the credential`,
    `FAILED: model ${model.origin}, credential of workspace acme: answers 401: it refuses the credential`,
    `ok:     plain ${plain.origin}: answers 404; that does not show whether a credential is right`,
    'ok:     stores https://*.shops.example: not tried, each call names its own host',
    // In the words that a call gets: `test/journey/responses.test.ts`.
    expect.stringMatching(/^FAILED: gone .*: .*does it run.* Reason: refused\.$/),
    expect.stringMatching(/^FAILED: outside .*a private one that its `allowPrivateAddresses` does not allow/),
  ]);
  expect(failures).toBe(3);
  expect(lines.join('')).not.toContain('canary');
  expect(model.connections[0]?.received()).toMatch(/^GET \/v1\/models HTTP/);
  const noDatabase = settingsOf([entry('plain', plain.origin)], '{}', section.replace('",', '/77",'));
  expect((await tryConnections(noDatabase)).lines[0]).toMatch(/^FAILED: redis \(database\): /);
});

describe('a credential', () => {
  const oauth = (url: string, more: string): string =>
    `, kind: language-model, credential: { header: authorization, oauth: { tokenUrl: "${url}", ${more} } }`;

  test('from a file or a token endpoint is tried like any other', async () => {
    const { origin } = await upstream(answering(responseOf(404)));
    const { url, close } = await startTokenEndpoint({ client: { id: 'canary-id', secret: 'canary-secret' } });
    closers.push(close);
    const ofClient = (secret: string) => oauth(url, `clientId: canary-id, clientSecret: ${secret}`);
    const { lines } = await tryConnections(
      settingsOf([
        entry('fetched', origin, ofClient('canary-secret')),
        entry('refused', origin, ofClient('canary-wrong')),
        entry('filed', origin, ', credential: { file: /no/such/file }'),
      ]),
    );
    expect(lines).toEqual([
      `ok:     fetched ${origin}: answers 404; that does not show whether a credential is right`,
      `FAILED: refused ${origin}: the credential is not available: its token endpoint does not accept this client (refused)`,
      `FAILED: filed ${origin}: the credential is not available: its file is missing (missing)`,
    ]);
  });

  test('by a refresh token uses none: the file is tried', async () => {
    const { origin } = await upstream(guarded);
    const { url, requests, close } = await startTokenEndpoint({ refresh: 'single_use' });
    closers.push(close);
    const folder = mkdtempSync(join(tmpdir(), 'sluice-check-'));
    closers.push(() => rmSync(folder, { recursive: true }));
    const at = (name: string): string => join(folder, name);
    writeFileSync(at('fresh'), 'canary-refresh\n', { mode: 0o600 });
    writeFileSync(at('open'), 'canary-refresh');
    chmodSync(at('open'), 0o644);
    const client = 'clientId: client-sim, clientSecret: secret-of-the-client, refreshTokenFile';
    const files = {
      fresh: at('fresh'),
      gone: at('none'),
      fixed: '/proc/sys/kernel/ostype',
    };
    const settings = settingsOf(
      Object.entries({ ...files, open: at('open') }).map(([name, path]) =>
        entry(name, origin, oauth(url, `${client}: "${path}"`)),
      ),
    );
    const { lines } = await tryConnections(settings);
    expect(requests).toEqual([]);
    const untried =
      'not tried; the refresh token’s file can be read and replaced, and to use the token would end it';
    expect(lines).toEqual([
      `ok:     fresh ${origin}: ${untried}`,
      `FAILED: gone ${origin}: the credential is not available: its file is missing (missing)`,
      `FAILED: fixed ${origin}: the credential is not available: the file of its refresh token cannot be replaced (unwritable)`,
      `ok:     open ${origin}: ${untried}`,
    ]);
    expect(lines.join()).not.toContain('canary');
  });
});

test('a Redis that cannot be used is named with its cause by the command, in the log of a start and in readiness', async () => {
  const [locked, plain] = [await redis('--requirepass', 'canary-right'), await redis()];
  const copy = await redis('--replicaof', '127.0.0.1', String(plain.port));
  const alone = await redis('--min-replicas-to-write', '1');
  const withPassword = `redis://:canary-wrong@127.0.0.1:${locked.port}`;
  const api = [entry('api', 'https://api.example')];
  const hash = createKey().hash;
  for (const [url, reason, words] of [
    [withPassword, 'password', /refuses the user or the password of redis.url/],
    [locked.url, 'password', /or wants one where none is given: correct the URL,/],
    ['redis://no-such-name.invalid', 'name', /host name of redis.url cannot be resolved: correct it/],
    [`redis://127.0.0.1:${await freePort()}`, 'refused', /start Redis, or correct host and port of the URL/],
    [plain.url.replace('redis:', 'rediss:'), 'timeout', /write redis:\/\/ instead of rediss:\/\//],
    [copy.url, 'read_only', /redis.url must lead to the primary, or to Sentinels/],
    [alone.url, 'replicas', /fewer replicas than its min-replicas-to-write demands/],
  ] as const) {
    const { lines } = await tryConnections(settingsOf(api, '{}', redisSection(url)));
    expect(lines[0]).toMatch(words);
    expect(lines[0]).toContain(`FAILED: redis (${reason}): `);
    const server = 'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }';
    const logs: string[] = [];
    const service = await serviceOf(
      `${server}\n${redisSection(url)}\nupstreams:\n${api[0]}\nworkspaces: { acme: { keys: ["${hash}"] } }`,
      logs,
    );
    closers.push(() => service.close());
    const told = (): string | undefined => logs.find((line) => line.includes(`"reason":"${reason}"`));
    await until(() => told() !== undefined);
    expect(told()).toMatch(words);
    const readiness = await fetch(`http://127.0.0.1:${service.adminAddress.port}/readyz`);
    expect(await readiness.text()).toMatch(words);
    expect([...logs, ...lines].join()).not.toContain('canary');
  }
});
