import { afterEach, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let gateway: TestGateway | null = null;

afterEach(async () => {
  await gateway?.close();
});

test('requests that are refused before they become calls are counted, without workspace or upstream', async () => {
  gateway = await startGateway({
    upstreams: '  api: { origins: ["http://127.0.0.1:9"], allowPrivateAddresses: true }',
  });
  await fetch(`${gateway.url}/nowhere`);
  await fetch(`${gateway.url}/activity`, { method: 'POST' });
  const page = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
  expect(page).toContain('sluice_requests_total{workspace="none",upstream="none",outcome="rejected"} 2');
});
