/** A position that one replica keeps is good at the others: also when that one is killed, and when Redis loses its data meanwhile. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { serve, type ServedProcess } from '../journey/process.ts';
import { serviceOf } from '../support/gateway.ts';
import { pause } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

const { key, hash } = createKey();
let redis: RedisServer;
let probe: Redis;
let arrivals: string[] = [];
const upstream = createServer((request, response) => {
  arrivals.push((request.url ?? '').slice(1));
  response.end('served');
});
let services: Service[] = [];
let killed: ServedProcess | null = null;

beforeAll(async () => {
  redis = await startRedis();
  probe = new Redis(redis.port);
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
});
beforeEach(async () => {
  await probe.flushall();
  arrivals = [];
  services = [await serviceOf(yaml()), await serviceOf(yaml())];
});
afterEach(async () => {
  await killed?.close();
  killed = null;
  await Promise.all(services.map((service) => service.close()));
});
afterAll(async () => {
  probe.disconnect();
  await redis.stop();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

/** Four calls at once, then one every two seconds. */
const yaml = (): string =>
  [
    `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }`,
    `redis: { url: "redis://127.0.0.1:${redis.port}", commandTimeoutMs: 2000 }`,
    'privacy: { labelKey: "a label key for tests only" }',
    `upstreams: { api: { origins: ["http://127.0.0.1:${(upstream.address() as AddressInfo).port}"], allowPrivateAddresses: true, credential: "Bearer one", speaks: { windows: [{ requests: 4, seconds: 8, kind: leaky }] }, reserveSeconds: 60 } }`,
    `workspaces: { acme: { keys: ["${hash}"] } }`,
  ].join('\n');

interface Reply {
  readonly status: number;
  readonly ticket: string | null;
  readonly waitMs: number;
}

async function call(
  port: number,
  name: string,
  headers: Readonly<Record<string, string>> = {},
): Promise<Reply> {
  const response = await fetch(`http://127.0.0.1:${port}/via/api/${name}`, {
    headers: { 'sluice-key': key, ...headers },
  });
  await response.text();
  const { headers: fields, status } = response;
  return { status, ticket: fields.get('sluice-ticket'), waitMs: Number(fields.get('retry-after-ms')) };
}

const portOf = (n: number): number => services[n]?.dataAddress.port ?? 0;

async function useUp(port: number): Promise<void> {
  const first = [0, 1, 2, 3].map((n) => call(port, `first${n}`, { prefer: 'wait=30' }));
  expect((await Promise.all(first)).map(({ status }) => status)).toEqual([200, 200, 200, 200]);
}

const reserve = { prefer: 'reserve, wait=0' };

test('a ticket of a replica that was killed is good at another one, before calls that came later and waited', async () => {
  killed = await serve(yaml());
  const port = Number(new URL(killed.url).port);
  await useUp(port);
  const given = await call(port, 'refused', reserve);
  expect(given).toMatchObject({ status: 429, ticket: expect.any(String) });
  const later = call(portOf(0), 'x', { prefer: 'wait=120' });
  killed.signal('SIGKILL');
  await killed.exited;
  await pause(given.waitMs);
  const back = await call(portOf(1), 'back', { prefer: 'wait=30', 'sluice-ticket': given.ticket ?? '' });
  expect(back.status).toBe(200);
  expect((await later).status).toBe(200);
  expect(arrivals.slice(4)).toEqual(['back', 'x']);
}, 120_000);

test('several refused together have times of their own over all replicas, and leave in that order', async () => {
  await useUp(portOf(0));
  const given = await Promise.all([0, 1, 2].map((n) => call(portOf(n % 2), `refused${n}`, reserve)));
  const tickets = given.map(({ ticket, waitMs }) => ({ ticket: ticket ?? '', waitMs }));
  expect(new Set(tickets.map(({ ticket }) => ticket)).size).toBe(3);
  const inOrder = tickets.toSorted((one, other) => one.waitMs - other.waitMs);
  const replies = await Promise.all(
    inOrder.map(async ({ ticket, waitMs }, n) => {
      await pause(waitMs);
      return call(portOf((n + 1) % 2), `back${n}`, { prefer: 'wait=20', 'sluice-ticket': ticket });
    }),
  );
  expect(replies.map(({ status }) => status)).toEqual([200, 200, 200]);
  expect(arrivals.slice(4)).toEqual(['back0', 'back1', 'back2']);
}, 120_000);

test('where Redis loses its data nobody is sent twice, and whoever comes back is served', async () => {
  await useUp(portOf(0));
  const given = await call(portOf(0), 'refused', reserve);
  const later = call(portOf(1), 'x', { prefer: 'wait=120' });
  await probe.flushall();
  await pause(given.waitMs);
  const ticket = { prefer: 'wait=60', 'sluice-ticket': given.ticket ?? '' };
  const twice = await Promise.all([call(portOf(0), 'back', ticket), later]);
  expect(twice.map(({ status }) => status)).toEqual([200, 200]);
  expect(arrivals.slice(4).toSorted()).toEqual(['back', 'x']);
}, 120_000);
