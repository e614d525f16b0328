import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { once } from 'node:events';
import { Agent, createServer, request, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createKey } from '../../src/cli/keys.ts';
import { serve, type ServedProcess } from '../journey/process.ts';
import { jainOf } from '../support/jain.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

/** Calls a second that the upstream takes. */
const perSecond = 40;
const replicas = 3;

let redis: RedisServer;
let upstream: Server;
const arrived: string[] = [];
const processes: ServedProcess[] = [];
const keys = { acme: createKey(), nightly: createKey() };
const agent = new Agent({ keepAlive: true });

beforeAll(async () => {
  redis = await startRedis();
  upstream = createServer((call, response) => {
    arrived.push(String(call.headers['x-agent']));
    response.end('{}');
  });
  upstream.listen(0, '127.0.0.1');
  await once(upstream, 'listening');
  const { port } = upstream.address() as AddressInfo;
  const yaml = [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
    'privacy: { labelKey: "a label key for tests only" }',
    `redis: { url: "redis://127.0.0.1:${redis.port}", commandTimeoutMs: 5000 }`,
    'upstreams:',
    '  api:',
    '    kind: generic',
    `    origins: ["http://127.0.0.1:${port}"]`,
    '    allowPrivateAddresses: true',
    '    credential: { header: authorization, value: "Bearer of-the-upstream" }',
    `    speaks: { windows: [{ requests: ${perSecond}, seconds: 1, kind: leaky }] }`,
    'workspaces:',
    `  acme: { keys: ["${keys.acme.hash}"], callers: { by: "header:x-agent" } }`,
    `  nightly: { keys: ["${keys.nightly.hash}"], class: background }`,
  ].join('\n');
  processes.push(...(await Promise.all(Array.from({ length: replicas }, () => serve(yaml)))));
}, 120_000);

afterAll(async () => {
  agent.destroy();
  await Promise.all(processes.map((each) => each.close()));
  upstream.closeAllConnections();
  upstream.close();
  await redis.stop();
});

let sent = 0;

/** Through one replica after the other. Resolves with the status. */
async function call(key: string, caller: string): Promise<number> {
  const url = `${processes[(sent += 1) % replicas]?.url ?? ''}/via/api/v1/things`;
  const headers = { 'sluice-key': key, 'x-agent': caller, prefer: 'wait=600' };
  const asked = request(url, { agent, headers });
  asked.end();
  const [response] = (await once(asked, 'response')) as [IncomingMessage];
  response.resume();
  await once(response, 'end');
  return response.statusCode ?? 0;
}

/** Keeps so many calls under way until it is stopped. */
function keeps(count: number, of: () => Promise<number>): () => Promise<readonly number[]> {
  let isStopped = false;
  const statuses: number[] = [];
  const lines = Array.from({ length: count }, async () => {
    while (!isStopped) statuses.push(await of());
  });
  return async () => {
    isStopped = true;
    await Promise.all(lines);
    return statuses;
  };
}

test('over three replicas a loop and nine people get equal shares, and the background what they leave', async () => {
  const stops = [
    keeps(40, () => call(keys.acme.key, 'loop')),
    ...Array.from({ length: 9 }, (_, person) => keeps(4, () => call(keys.acme.key, `person ${person}`))),
  ];
  await until(() => arrived.length > 3 * perSecond);
  const stopBackground = keeps(20, () => call(keys.nightly.key, 'background'));
  const from = arrived.length;
  await until(() => arrived.length > from + 12 * perSecond);
  const during = arrived.slice(from);
  const shares = Map.groupBy(during, (caller) => caller);
  const background = shares.get('background')?.length ?? 0;
  shares.delete('background');
  expect(shares.size).toBe(10);
  expect(jainOf([...shares.values()].map(({ length }) => length))).toBeGreaterThanOrEqual(0.97);
  // One is due after a minute, which a slow machine may take.
  expect(background).toBeLessThanOrEqual(2);
  const statuses = (await Promise.all(stops.map((stop) => stop()))).flat();
  const alone = arrived.length;
  await until(() => arrived.length > alone + 2 * perSecond);
  expect(new Set(arrived.slice(alone + 1))).toEqual(new Set(['background']));
  statuses.push(...(await stopBackground()));
  expect(new Set(statuses)).toEqual(new Set([200]));
}, 120_000);
