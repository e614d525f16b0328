/**
 * Canaries in every secret place, every kind of ending, over two replicas on a real Redis, and then a search through everything that
 * leaves a replica: log lines, both metric formats, spans, activity on both ports, the page with its events, a recording (a rehearsal
 * knows no more), responses of our own, all that was ever said to Redis (its own monitor), all that it holds, and (for the API key) the
 * upstream.
 */
import { createHash } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { trace } from '@opentelemetry/api';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { gatewayYaml, homeward, serviceOf } from '../support/gateway.ts';
import { connectRaw, type RawResponse } from '../support/raw-client.ts';
import { rawUpstream, type RawConnection, type RawUpstream } from '../support/raw-upstream.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { otlpSink } from '../telemetry/otlp-sink.ts';

/** Values that must never be seen outside, by where they are put in. */
const canaries = {
  injectedCredential: 'canary-injected-credential-7f3a',
  ownCredential: 'canary-workspace-credential-91bc',
  broughtCredential: 'canary-brought-credential-55d0',
  path: 'canary-path-e1e1',
  query: 'canary-query-0b2c',
  cookie: 'canary-cookie-77aa',
  body: 'canary-body-3c3c',
  workspace: 'canary-workspace-id-8d8d',
  host: 'canary-shop-4e4e',
  field: 'canary-field-2f2f',
  userAgent: 'canary-agent-6a6a',
  idempotency: 'canary-idempotency-1d1d',
  upstreamText: 'canary-upstream-text-9c9c',
  model: 'canary-model-5b5b',
  address: 'canary-address-a7a7',
  trace: 'canary-trace-b6b6',
  adminToken: 'canary-admin-token-c8c8',
} as const;

const { key, hash } = createKey();
const other = createKey();
const wrongKey = createKey().key;
const logs: string[] = [];
const ours: string[] = [];
const recorded: string[] = [];
/** Everything that left a replica, by where. */
const seen: Record<string, string> = {};
const before = { ...process.env };
const services: Service[] = [];
let redis: RedisServer;
let upstream: RawUpstream;

/** Answers by what the path asks for. */
async function script(connection: RawConnection): Promise<void> {
  for (let count = 1; ; count += 1) {
    const received = await connection.requests(count);
    if (connection.socket.destroyed) return;
    const lines = received.match(/ \/\S+ HTTP\/1\.1/g) ?? [];
    const wanted = /\/(\w+)\?q=/.exec(lines.at(-1) ?? '')?.[1] ?? '';
    const text = JSON.stringify({ error: { message: canaries.upstreamText, code: 'insufficient_quota' } });
    const respond = (status: string, body: string): void =>
      connection.send(`HTTP/1.1 ${status}\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    if (wanted === 'reset') return void connection.socket.resetAndDestroy();
    if (wanted === 'throttle') respond('429 Slow\r\nRetry-After: 100', canaries.upstreamText);
    else if (wanted === 'quota') respond('429 Slow\r\nContent-Type: application/json', text);
    else if (wanted === 'error') respond(`500 ${canaries.upstreamText}`, text);
    else if (wanted === 'invalid') respond(`099 ${canaries.upstreamText}\r\nX: ${canaries.upstreamText}`, '');
    else if (wanted === 'cut') {
      connection.send(`HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n${canaries.upstreamText}`);
      return connection.socket.destroySoon();
    } else if (wanted !== 'silent') respond('200 OK', 'ok');
  }
}

let sent = 0;
/** Sends to the replicas in turn. */
async function send(line: string, fields: readonly string[], body = ''): Promise<RawResponse | undefined> {
  const client = await connectRaw(services[(sent += 1) % services.length]?.dataAddress.port ?? 0);
  const head = [`${line} HTTP/1.1`, 'Host: gateway', `Content-Length: ${body.length}`, ...fields, '', ''];
  await client.send(head.join('\r\n') + body);
  const [response] = await client.responses(1).catch(() => []);
  client.socket.destroy();
  const isOurs = response?.field('sluice-error') !== undefined;
  const own = response?.fields.filter(([name]) => isOurs || /^(sluice|rate)/.test(name));
  ours.push(JSON.stringify(own) + (isOurs ? response.body.toString('latin1') : ''));
  return response;
}

const everyField = [
  `Cookie: session=${canaries.cookie}`,
  `X-Secret: ${canaries.field}`,
  `User-Agent: ${canaries.userAgent}`,
  'Content-Type: application/json',
  `X-Client-IP: ${canaries.address}`,
  `True-Client-IP: ${canaries.address}`,
  `X_Forwarded_For: ${canaries.address}`,
  `b3: ${canaries.trace}`,
  `baggage: user=${canaries.trace}`,
  `Idempotency-Key: ${canaries.idempotency}`,
];

const body = JSON.stringify({ model: canaries.model, input: canaries.body });

beforeAll(async () => {
  redis = await startRedis();
  upstream = await rawUpstream(script);
  const sink = await otlpSink();
  const otlp = { OTEL_EXPORTER_OTLP_ENDPOINT: sink.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json' };
  Object.assign(process.env, otlp);
  const client = new Redis(redis.port, '127.0.0.1');
  const monitor = await monitorRedis(redis.port);
  const limits = 'limits: { requestsPerMinute: 1000, maxWaitSeconds: 1 }';
  const timeouts = 'timeouts: { connectSeconds: 2, headSeconds: 1.5, idleSeconds: 1.5, totalSeconds: 4 }';
  const common = `    allowPrivateAddresses: true\n    ${limits}\n    ${timeouts}`;
  const yaml = `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }\n${gatewayYaml(
    {
      upstreams: [
        `  model:\n    kind: language-model\n    origins: ["${upstream.origin}"]\n${common}`,
        `    credential: { header: authorization, value: "Bearer ${canaries.injectedCredential}" }`,
        `  own:\n    origins: ["http://localhost:${upstream.port}"]\n${common}`,
        `  stores:\n    kind: commerce\n    origins: ["http://*.stores.example:${upstream.port}"]\n${common}`,
        `    credential: { header: x-shopify-access-token, value: ${canaries.injectedCredential} }`,
      ].join('\n'),
      server: `  maxBodyBytes: 1000\n  adminToken: ${canaries.adminToken}\n`,
      workspaces: {
        [canaries.workspace]: `    credentials: { stores: ${canaries.ownCredential} }\n    requestsPerMinute: { own: 2 }`,
        quiet: '    upstreams: [own]',
      },
    },
    { [canaries.workspace]: hash, quiet: other.hash },
  )}`;
  for (let n = 0; n < 2; n += 1)
    services.push(await serviceOf(yaml, logs, { env: process.env, resolve: homeward }));
  const [one, two] = services as [Service, Service];
  void record(`http://127.0.0.1:${one.adminAddress.port}/recording?seconds=600`);
  await until(() => recorded.length > 0);
  await everyPath(upstream);
  seen['buckets'] = JSON.stringify(services.map(({ gateway }) => gateway.parts.pressure.buckets()));
  seen['Redis'] = await dump(client);
  // The one that leaves publishes what it saw; the one that stays shows it.
  await one.close();
  await until(async () => {
    const [live = ''] = await client.keys('sluice:{activity}:5:*:live');
    return (await client.hlen(live)) >= 2;
  });
  const admin = `http://127.0.0.1:${two.adminAddress.port}`;
  for (const path of ['/metrics', '/activity', '/activity?window=1h', '/', '/nowhere'])
    seen[path] = await read(admin + path);
  seen['OpenMetrics'] = await read(`${admin}/metrics`, {
    accept: 'application/openmetrics-text; version=1.0.0',
  });
  seen['own activity'] = await read(`http://127.0.0.1:${two.dataAddress.port}/activity`, {
    authorization: `Bearer ${key}`,
  });
  seen['page events'] = await events(admin);
  seen['activity in Redis'] = await dump(client);
  await two.close();
  seen['log lines'] = logs.join('');
  seen['responses and fields of Sluice'] = ours.join('\n');
  seen['spans'] = sink.bodies.join('\n');
  seen['commands to Redis'] = monitor.lines.join('\n');
  seen['recording'] = recorded.join('');
  monitor.stop();
  client.disconnect();
  await sink.close();
});

/** Reads a recording until it is cut off, when the service ends. */
async function record(url: string): Promise<void> {
  const response = await fetch(url, { headers: { 'accept-encoding': 'identity' } });
  const text = response.body?.pipeThrough(new TextDecoderStream()) ?? [];
  try {
    for await (const lines of text) recorded.push(lines);
  } catch {
    // The service has ended.
  }
}

/** Keys with everything in them. */
async function dump(client: Redis): Promise<string> {
  const keys = await client.keys('*');
  const values = await Promise.all(
    keys.map(async (name) => (await client.dumpBuffer(name)).toString('latin1')),
  );
  const hashes = await Promise.all(keys.map((name) => client.hgetall(name).catch(() => null)));
  return JSON.stringify([keys, values, hashes]);
}

/** The first messages of an open page. */
async function events(url: string): Promise<string> {
  const over = new AbortController();
  const response = await fetch(`${url}/page/events`, { signal: over.signal });
  let text = '';
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  while (!text.includes('event: workspaces')) text += (await reader?.read())?.value ?? '';
  over.abort();
  return text;
}

afterAll(async () => {
  for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
  trace.disable();
  for (const service of services) await service.close();
  await upstream.close();
  await redis.stop();
});

/** Every ending a call can have, in the forms in which the key can come. */
async function everyPath({ origin, port }: RawUpstream): Promise<void> {
  const bearer = `Authorization: Bearer ${key}`;
  const asKey = [`Sluice-Key: ${key}`, `Authorization: Bearer ${canaries.broughtCredential}`];
  const brought = [bearer, `Sluice-Upstream-Authorization: Bearer ${canaries.broughtCredential}`];
  const target = (base: string, ending: string): string =>
    `/proxy?target=${encodeURIComponent(`${base}/${canaries.path}/${ending}?q=${canaries.query}`)}`;
  const store = `${canaries.host}.stores.example:${port}`;
  for (const ending of 'ok error reset silent cut invalid throttle ok quota ok'.split(' ')) {
    const unique = (n: number): readonly string[] => [
      ...everyField.slice(0, -1),
      `Idempotency-Key: ${canaries.idempotency}-${ending}-${n}`,
    ];
    // A commerce call of unknown fate keeps its lane for a lease's length: those endings come late.
    const storeEnding = ending === 'reset' || ending === 'silent' ? 'error' : ending;
    await Promise.all([
      send(`POST ${target(origin, ending)}`, [bearer, ...unique(1)], body),
      send(`POST /via/model/${canaries.path}/${ending}?q=${canaries.query}`, [bearer, ...unique(2)], body),
      send(`POST ${target(`http://${store}`, storeEnding)}`, [...brought, ...unique(3)], body),
      send(
        `POST /via/stores/${store}/${canaries.path}/${storeEnding}?q=${canaries.query}`,
        [`X-Shopify-Access-Token: ${key}`, ...unique(4)],
        body,
      ),
      send(`GET ${target(`http://localhost:${port}`, ending)}`, [...asKey, ...everyField.slice(0, 3)]),
      send(`GET ${target(`http://localhost:${port}`, ending)}`, [
        ...brought,
        `Cookie: k=${key}`,
        `X-Copy: ${key}`,
      ]),
    ]);
  }
  const refused: readonly (readonly [string, readonly string[], string])[] = [
    [`GET ${target('https://evil.example', 'ok')}`, [bearer, ...everyField], ''],
    [`GET ${target(`http://${canaries.host}:1`, 'ok')}`, [bearer, ...everyField], ''],
    [`GET ${target(origin, 'ok')}&${canaries.query}`, [bearer], ''],
    [`GET ${target(origin, 'ok')}`, [`Authorization: Bearer ${wrongKey}`, ...everyField], ''],
    [`GET ${target(origin, 'ok')}`, [`Authorization: ${key}`, ...everyField], ''],
    [`GET ${target(origin, 'ok')}`, [bearer, `Sluice-Key: ${wrongKey}`], ''],
    [`GET ${target(origin, 'ok')}`, [bearer, bearer], ''],
    [`GET ${target(origin, 'ok')}`, [`Authorization: Bearer ${other.key}`], ''],
    [`POST ${target(origin, 'ok')}`, [bearer], canaries.body.repeat(100)],
    [`GET /${canaries.path}?${canaries.query}`, [bearer, ...everyField], ''],
    [`TRACE /${canaries.path}`, [bearer, ...everyField], ''],
    [`GET /via/${canaries.host}/x`, [bearer], ''],
    [`GET /via/model/${canaries.path}`, [bearer, `Via: 1.1 sluice, 1.1 ${canaries.host}`], ''],
    [`GET /via/model/${canaries.path}`, [bearer, `Upgrade: ${canaries.field}`, 'Connection: upgrade'], ''],
    [`GET /via/model/${canaries.path}`, [bearer, `X Broken: ${canaries.field}`], ''],
    [`GET /via/model/${canaries.path}`, [bearer, `Big: ${canaries.field.repeat(2_000)}`], ''],
    [`GET /activity?window=${canaries.query}`, [bearer], ''],
    [`canary${canaries.query} /via/model`, [bearer], ''],
  ];
  await Promise.all(refused.map(([line, fields, sent]) => send(line, fields, sent)));
  await commands();
}

/** Commands at the admin port, with and without its token, by its own names and by others. */
async function commands(): Promise<void> {
  const tokens = [`Bearer ${canaries.adminToken}`, `Bearer ${canaries.adminToken}x`, canaries.adminToken];
  for (const host of ['localhost', `${canaries.host}.example`])
    for (const authorization of tokens) {
      const client = await connectRaw(services[1]?.adminAddress.port ?? 0);
      const fields = [
        `Host: ${host}`,
        'Sluice-Admin: yes',
        `Authorization: ${authorization}`,
        'Content-Length: 0',
      ];
      const path = `/upstreams/${canaries.path}/pause?seconds=9&${canaries.query}`;
      await client.send([`POST ${path} HTTP/1.1`, ...fields, 'Connection: close', '', ''].join('\r\n'));
      ours.push((await client.closed).bytes.toString('latin1'));
    }
}

const hidden = {
  ...canaries,
  apiKey: key,
  keySecret: key.slice(-43),
  wrongKey,
  hash: hash.slice('sha256:'.length),
};
const found = (text: string): string[] =>
  Object.entries(hidden)
    .filter(([, canary]) => text.toLowerCase().includes(canary.toLowerCase()))
    .map(([where]) => where);

async function read(url: string, fields: Record<string, string> = {}): Promise<string> {
  const response = await fetch(url, { headers: fields });
  return JSON.stringify([...response.headers]) + (await response.text());
}
const received = (): string => upstream.connections.map((connection) => connection.received()).join('');

test('the canary calls end in every way, and every store and output has something to search', () => {
  const outcomes = new Set(logs.flatMap((line) => /"outcome":"([a-z_]+)"/.exec(line)?.[1] ?? []));
  const ends = ['failed', 'ok', 'rejected', 'shed', 'throttled', 'upstream_error'];
  expect([...outcomes]).toEqual(expect.arrayContaining(ends));
  const codes = new Set(ours.flatMap((text) => /"code":"([a-z_]+)"/.exec(text)?.[1] ?? []));
  const wanted =
    'unauthenticated target_forbidden target_invalid request_invalid body_too_large upstream_timeout upstream_unreachable upstream_invalid loop_detected wait_too_long not_found';
  expect([...codes]).toEqual(expect.arrayContaining(wanted.split(' ')));
  // The canaries did reach the upstream, where they belong.
  for (const where of [
    'injectedCredential',
    'ownCredential',
    'broughtCredential',
    'body',
    'cookie',
    'host',
  ] as const)
    expect(received()).toContain(canaries[where]);
  for (const [where, text] of Object.entries(seen)) expect([where, text.length > 200]).toEqual([where, true]);
  expect(logs.length).toBeGreaterThan(40);
  expect(new Set(seen['recording']?.match(/"outcome":"\w+"/g)).size).toBeGreaterThan(3);
  expect(seen).toMatchObject({
    'page events': expect.stringContaining('event: workspaces'),
    'commands to Redis': expect.stringContaining('sluice:{activity}'),
    'activity in Redis': expect.stringContaining('sluice:{activity}:5:'),
    spans: expect.stringContaining('sluice.workspace'),
    '/metrics': expect.stringContaining('sluice_requests_total{'),
    '/activity': expect.stringContaining('"replicas":2'),
    'own activity': expect.stringMatching(/"workspace":"w_[0-9a-f]{16}"/),
    recording: expect.stringMatching(/w_[0-9a-f]{16}/),
  });
});

test('no store or output has a canary', () => {
  const shown = Object.entries(seen).map(([where, text]) => [where, found(text)] as const);
  expect(shown.filter(([, canary]) => canary.length > 0)).toEqual([]);
});

test('no store or output has anything that could be computed from a name or a key without the label key', () => {
  const everything = Object.values(seen).join('\n');
  for (const text of [canaries.workspace, 'quiet', `${canaries.host}.stores.example`, key, other.key])
    for (const form of ['hex', 'base64url'] as const)
      expect(everything).not.toContain(createHash('sha256').update(text).digest(form).slice(0, 16));
});

test('neither the API key, in whatever field it came, nor what names the client or traces it reached the upstream', () => {
  expect(received().length).toBeGreaterThan(1_000);
  for (const secret of [canaries.address, canaries.trace, key.slice(-43), key.slice(0, 8)])
    expect(received()).not.toContain(secret);
  expect(received().toLowerCase()).not.toMatch(/\r\nsluice-/);
});
