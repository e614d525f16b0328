/** `GET /activity` of a real gateway, as a client and an operator get it, against the published JSON Schema. */
import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { z } from 'zod';
import type { AllActivity, WorkspaceActivity } from '../../src/activity/shape.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

const schema = z.fromJSONSchema(
  JSON.parse(readFileSync(new URL('../../schema/activity.schema.json', import.meta.url), 'utf8')) as never,
);
let upstream: Server;
let gateway: TestGateway;

const own = (query = '', key = gateway.keys['acme'] ?? ''): Promise<Response> =>
  fetch(`${gateway.url}/activity${query}`, { headers: { authorization: `Bearer ${key}` } });
const call = (path: string, fields: Record<string, string> = {}): Promise<Response> =>
  fetch(`${gateway.url}/via/model/${path}`, {
    headers: { authorization: `Bearer ${gateway.keys['acme']}`, ...fields },
  });

beforeAll(async () => {
  upstream = createServer((request, response) => {
    request.resume();
    if (request.url === '/throttle') response.writeHead(429, { 'retry-after': '30' }).end('{}');
    else response.writeHead(200).end('{}');
  });
  await new Promise<void>((done) => upstream.listen(0, '127.0.0.1', done));
  const { port } = upstream.address() as AddressInfo;
  gateway = await startGateway({
    upstreams: `  model:\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n    credential: "Bearer one"\n    limits: { requestsPerMinute: 100 }`,
    workspaces: { acme: '', idle: '' },
  });
  for (let n = 0; n < 3; n++) await (await call('ok')).text();
});

afterAll(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise<void>((done) => upstream.close(() => done()));
});

test('the activity of a workspace shows its ceiling, its calls and its headroom', async () => {
  const response = await own('?window=5m');
  const activity = (await response.json()) as WorkspaceActivity;
  expect([response.status, response.headers.get('content-type')]).toEqual([
    200,
    expect.stringMatching(/^application\/json/),
  ]);
  expect(() => schema.parse(activity)).not.toThrow();
  expect(activity).toMatchObject({ windowSeconds: 300, replicas: 1 });
  expect(activity.upstreams).toMatchObject([
    {
      upstream: 'model',
      ceilings: { perMinute: { limit: 100, remaining: 97 } },
      waiting: 0,
      inFlight: 0,
      nextSlotMs: 0,
      refusing: null,
      recent: { calls: 3, outcomes: { ok: 3 } },
      headroom: { busiestMinute: 3, usedRatio: 0.03 },
    },
  ]);
});

test('the activity on the admin port shows all workspaces that called, by label', async () => {
  const response = await fetch(`${gateway.adminUrl}/activity?window=90s`);
  const all = (await response.json()) as AllActivity;
  expect(() => schema.parse(all)).not.toThrow();
  expect(all.windowSeconds).toBe(120);
  expect(all.workspaces.map(({ workspace }) => workspace)).toEqual([
    expect.stringMatching(/^w_[0-9a-f]{16}$/),
  ]);
});

test('the activity API refuses a wrong window on both ports, and shows a stranger nothing', async () => {
  const refused = await own('?window=2h');
  expect([refused.status, refused.headers.get('sluice-error')]).toEqual([400, 'request_invalid']);
  expect((await fetch(`${gateway.adminUrl}/activity?window=soon`)).status).toBe(400);
  expect((await own('', 'slc_none')).status).toBe(401);
});

test('the activity of a closed bucket counts waiting calls, and its next slot is when the bucket opens', async () => {
  await (await call('throttle', { prefer: 'wait=1' })).text();
  const gone = new AbortController();
  const held = fetch(`${gateway.url}/via/model/ok`, {
    headers: { authorization: `Bearer ${gateway.keys['acme']}`, prefer: 'wait=60' },
    signal: gone.signal,
  }).catch(() => null);
  let [lane] = ((await (await own()).json()) as WorkspaceActivity).upstreams;
  // What is known of buckets is read four times a second.
  while (lane?.waiting !== 1 || lane.nextSlotMs === 0) {
    await new Promise((resume) => setImmediate(resume));
    [lane] = ((await (await own()).json()) as WorkspaceActivity).upstreams;
  }
  expect(lane.nextSlotMs).toBeGreaterThan(20_000);
  expect(lane.nextSlotMs).toBeLessThanOrEqual(31_000);
  gone.abort();
  await held;
});
