/** The lines of requests that never become calls, beside a running gateway. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway({ upstreams: '  api: { origins: ["https://api.example.com"] }' });
});
afterAll(() => gateway.close());

async function answerTo(request: string): Promise<string> {
  const socket = connect(Number(new URL(gateway.url).port), '127.0.0.1');
  socket.write(request);
  return text(socket);
}

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
