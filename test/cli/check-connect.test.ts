/** `sluice check --connect` says of Redis, of each origin and of each credential whether it works, and shows no secret. */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { tryConnections } from '../../src/cli/check-connect.ts';
import { refreshFileWarnings } from '../../src/cli/refresh-files.ts';
import { parseSettings } from '../../src/config/load.ts';
import { freePort } from '../support/free-port.ts';
import { rawUpstream, type RawUpstream } from '../support/raw-upstream.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { startTokenEndpoint } from '../support/token-endpoint.ts';

const responseOf = (status: number): string => `HTTP/1.1 ${status} x\r\ncontent-length: 2\r\n\r\nok`;
let model: RawUpstream;
let plain: RawUpstream;
let gone: string;
let redis: RedisServer;

beforeAll(async () => {
  model = await rawUpstream(async (connection) => {
    const request = await connection.requests(1);
    connection.send(responseOf(/authorization: Bearer canary-right/i.test(request) ? 200 : 401));
  });
  plain = await rawUpstream(async (connection) => {
    await connection.requests(1);
    connection.send(responseOf(404));
  });
  gone = `http://127.0.0.1:${await freePort()}`;
  redis = await startRedis();
});
afterAll(async () => {
  await model.close();
  await plain.close();
  await redis.stop();
});

const settingsOf = (url: string) =>
  parseSettings(
    `
redis: { url: "${url}" }
privacy: { labelKey: "a label key for tests only" }
upstreams:
  model: { kind: language-model, origins: ["${model.origin}"], allowPrivateAddresses: true, credential: "Bearer canary-right" }
  plain: { origins: ["${plain.origin}"], allowPrivateAddresses: true, credential: "Bearer canary" }
  gone: { origins: ["${gone}"], allowPrivateAddresses: true }
  stores: { kind: commerce, origins: ["https://*.shops.example"], credential: "canary" }
workspaces:
  acme: { keys: [], upstreams: [model, plain, gone, stores], credentials: { model: "Bearer canary-wrong" } }
`,
    { path: 'test.yaml', env: {} },
  );

test('sluice check prints a line for each connection', async () => {
  const { lines, failures } = await tryConnections(settingsOf(redis.url));
  expect(lines).toEqual([
    'ok:     redis: can be used',
    `ok:     model ${model.origin}: answers 200 and takes the credential`,
    `FAILED: model ${model.origin}, credential of workspace acme: answers 401: it refuses the credential`,
    `ok:     plain ${plain.origin}: answers 404; that does not show whether a credential is right`,
    expect.stringMatching(
      /^FAILED: gone \S+: The connection to the upstream was refused.* Reason: refused\.$/,
    ),
    'ok:     stores https://*.shops.example: not tried, each call names its own host',
  ]);
  expect(failures).toBe(2);
  expect(lines.join('')).not.toContain('canary');
  expect(model.connections[0]?.received()).toMatch(/^GET \/v1\/models HTTP/);
});

test('sluice check names the reason why a Redis cannot be used', async () => {
  const { lines } = await tryConnections(
    settingsOf(redis.url.replace('127.0.0.1', ':canary@127.0.0.1') + '/77'),
  );
  expect(lines[0]).toMatch(/^FAILED: redis \(database\): /);
});

test('sluice check tries a credential from a file or a token endpoint like any other', async () => {
  const endpoint = await startTokenEndpoint({ client: { id: 'canary-id', secret: 'canary-secret' } });
  const oauth = (secret: string): string =>
    `{ header: authorization, oauth: { tokenUrl: "${endpoint.url}", clientId: canary-id, clientSecret: ${secret} } }`;
  const upstream = (name: string, credential: string): string =>
    `  ${name}: { origins: ["${plain.origin}"], allowPrivateAddresses: true, credential: ${credential} }\n`;
  const settings = parseSettings(
    `upstreams:\n${upstream('fetched', oauth('canary-secret'))}${upstream('refused', oauth('canary-wrong'))}${upstream('filed', '{ file: /no/such/file }')}workspaces: {}\n`,
    { path: 'test.yaml', env: {} },
  );
  const { lines } = await tryConnections(settings);
  await endpoint.close();
  expect(lines).toEqual([
    `ok:     fetched ${plain.origin}: answers 404; that does not show whether a credential is right`,
    `FAILED: refused ${plain.origin}: the credential is not available: its token endpoint does not accept this client (refused)`,
    `FAILED: filed ${plain.origin}: the credential is not available: its file is missing (missing)`,
  ]);
});

test('sluice check uses no refresh token: it tries the file, and the access token that stands there', async () => {
  const endpoint = await startTokenEndpoint({ refresh: 'single_use' });
  const folder = mkdtempSync(join(tmpdir(), 'sluice-check-'));
  const write = (name: string, text: string): string => {
    writeFileSync(join(folder, name), text, { mode: 0o600 });
    return join(folder, name);
  };
  const oauth = (file: string): string =>
    `{ header: authorization, oauth: { tokenUrl: "${endpoint.url}", clientId: client-sim, clientSecret: secret-of-the-client, refreshTokenFile: "${file}" } }`;
  const upstream = (name: string, file: string): string =>
    `  ${name}: { origins: ["${model.origin}"], kind: language-model, allowPrivateAddresses: true, credential: ${oauth(file)} }\n`;
  const inUse = '{"refresh_token":"canary-refresh","access_token":"canary-right"}';
  const settings = parseSettings(
    `upstreams:\n${upstream('fresh', write('fresh', 'canary-refresh\n'))}${upstream('used', write('used', inUse))}${upstream('gone', join(folder, 'none'))}${upstream('fixed', '/proc/sys/kernel/ostype')}${upstream('open', write('open', 'canary-refresh'))}workspaces: {}\n`,
    { path: 'test.yaml', env: {} },
  );
  chmodSync(join(folder, 'open'), 0o644);
  const { lines } = await tryConnections(settings);
  const warnings = await refreshFileWarnings(settings);
  await endpoint.close();
  rmSync(folder, { recursive: true });
  expect(endpoint.requests).toEqual([]);
  const untried =
    'not tried; the refresh token’s file can be read and replaced, and to use the token would end it';
  expect(lines).toEqual([
    `ok:     fresh ${model.origin}: ${untried}`,
    `ok:     used ${model.origin}: answers 200 and takes the credential`,
    `FAILED: gone ${model.origin}: the credential is not available: its file is missing (missing)`,
    `FAILED: fixed ${model.origin}: the credential is not available: the file of its refresh token cannot be replaced (unwritable)`,
    `ok:     open ${model.origin}: ${untried}`,
  ]);
  expect(warnings.map((text) => text.split(':')[0])).toEqual([
    'upstream gone',
    'upstream fixed',
    'upstream open',
  ]);
  expect([...lines, ...warnings].join()).not.toContain('canary');
});
