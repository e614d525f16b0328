/** An operator pauses, resumes and reopens an upstream through the admin port, over all replicas. */
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import { runControl } from '../../src/cli/control.ts';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

const { key, hash } = createKey();
let upstream: Server;
let redis: RedisServer;
let seen = 0;
const responses: ((response: ServerResponse) => void)[] = [];
let running: Service[] = [];

beforeAll(async () => {
  upstream = createServer((request, response) => {
    seen += 1;
    request.resume().on('end', () => (responses.shift() ?? ((open) => void open.end('ok')))(response));
  });
  await new Promise<void>((done) => upstream.listen(0, '127.0.0.1', done));
  redis = await startRedis();
});
afterEach(async () => {
  for (const service of running) await service.close();
  running = [];
});
afterAll(async () => {
  await new Promise<void>((done) => upstream.close(() => done()));
  await redis.stop();
});

async function replica(
  name: string,
  store = '',
  kind = 'generic',
  { server = '', logs = [] }: { readonly server?: string; readonly logs?: string[] } = {},
): Promise<Service> {
  const { port } = upstream.address() as AddressInfo;
  const yaml = gatewayYaml(
    {
      server,
      upstreams: `  ${name}:\n    kind: ${kind}\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n    credential: "Bearer x"\n    maxWaitSeconds: 100`,
    },
    { acme: hash },
  );
  const service = await serviceOf(`${store}${yaml}`, logs);
  running.push(service);
  return service;
}
const onRedis = (): string => `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }\n`;

const call = (service: Service, name: string, prefer = 'wait=100'): Promise<Response> =>
  fetch(`http://127.0.0.1:${service.dataAddress.port}/via/${name}/x`, {
    headers: { authorization: `Bearer ${key}`, prefer },
  });
const admin = (service: Service, path: string, init: RequestInit = {}): Promise<Response> =>
  fetch(`http://127.0.0.1:${service.adminAddress.port}/upstreams/${path}`, {
    method: 'POST',
    headers: { 'Sluice-Admin': 'yes' },
    ...init,
  });
async function paused(service: Service, name: string): Promise<void> {
  for (;;) {
    const response = await call(service, name, 'wait=0');
    await response.text();
    if (response.status === 429) return;
    await new Promise((resume) => setTimeout(resume, 20));
  }
}

describe('the admin port', () => {
  test('demands the field, a method and seconds, and knows its upstreams', async () => {
    const service = await replica('one');
    const statusOf = async (path: string, init?: RequestInit): Promise<string> => {
      const response = await admin(service, path, init);
      return `${response.status} ${((await response.json()) as { code: string }).code}`;
    };
    expect(await statusOf('one/open', { headers: {} })).toBe('403 admin_field_missing');
    expect(await statusOf('one/open', { method: 'GET' })).toBe('405 method_not_allowed');
    expect(await statusOf('one/pause')).toBe('400 request_invalid');
    expect(await statusOf('one/pause?seconds=0')).toBe('400 request_invalid');
    expect(await statusOf('two/open')).toBe('404 not_found');
    expect((await call(service, 'one')).status).toBe(200);
  });
});

test('the commands of the terminal carry the token, and the log says what was done but no token', async () => {
  const logs: string[] = [];
  const token = 'canary-token-of-the-operator';
  const service = await replica('guarded', '', 'generic', { server: `  adminToken: ${token}\n`, logs });
  const admin = `http://127.0.0.1:${service.adminAddress.port}`;
  const said: string[] = [];
  const run = (given: string | undefined): Promise<number> =>
    runControl(
      { verb: 'pause', upstream: 'guarded', seconds: 60, admin },
      {
        out: (text) => said.push(text),
        err: (text) => said.push(text),
        env: given === undefined ? {} : { SLUICE_ADMIN_TOKEN: given },
        terminals: { out: null, err: false },
        readerGone: new AbortController().signal,
        clock: { now: () => 0 },
      },
    );
  expect([await run(undefined), await run('another-token-of-somebody'), await run(token)]).toEqual([1, 1, 0]);
  expect(said[0]).toContain('SLUICE_ADMIN_TOKEN');
  const lines = logs.filter((line) => line.includes('a command was given at the admin port'));
  expect(lines.map((line) => JSON.parse(line) as unknown)).toMatchObject([
    { level: 'info', verb: 'pause', upstream: 'guarded', seconds: 60, result: 'done' },
  ]);
  expect(logs.join('') + said.join('')).not.toContain(token);
});

describe.each([
  ['embedded', () => ''],
  ['over Redis', onRedis],
])('%s', (store, section) => {
  const name = store.replace(/\W/g, '').toLowerCase();

  test('a pause holds calls, refuses those that cannot wait for its end, and resume lets them go', async () => {
    const service = await replica(`${name}p`, section());
    const paused = async () =>
      RegExp(`^sluice_upstream_paused\\{upstream="${name}p"\\} (\\d)$`, 'm').exec(
        (await service.telemetry.metrics('prometheus')).body,
      )?.[1];
    expect(await paused()).toBe('0');
    expect((await admin(service, `${name}p/pause?seconds=60`)).status).toBe(200);
    expect(await paused()).toBe('1');
    const before = seen;
    const refused = await call(service, `${name}p`, 'wait=2');
    expect(await refused.json()).toMatchObject({ status: 429, code: 'wait_too_long', heldBy: 'paused' });
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(5);
    const held = call(service, `${name}p`);
    await until(() =>
      service.telemetry.live().some(({ upstream, waiting }) => upstream === `${name}p` && waiting === 1),
    );
    expect(seen).toBe(before);
    expect(await (await admin(service, `${name}p/resume`)).json()).toEqual({ result: 'done' });
    expect(await (await admin(service, `${name}p/resume`)).json()).toEqual({ result: 'not_paused' });
    const response = await held;
    expect([response.status, seen]).toEqual([200, before + 1]);
    expect(response.headers.get('sluice-admission')).toMatch(/held=\(paused;ms=\d+\)/);
  });

  test('open reopens a bucket that a long Retry-After has closed', async () => {
    const service = await replica(`${name}o`, section());
    responses.push((response) => void response.writeHead(429, { 'retry-after': '86000' }).end());
    expect((await call(service, `${name}o`)).status).toBe(429);
    const closed = await call(service, `${name}o`);
    expect(await closed.json()).toMatchObject({ code: 'wait_too_long', heldBy: 'closed' });
    const before = seen;
    const io = {
      out: () => {},
      err: () => {},
      env: {},
      terminals: { out: null, err: false },
      readerGone: new AbortController().signal,
      clock: { now: () => 0 },
    };
    const url = `http://127.0.0.1:${service.adminAddress.port}`;
    expect(await runControl({ verb: 'open', upstream: `${name}o`, seconds: null, admin: url }, io)).toBe(0);
    expect([(await call(service, `${name}o`)).status, seen]).toEqual([200, before + 1]);
  });
});

describe('several replicas', () => {
  test('forget a breaker within a second when an operator opens the upstream at one of them', async () => {
    const [one, two] = [
      await replica('unpaid', onRedis(), 'commerce'),
      await replica('unpaid', onRedis(), 'commerce'),
    ];
    responses.push((response) => void response.writeHead(402).end('no credit'));
    expect((await call(one, 'unpaid')).status).toBe(402);
    const refusing = async (service: Service): Promise<boolean> => {
      const response = await call(service, 'unpaid');
      await response.text();
      return response.headers.get('sluice-error') === 'upstream_refused';
    };
    expect(await refusing(one)).toBe(true);
    while (two.gateway.parts.breakers.observed('unpaid').length === 0)
      await new Promise((resume) => setTimeout(resume, 20));
    expect((await admin(one, 'unpaid/open')).status).toBe(200);
    while (two.gateway.parts.breakers.observed('unpaid').length > 0)
      await new Promise((resume) => setTimeout(resume, 20));
    expect([await refusing(one), await refusing(two)]).toEqual([false, false]);
  });

  test('share a pause, also with one that begins later', async () => {
    const [one, two] = [await replica('shared', onRedis()), await replica('shared', onRedis())];
    await admin(one, 'shared/pause?seconds=60');
    await paused(two, 'shared');
    const later = await replica('shared', onRedis());
    const response = await call(later, 'shared', 'wait=1');
    expect(await response.json()).toMatchObject({ code: 'wait_too_long', heldBy: 'paused' });
  });

  test('open what none of them has used since its start', async () => {
    const first = await replica('reborn', onRedis());
    responses.push((response) => void response.writeHead(429, { 'retry-after': '86000' }).end());
    expect((await call(first, 'reborn')).status).toBe(429);
    await first.close();
    running = [];
    const [one, two] = [await replica('reborn', onRedis()), await replica('reborn', onRedis())];
    expect((await admin(one, 'reborn/open')).status).toBe(200);
    expect((await call(one, 'reborn')).status).toBe(200);
    expect((await call(two, 'reborn')).status).toBe(200);
  });
});
