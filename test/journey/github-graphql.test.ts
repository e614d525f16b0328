/** A refusal that GitHub's GraphQL API sends as a success: absorbed like a 429. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from '@jest/globals';
import { startGateway } from '../support/gateway.ts';

test('a GraphQL response 200 that says RATE_LIMITED is absorbed, and the next one reaches the client whole', async () => {
  const data = JSON.stringify({ data: { viewer: { login: 'octocat' } } });
  let arrivals = 0;
  const upstream = createServer((request, response) => {
    request.resume();
    arrivals += 1;
    const isRefused = arrivals === 1;
    response.writeHead(200, {
      'content-type': 'application/json',
      'x-github-request-id': `AAAA:${arrivals}`,
      ...(isRefused ? { 'x-ratelimit-remaining': '0', 'retry-after': '1' } : {}),
    });
    response.end(
      isRefused ? JSON.stringify({ errors: [{ type: 'RATE_LIMITED', message: 'exceeded' }] }) : data,
    );
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  const gateway = await startGateway({
    upstreams: `  api: { origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true }\n`,
    workspaces: { team: '' },
  });
  try {
    const response = await fetch(`${gateway.url}/via/api/graphql`, {
      method: 'POST',
      headers: { 'sluice-key': gateway.keys['team'] ?? '', 'content-type': 'application/json' },
      body: JSON.stringify({ query: '{ viewer { login } }' }),
    });
    expect(await response.text()).toBe(data);
    expect(response.headers.get('sluice-admission')).toMatch(/attempts=2, absorbed=1/);
    expect(arrivals).toBe(2);
  } finally {
    await gateway.close();
    await new Promise((resolve) => upstream.close(resolve));
  }
});
