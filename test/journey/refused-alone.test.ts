/** A call that is refused again and again without a time, while others of its bucket are served, holds nobody else up. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let gateway: TestGateway;
let refusals = 0;
const upstream = createServer((request, response) => {
  const parts: Buffer[] = [];
  request.on('data', (part: Buffer) => parts.push(part));
  request.on('end', () => {
    const isBad = Buffer.concat(parts).includes('never');
    if (isBad) refusals += 1;
    response.writeHead(isBad ? 429 : 200, { 'content-type': 'application/json' });
    response.end(
      isBad ? '{"error":{"message":"not for you"}}' : '{"choices":[{"message":{"content":"hi"}}]}',
    );
  });
});
beforeAll(async () => {
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  gateway = await startGateway({
    upstreams: `  model: { kind: language-model, origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, credential: "Bearer sk", limits: { requestsPerMinute: none, requestsPerDay: none } }`,
    workspaces: { a: '', b: '' },
  });
});
afterAll(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

async function ask(workspace: string, content: string): Promise<Response> {
  const response = await fetch(`${gateway.url}/via/model/v1/chat/completions`, {
    method: 'POST',
    headers: { 'sluice-key': gateway.keys[workspace] ?? '', 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content }] }),
  });
  await response.text();
  return response;
}

test('from its third refusal on at the latest the bucket stays open', async () => {
  const bad = ask('a', 'never');
  let isOver = false;
  void bad.then(() => (isOver = true));
  let served = 0;
  const closedBehind = new Set<number>();
  while (!isOver) {
    expect((await ask('b', `other ${(served += 1)}`)).status).toBe(200);
    const before = refusals;
    const isClosed = gateway.service.gateway.parts.pressure
      .buckets()
      .some(({ snapshot }) => snapshot.closedMs > 0);
    if (isClosed && refusals === before) closedBehind.add(before);
  }
  expect((await bad).status).toBe(429);
  expect(refusals).toBeGreaterThan(3);
  // It is closed behind the first refusal, and behind the second where no other call was served before that.
  expect([...closedBehind].filter((n) => n > 2)).toEqual([]);
});
