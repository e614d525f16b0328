/** Each mistake about Redis has its own message: in the log and in readiness at the start, while it runs, and in a trial. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../../src/clock.ts';
import { parseSettings } from '../../../src/config/load.ts';
import { watchServer } from '../../../src/limiter/redis/trial.ts';
import { tryRedis } from '../../../src/limiter/stores.ts';
import type { Service } from '../../../src/service.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { serviceOf } from '../../support/gateway.ts';
import { freePort } from '../../support/free-port.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';

const tlsFile = (name: string): string =>
  fileURLToPath(new URL(`../../fixtures/tls/upstream.test.${name}`, import.meta.url));
const servers: RedisServer[] = [];
const urls: Record<string, string> = {};

async function started(args: readonly string[]): Promise<RedisServer> {
  const server = await startRedis({ args });
  servers.push(server);
  return server;
}

beforeAll(async () => {
  const plain = await started([]);
  const locked = await started(['--requirepass', 'right']);
  const evicting = await started(['--maxmemory-policy', 'allkeys-lru']);
  const replica = await started(['--replicaof', '127.0.0.1', String(plain.port)]);
  const tlsPort = await freePort();
  const cert = ['--tls-cert-file', tlsFile('crt'), '--tls-key-file', tlsFile('key')];
  const secure = ['--tls-port', String(tlsPort), ...cert, '--tls-ca-cert-file', tlsFile('crt')];
  await started([...secure, '--tls-auth-clients', 'no']);
  Object.assign(urls, {
    password: `redis://:wrong@127.0.0.1:${locked.port}`,
    'no password': locked.url,
    refused: `redis://127.0.0.1:${await freePort()}`,
    name: 'redis://redis.invalid:6379',
    'plain to TLS': `redis://127.0.0.1:${tlsPort}`,
    'TLS to plain': plain.url.replace('redis:', 'rediss:'),
    certificate: `rediss://127.0.0.1:${tlsPort}`,
    'read-only replica': replica.url,
    evicting: evicting.url,
    database: `${plain.url}/99`,
    plain: plain.url,
  });
});
afterAll(async () => {
  for (const server of servers) await server.stop();
});

const yaml = (url: string): string => `
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }
redis: { url: "${url}" }
privacy: { labelKey: "a label key for tests only" }
upstreams: { up: { origins: ["https://up.example"], credential: "Bearer x" } }
workspaces: {}
`;
const mistakes: readonly (readonly [string, string])[] = [
  ['password', 'password'],
  ['no password', 'password'],
  ['refused', 'refused'],
  ['name', 'name'],
  ['plain to TLS', 'closed'],
  ['TLS to plain', 'tls'],
  ['certificate', 'certificate'],
  ['read-only replica', 'read_only'],
];

async function lineWith(logs: readonly string[], text: string): Promise<Record<string, unknown>> {
  for (;;) {
    const line = logs.find((each) => each.includes(text));
    if (line !== undefined) return JSON.parse(line) as Record<string, unknown>;
    await new Promise((resume) => setTimeout(resume, 20));
  }
}
const readiness = async (service: Service): Promise<string> =>
  (await fetch(`http://127.0.0.1:${service.adminAddress.port}/readyz`)).text();

describe('a gateway that cannot use its Redis', () => {
  test.each(mistakes)('starts and names the mistake: %s', async (mistake, reason) => {
    const logs: string[] = [];
    const service = await serviceOf(yaml(urls[mistake] ?? ''), logs);
    // A connection that is closed at once may be met first as an absence without a reason.
    const line = await lineWith(logs, `"reason":"${reason}"`);
    expect(line['advice']).toMatch(/^\S.{30,}\.$/);
    expect(await readiness(service)).toBe(
      `starting\nRedis is away (${reason}): ${String(line['advice'])}\nRedis has never been reached: until it is, calls are refused.\n`,
    );
    expect(logs.join('')).not.toMatch(/wrong|127\.0\.0\.1|redis\.invalid/);
    await service.close();
  });

  test('does not start when Redis evicts keys', async () => {
    await expect(serviceOf(yaml(urls['evicting'] ?? ''))).rejects.toThrow(
      'Redis evicts keys (maxmemory-policy allkeys-lru), also leases in use: set maxmemory-policy to noeviction.',
    );
  });

  test('names, while it runs, a changed password, then a Redis that became a replica, then its return', async () => {
    const server = await started([]);
    const straight = new Redis(server.port, '127.0.0.1');
    const logs: string[] = [];
    const service = await serviceOf(yaml(server.url), logs);
    expect(await readiness(service)).toBe('ok\n');
    await straight.config('SET', 'requirepass', 'other');
    await straight.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    expect(await lineWith(logs, '"reason":"password"')).toMatchObject({ level: 'warn' });
    await straight.replicaof('127.0.0.1', '1');
    await straight.config('SET', 'requirepass', '');
    await lineWith(logs, '"reason":"read_only"');
    expect(await readiness(service)).toContain('Redis is away (read_only)');
    await straight.replicaof('NO', 'ONE');
    await lineWith(logs, 'Redis is back');
    expect(await readiness(service)).toBe('ok\n');
    straight.disconnect();
    await service.close();
  });
});

test('a gateway logs once, within a minute, that a running Redis was set to evict keys', async () => {
  const clock = new FakeClock();
  const logged: string[] = [];
  let policy = 'noeviction';
  const info = (): Promise<string> =>
    Promise.resolve(`redis_version:7.0.0\r\nmaxmemory_policy:${policy}\r\n`);
  const error = (message: string, fields: object = {}): void =>
    void logged.push(`${message} ${JSON.stringify(fields)}`);
  const stop = watchServer({ info, isReady: () => true }, { clock, log: { error } });
  await clock.run(120_000);
  expect(logged).toEqual([]);
  policy = 'volatile-lru';
  await clock.run(240_000);
  expect(logged).toHaveLength(1);
  expect(logged[0]).toContain('"reason":"evicts"');
  stop();
});

describe('a trial of the Redis settings', () => {
  test.each([...mistakes, ['evicting', 'evicts'], ['database', 'database']] as const)(
    'names the mistake: %s',
    async (mistake, reason) => {
      expect(await tried(urls[mistake] ?? '')).toMatchObject({ reason });
    },
  );

  test('finds no mistake in a Redis that can be used', async () => {
    expect(await tried(urls['plain'] ?? '')).toBeNull();
  });
});

function tried(url: string) {
  const { redis } = parseSettings(yaml(url), { path: 'test.yaml', env: {} });
  if (redis === null) throw new Error('no Redis is configured');
  return tryRedis(redis, { clock: systemClock, random: systemRandom });
}
