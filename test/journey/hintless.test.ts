/** A refusal that states no wait: its call comes back over the wait that it has, and other workspaces wait for a second only. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

const clock = fastClock(10);
let gateway: TestGateway;
/** When the calls of each path came, milliseconds of the gateway's clock. */
const arrivals = new Map<string, number[]>();
let isOpen = false;
const upstream = createServer((request, response) => {
  const path = request.url ?? '';
  arrivals.set(path, [...(arrivals.get(path) ?? []), clock.monotonic()]);
  response.writeHead(isOpen || path === '/b' ? 200 : 429, { 'content-type': 'text/plain' });
  response.end(isOpen ? 'served' : 'Quota exceeded');
});
beforeAll(async () => {
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  const origin = `origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true`;
  gateway = await startGateway({
    clock,
    upstreams: `  api: { ${origin}, credential: "Bearer one" }\n  fixed: { ${origin}, credential: "Bearer two", speaks: { hintlessSeconds: 3 } }`,
    workspaces: { a: '', b: '' },
  });
});
afterAll(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

async function ask(workspace: string, path: string): Promise<{ status: number; text: string }> {
  const response = await fetch(`${gateway.url}/via${path}`, {
    headers: { 'sluice-key': gateway.keys[workspace] ?? '', prefer: 'wait=70' },
  });
  return { status: response.status, text: await response.text() };
}

const gapsOf = (path: string): readonly number[] => {
  const times = arrivals.get(path) ?? [];
  return times.slice(1).map((time, index) => time - (times[index] ?? NaN));
};

test('its call is sent again after a growing time, for longer than a few seconds, and is served in the end', async () => {
  isOpen = false;
  const call = ask('a', '/api/a');
  await until(() => (arrivals.get('/a') ?? []).length === 5);
  isOpen = true;
  expect(await call).toEqual({ status: 200, text: 'served' });
  const gaps = gapsOf('/a');
  expect(gaps).toHaveLength(5);
  for (const [n, gap] of gaps.entries()) expect(gap).toBeGreaterThanOrEqual(1000 * 2 ** n);
});

test('another workspace is served while the refused one still waits', async () => {
  isOpen = false;
  arrivals.delete('/b');
  const call = ask('a', '/api/c');
  await until(() => (arrivals.get('/c') ?? []).length === 5);
  const refusals = (arrivals.get('/c') ?? []).length;
  expect((await ask('b', '/api/b')).status).toBe(200);
  // The sixteen seconds of the refused call are not over: others waited for the first second of them.
  expect(arrivals.get('/c')).toHaveLength(refusals);
  isOpen = true;
  expect((await call).status).toBe(200);
});

test('a dialect may say how long the wait is', async () => {
  isOpen = false;
  const call = ask('a', '/fixed/d');
  await until(() => (arrivals.get('/d') ?? []).length === 3);
  isOpen = true;
  expect((await call).status).toBe(200);
  for (const gap of gapsOf('/d')) expect(gap).toBeGreaterThanOrEqual(3000);
});
