/**
 * Canaries in every secret place, every kind of ending, and then a search through everything that leaves the process:
 * log lines, metrics, activity, the live page, responses of our own, and (for the API key) the upstream.
 */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { ran } from '../support/command.ts';
import { gatewayYaml, homeward, serviceOf } from '../support/gateway.ts';
import { connectRaw } from '../support/raw-client.ts';
import { until } from '../support/until.ts';
import type { RawResponse } from '../support/raw-client.ts';
import { rawUpstream } from '../support/raw-upstream.ts';
import type { RawConnection, RawUpstream } from '../support/raw-upstream.ts';

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
let upstream: RawUpstream | null = null;
let service: Service | null = null;

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
    switch (wanted) {
      case 'throttle':
        respond('429 Slow\r\nRetry-After: 100', canaries.upstreamText);
        break;
      case 'quota':
        respond('429 Slow\r\nContent-Type: application/json', text);
        break;
      case 'error':
        respond(`500 ${canaries.upstreamText}`, text);
        break;
      case 'reset':
        connection.socket.resetAndDestroy();
        return;
      case 'invalid':
        connection.send(`HTTP/1.1 099 ${canaries.upstreamText}\r\nX: ${canaries.upstreamText}\r\n\r\n`);
        break;
      case 'silent':
        break;
      case 'cut':
        connection.send(`HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n${canaries.upstreamText}`);
        connection.socket.destroySoon();
        return;
      default:
        respond('200 OK', 'ok');
    }
  }
}

const portOf = (): number => service?.dataAddress.port ?? 0;

async function send(line: string, fields: readonly string[], body = ''): Promise<RawResponse | undefined> {
  const client = await connectRaw(portOf());
  const head = [`${line} HTTP/1.1`, 'Host: gateway', `Content-Length: ${body.length}`, ...fields, '', ''];
  await client.send(head.join('\r\n') + body);
  const response = await client.responses(1).then(
    ([first]) => first,
    () => undefined,
  );
  client.socket.destroy();
  if (response?.field('sluice-error') !== undefined)
    ours.push(JSON.stringify(response.fields) + response.body.toString('latin1'));
  else
    ours.push(
      JSON.stringify(
        response?.fields.filter(([name]) => name.startsWith('sluice') || name.startsWith('rate')),
      ),
    );
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
  upstream = await rawUpstream(script);
  const limits = 'limits: { requestsPerMinute: 1000, maxWaitSeconds: 1 }';
  const timeouts = 'timeouts: { connectSeconds: 2, headSeconds: 1.5, idleSeconds: 1.5, totalSeconds: 4 }';
  const common = `    allowPrivateAddresses: true\n    ${limits}\n    ${timeouts}`;
  const yaml = gatewayYaml(
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
  );
  service = await serviceOf(yaml, logs, { resolve: homeward });
  void record(`http://127.0.0.1:${service.adminAddress.port}/recording?seconds=600`);
  await until(() => recorded.length > 0);
  await everyPath(upstream);
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

afterAll(async () => {
  await service?.close();
  await upstream?.close();
});

/** Every ending a call can have, in the forms in which the key can come. */
async function everyPath({ origin, port }: RawUpstream): Promise<void> {
  const bearer = `Authorization: Bearer ${key}`;
  const asKey = [`Sluice-Key: ${key}`, `Authorization: Bearer ${canaries.broughtCredential}`];
  const brought = [bearer, `Sluice-Upstream-Authorization: Bearer ${canaries.broughtCredential}`];
  const target = (base: string, ending: string): string =>
    `/proxy?target=${encodeURIComponent(`${base}/${canaries.path}/${ending}?q=${canaries.query}`)}`;
  const store = `${canaries.host}.stores.example:${port}`;
  for (const ending of [
    'ok',
    'error',
    'reset',
    'silent',
    'cut',
    'invalid',
    'throttle',
    'ok',
    'quota',
    'ok',
  ]) {
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
  const { adminAddress } = service ?? { adminAddress: { port: 0 } };
  const tokens = [`Bearer ${canaries.adminToken}`, `Bearer ${canaries.adminToken}x`, canaries.adminToken];
  for (const host of ['localhost', `${canaries.host}.example`])
    for (const authorization of tokens) {
      const client = await connectRaw(adminAddress.port);
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

function found(text: string): string[] {
  const hidden = {
    ...canaries,
    apiKey: key,
    keySecret: key.slice(-43),
    wrongKey,
    hash: hash.slice('sha256:'.length),
  };
  return Object.entries(hidden)
    .filter(([, canary]) => text.toLowerCase().includes(canary.toLowerCase()))
    .map(([where]) => where);
}

async function read(url: string, fields: Record<string, string> = {}): Promise<string> {
  const response = await fetch(url, { headers: fields });
  return JSON.stringify([...response.headers]) + (await response.text());
}

test('the canary calls end in every way, so that finding no canary proves something', async () => {
  const outcomes = logs.flatMap((line) => /"outcome":"([a-z_]+)"/.exec(line)?.[1] ?? []);
  expect([...new Set(outcomes)].toSorted()).toEqual(
    expect.arrayContaining(['failed', 'ok', 'rejected', 'shed', 'throttled', 'upstream_error']),
  );
  const codes = new Set(ours.flatMap((text) => /"code":"([a-z_]+)"/.exec(text)?.[1] ?? []));
  for (const code of [
    'unauthenticated',
    'target_forbidden',
    'target_invalid',
    'request_invalid',
    'body_too_large',
    'upstream_timeout',
    'upstream_unreachable',
    'upstream_invalid',
    'loop_detected',
    'wait_too_long',
    'not_found',
  ])
    expect([...codes]).toContain(code);
  // The canaries did reach the upstream, where they belong.
  const seen = upstream?.connections.map((connection) => connection.received()).join('') ?? '';
  for (const where of [
    'injectedCredential',
    'ownCredential',
    'broughtCredential',
    'body',
    'cookie',
    'host',
  ] as const)
    expect(seen).toContain(canaries[where]);
  expect(await read(`http://127.0.0.1:${service?.adminAddress.port ?? 0}/metrics`)).toContain(
    'sluice_requests_total{',
  );
});

describe('no canary appears in', () => {
  test('log lines', () => {
    expect(logs.length).toBeGreaterThan(40);
    expect(found(logs.join(''))).toEqual([]);
  });

  test('responses and fields of Sluice', () => {
    expect(ours.length).toBeGreaterThan(40);
    expect(found(ours.join('\n'))).toEqual([]);
  });

  test.each([
    ['/metrics', 'text/plain'],
    ['/metrics', 'application/openmetrics-text; version=1.0.0'],
    ['/activity', 'application/json'],
    ['/activity?window=1h', 'application/json'],
    ['/', 'text/html'],
    ['/nowhere', 'text/html'],
  ])('%s (%s) of the admin port', async (path, accept) => {
    const text = await read(`http://127.0.0.1:${service?.adminAddress.port ?? 0}${path}`, { accept });
    expect(found(text)).toEqual([]);
  });

  test('the workspace’s own activity', async () => {
    const text = await read(`http://127.0.0.1:${portOf()}/activity`, { authorization: `Bearer ${key}` });
    expect(text).toMatch(/"workspace":"w_[0-9a-f]{16}"/);
    expect(found(text)).toEqual([]);
  });

  test('a recording of all these calls', () => {
    const outcomes = new Set(recorded.join('').match(/"outcome":"\w+"/g));
    expect(outcomes.size).toBeGreaterThan(3);
    expect(found(recorded.join(''))).toEqual([]);
  });

  test.each([[['--json']], [[]]])('a rehearsal of these calls, with %j', async (more) => {
    const folder = mkdtempSync(join(tmpdir(), 'canary-'));
    const [traffic, svg] = [join(folder, 'traffic.jsonl'), join(folder, 'rehearsal.svg')];
    writeFileSync(traffic, recorded.join(''));
    const { out, err } = await ran([
      'rehearse',
      '--traffic',
      traffic,
      '--svg',
      svg,
      '--fail-if',
      'max >= 0',
      ...more,
    ]);
    const text = out + err + readFileSync(svg, 'utf8');
    rmSync(folder, { recursive: true });
    expect(text).toMatch(/w_[0-9a-f]{16}/);
    expect(found(text)).toEqual([]);
  });

  test('bucket and lane names', () => {
    expect(found(JSON.stringify(service?.gateway.parts.pressure.buckets()))).toEqual([]);
  });
});

test('what names the client or traces it never reached the upstream', () => {
  const seen = upstream?.connections.map((connection) => connection.received()).join('') ?? '';
  expect(seen).not.toContain(canaries.address);
  expect(seen).not.toContain(canaries.trace);
});

test('the API key never reached the upstream, in whatever field it came', () => {
  const seen = upstream?.connections.map((connection) => connection.received()).join('') ?? '';
  expect(seen.length).toBeGreaterThan(1_000);
  expect(seen).not.toContain(key.slice(-43));
  expect(seen).not.toContain(key.slice(0, 8));
  expect(seen.toLowerCase()).not.toMatch(/\r\nsluice-/);
});
