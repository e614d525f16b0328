import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from '@jest/globals';
import { startGateway } from '../support/gateway.ts';

test.each([
  [{ 'idempotency-key': 'k' }, { 'idempotency-key': 'k' }],
  [{ 'x-stainless-retry-count': '0' }, { 'x-stainless-retry-count': '1' }],
])('a call is joined only by calls with the same credential of their own: %j', async (first, second) => {
  const held: (() => void)[] = [];
  const upstream = createServer((request, response) => {
    held.push(() => response.end(request.headers.authorization));
    if (held.length === 2) for (const respond of held) respond();
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  const gateway = await startGateway({
    upstreams: `  api:\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n`,
    workspaces: { team: '' },
  });
  const whoAmI = async (name: string, headers: Record<string, string>): Promise<string> => {
    const key = gateway.keys['team'] ?? '';
    const response = await fetch(`${gateway.url}/via/api/me`, {
      headers: { 'sluice-key': key, authorization: `Bearer ${name}`, ...headers },
      signal: AbortSignal.timeout(60_000),
    });
    return response.text();
  };
  try {
    const alice = whoAmI('alice', first);
    while (held.length === 0) await new Promise((resolve) => setTimeout(resolve, 2));
    expect(await Promise.all([alice, whoAmI('bob', second)])).toEqual(['Bearer alice', 'Bearer bob']);
  } finally {
    await gateway.close();
    await new Promise((resolve) => upstream.close(resolve));
  }
});
