/** The first mistakes of a new user are answered with what to do, and requests that never become calls are in the log. */
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { listening, type Listening } from '../support/listening.ts';

let gateway: TestGateway;
let authorized: Record<string, string>;
let paced: Listening;
beforeAll(async () => {
  paced = await listening((_request, response) => void response.end());
  const limits = 'limits: { requestsPerMinute: 3 }';
  gateway = await startGateway({
    upstreams: `
  up: { origins: ["https://up.example"], credential: "Bearer x", ${limits} }
  paced: { origins: ["${paced.url}"], allowPrivateAddresses: true, ${limits} }`,
    workspaces: { acme: '    requestsPerMinute: none' },
    server: '  maxBodyBytes: 8\n',
  });
  authorized = { authorization: `Bearer ${gateway.keys['acme']}` };
});
afterAll(async () => {
  await gateway.close();
  await paced.close();
});

async function detailOf(
  path: string,
  headers: Record<string, string> = authorized,
  body?: Buffer,
): Promise<string> {
  const method = body === undefined ? 'GET' : 'POST';
  const response = await fetch(`${gateway.url}${path}`, { method, headers, ...(body && { body }) });
  return `${response.status} ${String(((await response.json()) as { detail?: unknown }).detail)}`;
}

async function answerTo(request: string): Promise<string> {
  const socket = connect(Number(new URL(gateway.url).port), '127.0.0.1');
  socket.write(request);
  return text(socket);
}

// First of all: calls without a valid key get ten lines a minute.
test.each([
  ['a route that there is not', 'GET /nope HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n', 404, 'GET'],
  ['a method that is not served', 'TRACE /proxy HTTP/1.1\r\nHost: a\r\n\r\n', 405, 'other'],
  ['two Host fields', 'GET /proxy HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n', 400, 'GET'],
  ['bytes that are not HTTP', 'hello\r\n\r\n', 400, 'other'],
  ['a tunnel', 'CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n', 405, 'other'],
])('the request id of a refusal is in the log: %s', async (_name, request, status, method) => {
  const answer = await answerTo(request);
  const requestId = /^Sluice-Request-Id: (\w+)\r$/im.exec(answer)?.[1];
  const code = /^Sluice-Error: (\w+)\r$/im.exec(answer)?.[1];
  const lines = gateway.logs.map((line) => JSON.parse(line) as Record<string, unknown>);
  expect(lines.filter((line) => line['requestId'] === requestId)).toMatchObject([
    { workspace: 'none', upstream: 'none', outcome: 'rejected', status, code, method, message: 'call ended' },
  ]);
});

test("a 401 says what may be wrong with the key and where it goes, equally for none, a wrong one and the upstream's", async () => {
  const keys = [{}, { authorization: 'Bearer slc_wrong' }, { authorization: 'Bearer sk-proj-1' }];
  for (const fields of keys)
    expect(await detailOf('/via/up/x', fields)).toBe(
      "401 The API key is missing, unknown here, expired or removed. Send a valid one of Sluice, not the upstream's, as `Authorization: Bearer slc_…`, or in the field `Sluice-Key`.",
    );
});

test.each([
  ['/via/upp/v1', 'did you mean up?'],
  ['/via/anthropic/v1', 'the operator can add it to `upstreams`.'],
])('a base URL that names no upstream is told that the name is wrong: %s', async (path, advice) => {
  expect(await detailOf(path)).toBe(`403 No upstream of this workspace has this name: ${advice}`);
});

test('a call that its client would not wait for is told whose limit its wait has met', async () => {
  const held = { ...authorized, prefer: 'wait=0' };
  while ((await fetch(`${gateway.url}/via/paced/x`, { headers: held })).status === 200);
  expect(await detailOf('/via/paced/x', { ...held, 'x-stainless-timeout': '6' })).toMatch(
    /^429 .* longer than it may wait\. It may wait for 2 s at most \(its client's timeout, or the operator's `maxWaitCeilingSeconds`\)\.$/,
  );
  expect(await detailOf('/via/paced/x', held)).toMatch(
    /longer than it may wait\. Prefer: wait=\d+ lets it wait\.$/,
  );
});

test('a body that is too large is told the limit, and whose it is', async () => {
  expect(await detailOf('/via/paced/x', authorized, Buffer.alloc(9))).toBe(
    '413 The request body is above 8 bytes, which the operator can raise (`server.maxBodyBytes`).',
  );
});

test('who takes the data port for a forward proxy, or the admin port for the data port, is told so', async () => {
  const sent = request(gateway.url, { path: 'http://up.example/x' }).end();
  const [response] = (await once(sent, 'response')) as [IncomingMessage];
  expect(response.statusCode).toBe(400);
  expect(await text(response)).toContain('Sluice is no HTTP_PROXY: call /proxy?target=');
  for (const [method, status] of [
    ['GET', 404],
    ['POST', 403],
  ] as const) {
    const refused = await fetch(`${gateway.adminUrl}/via/up/x`, { method });
    expect([refused.status, await refused.text()]).toEqual([
      status,
      expect.stringContaining('callers use the data port'),
    ]);
  }
});

test('a 404 names the routes that exist', async () => {
  for (const route of ['/proxy?target=', '/via/{upstream}/{path}', '/activity'])
    expect(await detailOf('/v1/chat', {})).toContain(route);
});

test('a workspace without a ceiling has none where its upstream states one', async () => {
  expect(await gateway.service.gateway.ceilings('acme', 'up')).toMatchObject({ perMinute: null });
});
