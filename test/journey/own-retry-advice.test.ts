/** What an upstream itself says about repeating a call reaches the client, whatever Sluice would say. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let gateway: TestGateway;
const upstream = createServer((request, response) => {
  request.resume();
  const { status = '200', advice } = Object.fromEntries(new URL(request.url ?? '/', 'http://u').searchParams);
  response.writeHead(Number(status), advice === undefined ? {} : { 'X-Should-Retry': advice });
  response.end(status === '429' ? '{"error":{"code":"insufficient_quota"}}' : '{}');
});

beforeAll(async () => {
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const upstreamOf = (name: string, kind: string): string =>
    `  ${name}: { kind: ${kind}, origins: ["${origin}"], allowPrivateAddresses: true }\n`;
  gateway = await startGateway({
    upstreams: upstreamOf('model', 'language-model') + upstreamOf('other', 'generic'),
  });
});
afterAll(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

const post = (url: string, credential: string): Promise<Response> =>
  fetch(url, {
    method: 'POST',
    headers: {
      'sluice-key': gateway.keys['acme'] ?? '',
      authorization: `Bearer ${credential}`,
      'content-type': 'application/json',
    },
    body: '{"model":"m"}',
  });

test.each([
  ['model', 500, 'true', 'true'],
  ['model', 500, 'false', 'false'],
  ['model', 500, undefined, null],
  ['model', 504, ' TRUE', 'TRUE'],
  ['other', 500, 'true', 'true'],
  ['other', 502, undefined, 'false'],
  ['other', 500, 'perhaps', 'false'],
  ['model', 429, 'true', 'true'],
  ['model', 400, 'true', 'true'],
])('%s answers a POST with %i and says %s: the client reads %s', async (name, status, advice, expected) => {
  const query = new URLSearchParams({ status: String(status), ...(advice === undefined ? {} : { advice }) });
  const response = await post(
    `${gateway.url}/via/${name}/v1/things?${query.toString()}`,
    `${name}-${status}-${advice ?? 'silent'}`,
  );
  expect([response.status, response.headers.get('x-should-retry')]).toEqual([status, expected]);
});

test.each([
  ['/v1/chat/completions', null],
  ['/v1/embeddings', null],
  ['/v1/fine_tuning/jobs', 'false'],
  ['/v1/batches', 'false'],
  ['/v1/threads/t1/runs', 'false'],
])('a POST to %s of a model that may have run advises %s', async (path, expected) => {
  const response = await post(`${gateway.url}/via/model${path}?status=500`, path);
  expect([response.status, response.headers.get('x-should-retry')]).toEqual([500, expected]);
});
