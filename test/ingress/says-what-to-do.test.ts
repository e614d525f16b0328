/** The first mistakes of a new user are answered with what to do. */
import { once } from 'node:events';
import { createServer, request, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { loadSettings } from '../../src/config/load.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let gateway: TestGateway;
const paced = createServer((_request, response) => response.end());
beforeAll(async () => {
  await once(paced.listen(0, '127.0.0.1'), 'listening');
  const { port } = paced.address() as AddressInfo;
  gateway = await startGateway({
    upstreams: `
  up: { origins: ["https://up.example"], credential: "Bearer x", limits: { requestsPerMinute: 3 } }
  paced: { origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, limits: { requestsPerMinute: 3 } }`,
    workspaces: { acme: '    requestsPerMinute: none' },
    server: '  maxBodyBytes: 8\n',
  });
});
afterAll(async () => {
  await gateway.close();
  paced.close();
});

async function detailOf(path: string, fields: Record<string, string> = {}): Promise<string> {
  const response = await fetch(`${gateway.url}${path}`, { headers: fields });
  return `${response.status} ${String(((await response.json()) as { detail?: unknown }).detail)}`;
}

test("a 401 says what may be wrong with the key and where it goes, equally for none, a wrong one and the upstream's", async () => {
  const missing = await detailOf('/via/up/x');
  expect(missing).toBe(
    "401 The API key is missing, unknown here, expired or removed. Send a valid one of Sluice, not the upstream's, as `Authorization: Bearer slc_…`, or in the field `Sluice-Key`.",
  );
  for (const key of ['slc_wrong', 'sk-proj-1'])
    expect(await detailOf('/via/up/x', { authorization: `Bearer ${key}` })).toBe(missing);
});

test('a base URL that names an upstream which is not there is told that the name is wrong', async () => {
  const authorization = `Bearer ${gateway.keys['acme']}`;
  for (const [path, advice] of [
    ['/via/upp/v1', 'did you mean up?'],
    ['/via/anthropic/v1', 'the operator can add it to `upstreams`.'],
  ] as const)
    expect(await detailOf(path, { authorization })).toBe(
      `403 No upstream of this workspace has this name: ${advice}`,
    );
});

test('a call that its client would not wait for is told whose limit its wait has met', async () => {
  const authorization = `Bearer ${gateway.keys['acme']}`;
  const held = { authorization, prefer: 'wait=0' };
  while ((await fetch(`${gateway.url}/via/paced/x`, { headers: held })).status === 200);
  const impatient = { ...held, 'x-stainless-timeout': '6' };
  expect(await detailOf('/via/paced/x', impatient)).toMatch(
    /^429 .* longer than it may wait\. Its client's timeout, or the operator's `maxWaitCeilingSeconds`, allows 2 s at most\.$/,
  );
  expect(await detailOf('/via/paced/x', held)).toMatch(
    /longer than it may wait\. Prefer: wait=\d+ lets it wait\.$/,
  );
});

test('a body that is too large is told the limit, and whose it is', async () => {
  const authorization = `Bearer ${gateway.keys['acme']}`;
  const body = Buffer.alloc(9);
  const response = await fetch(`${gateway.url}/via/paced/x`, {
    method: 'POST',
    headers: { authorization },
    body,
  });
  expect(await response.json()).toMatchObject({
    code: 'body_too_large',
    detail: 'The request body is above 8 bytes, which the operator can raise (`server.maxBodyBytes`).',
  });
});

test('who takes the data port for a forward proxy is told how to call', async () => {
  const sent = request(gateway.url, { path: 'http://up.example/x' }).end();
  const [response] = (await once(sent, 'response')) as [IncomingMessage];
  expect(response.statusCode).toBe(400);
  expect(await text(response)).toContain('Sluice is no HTTP_PROXY: call /proxy?target=');
});

test('who takes the admin port for the data port is told so', async () => {
  const gets = await fetch(`${gateway.adminUrl}/via/up/x`);
  const posts = await fetch(`${gateway.adminUrl}/via/up/x`, { method: 'POST' });
  expect([gets.status, posts.status]).toEqual([404, 403]);
  for (const response of [gets, posts]) expect(await response.text()).toContain('callers use the data port');
});

test('a 404 names the routes that exist', async () => {
  for (const route of ['/proxy?target=', '/via/{upstream}/{path}', '/activity'])
    expect(await detailOf('/v1/chat')).toContain(route);
});

test('a missing configuration file is reported with the command that writes one', () => {
  expect(() => loadSettings({ path: '/nowhere/sluice.yaml', env: {} })).toThrow(/npx sluice init/);
});

test('a workspace without a ceiling has none where its upstream states one', async () => {
  const ceilings = await gateway.service.gateway.ceilings('acme', 'up');
  expect(ceilings).toMatchObject({ perMinute: null });
});
