/** Upstreams that say with another response than 401 that a token has ended, as `expiredBy` describes it. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { startTokenEndpoint, type TokenEndpoint } from '../support/token-endpoint.ts';
import { tally } from './world.ts';

interface CallResponse {
  readonly status: number;
  readonly body: string;
}

let endpoint: TokenEndpoint;
let upstream: Server;
let gateway: TestGateway;
/** Statuses that the upstream gave. */
let given: number[];
afterEach(async () => {
  await gateway.close();
  await endpoint.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

/** An upstream that gives this response to a token that has ended; to `/other` it gives another refusal. */
async function start(expired: CallResponse, expiredBy: string, other: CallResponse): Promise<void> {
  given = [];
  endpoint = await startTokenEndpoint({ isRotating: true });
  upstream = createServer((request, response) => {
    const token = (request.headers.authorization ?? '').replace('Bearer ', '');
    const fresh = { status: 200, body: '{"ok":true}' };
    const { status, body } = !endpoint.isValid(token) ? expired : request.url === '/other' ? other : fresh;
    given.push(status);
    response.writeHead(status, { 'content-type': 'application/json' }).end(body);
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const oauth = `{ tokenUrl: "${endpoint.url}", clientId: client-sim, clientSecret: secret-of-the-client }`;
  gateway = await startGateway({
    upstreams: [
      '  api:',
      `    origins: ["${origin}"]`,
      '    allowPrivateAddresses: true',
      `    credential: { oauth: ${oauth} }`,
      `    speaks: { expiredBy: [${expiredBy}] }\n`,
    ].join('\n'),
  });
}

async function call(path = '/things'): Promise<{ readonly status: number; readonly text: string }> {
  const headers = { authorization: `Bearer ${gateway.keys['acme'] ?? ''}` };
  const response = await fetch(`${gateway.url}/via/api${path}`, { headers });
  return { status: response.status, text: await response.text() };
}

test.each([
  [
    'a 403 with a text',
    { status: 403, body: '{"code":"TOKEN_EXPIRED"}' },
    '{ status: 403, body: token_expired }',
    { status: 403, body: '{"code":"NO_RIGHT"}' },
  ],
  [
    'a 400 of an OAuth server',
    { status: 400, body: '{"error":"invalid_grant"}' },
    '{ status: 400, body: invalid_grant }',
    { status: 400, body: '{"error":"invalid_page"}' },
  ],
  [
    'a 200 with an error in it',
    { status: 200, body: '{"ok":false,"error":"token_expired"}' },
    '{ status: 200, body: token_expired }',
    { status: 200, body: '{"ok":false,"error":"not_in_channel"}' },
  ],
  [
    'a 440, while a 401 means something else',
    { status: 440, body: '{}' },
    '{ status: 440 }',
    { status: 401, body: '{"error":"second factor"}' },
  ],
])('%s renews the token once, and the same calls are sent again', async (_, expired, by, other) => {
  await start(expired, by, other);
  expect(await call()).toEqual({ status: 200, text: '{"ok":true}' });
  endpoint.revoke(endpoint.issued[0] ?? '');
  const replies = await Promise.all(Array.from({ length: 5 }, () => call()));
  expect(replies.map(({ text }) => text)).toEqual(Array(5).fill('{"ok":true}'));
  expect(tally(replies)).toEqual({ 200: 5 });
  expect(endpoint.requests).toHaveLength(2);
  // Another refusal is no word of the token: it passes, and nothing is renewed.
  const sent = given.length;
  expect(await call('/other')).toEqual({ status: other.status, text: other.body });
  expect([given.length - sent, endpoint.requests.length]).toEqual([1, 2]);
});
