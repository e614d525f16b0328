/**
 * 500 workspaces, wildcard hosts and failing calls over two replicas on a real Redis, and then a search through everything
 * that leaves a replica: log lines, both metric formats, spans, activity on both ports, the page with its events, all that
 * was ever said to Redis (its own monitor) and all that it holds.
 */
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { trace } from '@opentelemetry/api';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { gatewayYaml, homeward, serviceOf } from '../support/gateway.ts';
import { rawUpstream, type RawConnection, type RawUpstream } from '../support/raw-upstream.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { otlpSink } from '../telemetry/otlp-sink.ts';

const count = 500;
const names = Array.from({ length: count }, (_, n) => `canary-workspace-${n}`);
const hosts = names.map((_, n) => `canary-shop-${n}.stores.example`);
const made = names.map(() => createKey());
const endings = ['ok', 'throttle', 'error', 'reset'] as const;
const before = { ...process.env };
const logs: string[] = [];
const seen: Record<string, string> = {};
const statuses: number[] = [];
let shownWorkspaces = 0;
let replicasCounted = 0;
let redisServer: RedisServer;
let upstream: RawUpstream;
const services: Service[] = [];

async function script(connection: RawConnection): Promise<void> {
  for (let n = 1; ; n += 1) {
    const received = await connection.requests(n);
    if (connection.socket.destroyed) return;
    const wanted = /\/(\w+)\?q=/.exec((received.match(/ \/\S+ HTTP\/1\.1/g) ?? []).at(-1) ?? '')?.[1];
    if (wanted === 'reset') return void connection.socket.resetAndDestroy();
    const status = { throttle: '429 Slow\r\nRetry-After: 100', error: '500 canary-reason' }[wanted ?? ''];
    connection.send(`HTTP/1.1 ${status ?? '200 OK'}\r\nContent-Length: 11\r\n\r\ncanary-text`);
  }
}

const replica = (yaml: string): Promise<Service> =>
  serviceOf(yaml, logs, { env: process.env, resolve: homeward });

async function call(n: number): Promise<void> {
  const base = `http://127.0.0.1:${services[n % 2]?.dataAddress.port}`;
  const ending = endings[n % endings.length] ?? 'ok';
  const response = await fetch(
    `${base}/via/stores/${hosts[n]}:${upstream.port}/canary-path/${ending}?q=canary-query`,
    {
      headers: {
        authorization: `Bearer ${made[n]?.key}`,
        'sluice-upstream-authorization': `Bearer canary-brought-${n}`,
        cookie: 'canary-cookie',
        'x-secret': 'canary-field',
        prefer: 'wait=2',
      },
    },
  );
  statuses.push(response.status);
  await response.arrayBuffer();
}

async function read(url: string, fields: Record<string, string> = {}): Promise<string> {
  const response = await fetch(url, { headers: fields });
  return JSON.stringify([...response.headers]) + (await response.text());
}

/** Keys with everything in them. */
async function dump(client: Redis): Promise<string> {
  const lines: string[] = [];
  for (const key of await client.keys('*')) {
    const kind = await client.type(key);
    const value =
      kind === 'hash'
        ? await client.hgetall(key)
        : kind === 'zset'
          ? await client.zrange(key, '0', '-1', 'WITHSCORES')
          : kind === 'string'
            ? await client.get(key)
            : await client.dump(key);
    lines.push(`${key} ${JSON.stringify(value)}`);
  }
  return lines.join('\n');
}

/** The first message of an open page. */
async function events(url: string): Promise<string> {
  const over = new AbortController();
  const response = await fetch(`${url}/page/events`, { signal: over.signal });
  let text = '';
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  while (!text.includes('event: workspaces')) {
    const part = await reader?.read();
    if (part === undefined || part.done) break;
    text += part.value;
  }
  over.abort();
  return text;
}

beforeAll(async () => {
  redisServer = await startRedis();
  upstream = await rawUpstream(script);
  const sink = await otlpSink();
  Object.assign(process.env, {
    OTEL_EXPORTER_OTLP_ENDPOINT: sink.endpoint,
    OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json',
  });
  const yaml = `redis: { url: "${redisServer.url}", commandTimeoutMs: 2000 }\n${gatewayYaml(
    {
      upstreams: `  stores:\n    kind: commerce\n    origins: ["http://*.stores.example:${upstream.port}"]\n    allowPrivateAddresses: true\n    bucketBy: [credential, host]\n    credential: { header: x-shopify-access-token, value: canary-credential }`,
      workspaces: Object.fromEntries(names.map((name) => [name, '    requestsPerMinute: 100'])),
    },
    Object.fromEntries(names.map((name, n) => [name, made[n]?.hash ?? ''])),
  )}`;
  const client = new Redis(redisServer.port, '127.0.0.1');
  const monitor = await monitorRedis(redisServer.port);
  services.push(await replica(yaml), await replica(yaml));
  for (let from = 0; from < count; from += 25) {
    await Promise.all(Array.from({ length: 25 }, (_, i) => call(from + i)));
  }
  seen['keys and values in Redis'] = await dump(client);
  const two = services[1];
  // The one that leaves publishes what it saw; the one that stays shows it.
  await services.shift()?.close();
  const admin = `http://127.0.0.1:${two?.adminAddress.port}`;
  // Until the one that stays has published as well.
  while ((await client.keys('sluice:{activity}:4:*:live')).length < 2) await sleep(50);
  const all = await read(`${admin}/activity`);
  shownWorkspaces = new Set(all.match(/w_[0-9a-f]{16}/g)).size;
  replicasCounted = Number(/"replicas":(\d+)/.exec(all)?.[1]);
  seen['activity'] = all;
  seen['own activity'] = await read(`http://127.0.0.1:${two?.dataAddress.port}/activity`, {
    authorization: `Bearer ${made[1]?.key}`,
  });
  seen['metrics'] = await read(`${admin}/metrics`);
  seen['OpenMetrics'] = await read(`${admin}/metrics`, {
    accept: 'application/openmetrics-text; version=1.0.0',
  });
  seen['page'] = await read(`${admin}/`);
  seen['page events'] = await events(admin);
  seen['activity in Redis'] = await dump(client);
  await services.shift()?.close();
  seen['log lines'] = logs.join('');
  seen['spans'] = sink.bodies.join('\n');
  seen['commands to Redis'] = monitor.lines.join('\n');
  monitor.stop();
  client.disconnect();
  await sink.close();
});

afterAll(async () => {
  for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
  trace.disable();
  for (const service of services) await service.close();
  await upstream.close();
  await redisServer.stop();
});

test('the calls end in every way, and every store and output has something to search', () => {
  expect(new Set(statuses)).toEqual(new Set([200, 429, 500, 502]));
  expect(statuses).toHaveLength(count);
  for (const where of Object.keys(seen))
    expect([where, (seen[where] ?? '').length > 200]).toEqual([where, true]);
  expect(seen['spans']).toContain('sluice.workspace');
  expect(seen['page events']).toContain('event: workspaces');
  expect(seen['commands to Redis']).toContain('sluice:{activity}');
  expect(seen['activity in Redis']).toContain('sluice:{activity}:4:');
  expect(replicasCounted).toBe(2);
  expect(shownWorkspaces).toBeGreaterThan(50);
});

test('no store or output names a workspace, host, path, credential or anything else of a call', () => {
  const found = Object.entries(seen).flatMap(([where, text]) => {
    const at = text.toLowerCase().indexOf('canary');
    return at < 0 ? [] : [`${where}: ${text.slice(Math.max(0, at - 60), at + 40)}`];
  });
  expect(found).toEqual([]);
});

test('no store or output has a key, or anything that could be computed from a name without the label key', () => {
  // Each word once: the monitor repeats the same names thousands of times.
  const words = new Set(Object.values(seen).flatMap((text) => text.split(/[^\w-]+/)));
  const everything = [...words].filter((word) => word.length >= 16).join('\n');
  const plain = (text: string): string[] =>
    (['hex', 'base64url'] as const).map((form) =>
      createHash('sha256').update(text).digest(form).slice(0, 16),
    );
  for (const [n, name] of names.entries()) {
    expect(everything.includes(made[n]?.key.slice(-43) ?? '')).toBe(false);
    expect(everything.includes(made[n]?.hash.slice('sha256:'.length) ?? '')).toBe(false);
    for (const text of [...plain(name), ...plain(hosts[n] ?? '')])
      expect(everything.includes(text)).toBe(false);
  }
});
