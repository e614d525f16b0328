/** A refusal may concern its call alone, the calls of its bucket, or all calls with its credential: as the dialect says. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

const clock = fastClock(20);
let gateway: TestGateway;
/** Paths of the calls that came, and how each was answered. */
const log: { path: string; status: number }[] = [];
let answer: (path: string) => { status: number; headers?: Record<string, string>; body?: string };
const upstream = createServer((request, response) => {
  const path = request.url ?? '';
  const { status, headers = {}, body = '' } = answer(path);
  log.push({ path, status });
  response.writeHead(status, headers).end(body);
});
beforeAll(async () => {
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  const speaks = `speaks: { bucketBy: [credential, 'path:/rooms/{*}'], throttledBy: [{ status: 429, field: x-all, scope: credential }, { status: 403, body: [LIMIT, at once], waitSeconds: 20, scope: call }], permanentBy: [{ status: 403, body: LIMIT, scope: bucket }, { status: 402, body: price of this call, scope: call }] }`;
  const origin = `origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true`;
  gateway = await startGateway({
    clock,
    upstreams: `  api: { ${origin}, credential: "Bearer one", ${speaks} }\n  other: { ${origin}, credential: "Bearer two", ${speaks} }`,
    workspaces: { a: '', b: '' },
  });
});
afterAll(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});
beforeEach(() => {
  log.length = 0;
});

async function ask(
  path: string,
  workspace = 'a',
): Promise<{ readonly status: number; readonly code: string | null }> {
  const response = await fetch(`${gateway.url}/via${path}`, {
    headers: { 'sluice-key': gateway.keys[workspace] ?? '', prefer: 'wait=70' },
  });
  await response.text();
  return { status: response.status, code: response.headers.get('sluice-error') };
}

const served = { status: 200, code: null };
const refusals = (): number => log.filter(({ status }) => status !== 200).length;

test('all buckets of a credential wait for the end of a refusal that says so, and those of another one do not', async () => {
  let closedUntil: number | null = null;
  answer = (path) => {
    closedUntil ??= clock.monotonic() + 20_000;
    const isClosed = path.startsWith('/rooms/') && clock.monotonic() < closedUntil;
    return isClosed ? { status: 429, headers: { 'x-all': 'true', 'retry-after': '20' } } : { status: 200 };
  };
  const first = ask('/api/rooms/1');
  await until(() => refusals() === 1);
  await until(() =>
    gateway.service.gateway.parts.pressure.buckets().some(({ snapshot }) => snapshot.closedMs > 0),
  );
  const others = ['2', '3', '4'].map((room) => ask(`/api/rooms/${room}`, 'b'));
  expect(await ask('/other/elsewhere')).toEqual(served);
  expect(await Promise.all([first, ...others])).toEqual(Array.from({ length: 4 }, () => served));
  expect(refusals()).toBe(1);
});

test('a call that is refused alone waits alone, though its code means more with another message', async () => {
  let sent = 0;
  answer = (path) =>
    path === '/rooms/5?busy' && (sent += 1) === 1
      ? { status: 403, body: '{"errorCode":"LIMIT","message":"Too many at once"}' }
      : { status: 200 };
  const busy = ask('/api/rooms/5?busy');
  await until(() => refusals() === 1);
  expect(await ask('/api/rooms/5', 'b')).toEqual(served);
  expect(sent).toBe(1);
  expect(await busy).toEqual(served);
});

test('a refusal for good concerns the bucket alone, or nobody else, where the condition says so', async () => {
  answer = (path) => {
    if (path.startsWith('/rooms/6')) return { status: 403, body: '{"errorCode":"LIMIT"}' };
    return path === '/dear' ? { status: 402, body: 'the price of this call is too high' } : { status: 200 };
  };
  expect(await ask('/api/dear')).toEqual({ status: 402, code: null });
  expect(await ask('/api/plain', 'b')).toEqual(served);
  expect(await ask('/api/rooms/6')).toEqual({ status: 403, code: null });
  expect(await ask('/api/rooms/6/more', 'b')).toEqual({ status: 403, code: 'upstream_refused' });
  expect(await ask('/api/rooms/7', 'b')).toEqual(served);
});
