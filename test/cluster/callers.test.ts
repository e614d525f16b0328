import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { once } from 'node:events';
import { Agent, createServer, request, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createKey } from '../../src/cli/keys.ts';
import { serve, type ServedProcess } from '../journey/process.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { sumOf } from '../wire/stack-fixture.ts';

const replicas = 3;

let redis: RedisServer;
let upstream: Server;
const arrived: string[] = [];
/** The first call is answered when all others wait. */
const allWait = Promise.withResolvers<void>();
const processes: ServedProcess[] = [];
const keys = { acme: createKey(), nightly: createKey() };
const agent = new Agent({ keepAlive: true });

beforeAll(async () => {
  redis = await startRedis();
  upstream = createServer((call, response) => {
    arrived.push(String(call.headers['x-agent']));
    void allWait.promise.then(() => response.end('{}'));
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
    '    limits: { maxInFlightTotal: 1 }',
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

const waiting = async (): Promise<number> => {
  const pages = await Promise.all(
    processes.map(async ({ adminUrl }) => (await fetch(`${adminUrl}/metrics`)).text()),
  );
  return pages.reduce((sum, page) => sum + sumOf(page, 'sluice_queue_depth'), 0);
};

test('over three replicas a loop and nine people take turns, and the background goes when nobody else waits', async () => {
  const first = call(keys.acme.key, 'first');
  await until(() => arrived.length === 1);
  const people = Array.from({ length: 9 }, (_, person) => `person ${person}`);
  const line = [
    ...Array.from({ length: 20 }, () => call(keys.nightly.key, 'background')),
    ...Array.from({ length: 40 }, () => call(keys.acme.key, 'loop')),
    ...[1, 2, 3, 4].flatMap(() => people.map((person) => call(keys.acme.key, person))),
  ];
  await until(async () => (await waiting()) === line.length);
  allWait.resolve();
  expect(new Set(await Promise.all([first, ...line]))).toEqual(new Set([200]));
  const turns = arrived.slice(1).filter((caller) => caller !== 'background');
  const early = arrived.slice(1, 1 + turns.length).filter((caller) => caller === 'background');
  // One goes after a minute, which a slow machine may take.
  expect(early.length).toBeLessThanOrEqual(2);
  for (const round of [0, 1, 2, 3])
    expect(turns.slice(10 * round, 10 * (round + 1)).toSorted()).toEqual(['loop', ...people]);
}, 120_000);
