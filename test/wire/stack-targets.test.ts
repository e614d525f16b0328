/**
 * Where a call may go, asked over real HTTP in both call forms. A resolver of the test's own sees every name that is
 * about to be connected to: an allowed target reaches it, a refused one never does.
 */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import type { LookupAddress } from 'node:dns';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { connectRaw } from '../support/raw-client.ts';
import { answering } from '../support/raw-upstream.ts';
import { faults, leftBehind, receivedBy, requestLines, startStack } from './stack-fixture.ts';
import type { Stack } from './stack-fixture.ts';

const resolved: string[] = [];
let addresses: readonly LookupAddress[] = [];
const logs: string[] = [];
const { key, hash } = createKey();
let service: Service | null = null;
let port = 0;

beforeAll(async () => {
  const yaml = gatewayYaml(
    {
      upstreams: [
        '  shop:\n    origins: ["https://api.shop.example"]',
        '  stores:\n    origins: ["https://*.stores.example"]\n    kind: commerce',
      ].join('\n'),
      server: '  publicHosts: [gateway.example]\n',
    },
    { acme: hash },
  );
  service = await serviceOf(yaml, logs, {
    resolve: (hostname) => {
      resolved.push(hostname);
      return Promise.resolve(addresses);
    },
  });
  port = service.dataAddress.port;
});

afterAll(async () => {
  await service?.close();
  expect(logs.filter((line) => line.includes('"level":"error"'))).toEqual([]);
  // What was asked for is written nowhere.
  expect(logs.join('')).not.toMatch(/shop\.example|stores\.example|evil|169\.254/);
});

afterEach(() => {
  resolved.length = 0;
});

/** The code of the response to one request on its own connection; the status, as `200`, where Sluice did not refuse. */
async function ask(requestLine: string, fields = ''): Promise<string> {
  const client = await connectRaw(port);
  await client.send(
    Buffer.from(
      `${requestLine} HTTP/1.1\r\nHost: gateway.example\r\nAuthorization: Bearer ${key}\r\n${fields}\r\n`,
      'latin1',
    ),
  );
  const [response] = await client.responses(1);
  client.socket.destroy();
  return response?.field('sluice-error') ?? String(response?.status);
}

const allow = 'target_address_denied';
const invalid = 'target_invalid';
const forbidden = 'target_forbidden';
const host = 'https://api.shop.example';

/** Number of the case, target after percent-decoding, code. Allowed targets fail only at the (private) address. */
const cases: readonly (readonly [number, string, string])[] = [
  [1, `${host}/v1/orders`, allow],
  [2, `${host}:443/x`, allow],
  [3, `${host}?x=1`, allow],
  [4, `${host}/a;b?a=$&b=$'`, allow],
  [5, `${host}:/x`, invalid],
  [6, 'http://api.shop.example/x', forbidden],
  [7, `${host}:8443/x`, forbidden],
  [8, `${host}./x`, invalid],
  [9, 'https://user:pass@api.shop.example/x', invalid],
  [10, `${host}@evil.example/x`, invalid],
  [11, 'https://evil.example\\@api.shop.example/', invalid],
  [12, `${host}%2eevil.example/`, forbidden],
  [13, `${host}.evil.example/`, forbidden],
  [14, 'https://evil.example/api.shop.example', forbidden],
  [15, '//api.shop.example/x', invalid],
  [15, 'api.shop.example/x', invalid],
  [16, 'https:api.shop.example/x', invalid],
  [17, 'https://\tapi.shop.example/x', invalid],
  [18, ` ${host}/`, invalid],
  [18, `${host}/ `, invalid],
  [19, 'https://api\u00ad.shop.example/', invalid],
  [20, 'https://\u0430pi.shop.example/', invalid],
  [21, 'http://127.0.0.1/', forbidden],
  [22, 'http://127.1/', forbidden],
  [22, 'http://0x7f.1/', forbidden],
  [22, 'http://0177.0.0.1/', forbidden],
  [23, 'http://0/', forbidden],
  [24, 'http://[::1]/', forbidden],
  [25, 'http://[::ffff:127.0.0.1]/', forbidden],
  [26, 'http://[::127.0.0.1]/', forbidden],
  [27, 'http://[64:ff9b::a9fe:a9fe]/', forbidden],
  [28, 'http://[fe80::1]/', forbidden],
  [29, 'http://169.254.169.254/latest/meta-data/', forbidden],
  [30, 'http://[fd00:ec2::254]/', forbidden],
  [31, 'http://localhost/', forbidden],
  [32, 'http://10.0.0.1/', forbidden],
  [35, 'wss://api.shop.example/', forbidden],
  [36, `${host}/a\r\nX: 1`, invalid],
  [37, `${host}/a%0d%0aX:1`, allow],
  [38, `${host}/%2e%2e/admin`, invalid],
  [38, `${host}/a/../../b`, invalid],
  [39, `${host}/#frag`, invalid],
  [40, 'https://a_b.shop.example/', forbidden],
  [41, 'https://gateway.example/', forbidden],
];

describe('a call to /proxy?target=', () => {
  test.each(cases)('is allowed or refused by its target: case %i, %j', async (_number, target, expected) => {
    addresses = [{ address: '127.0.0.1', family: 4 }];
    expect(await ask(`GET /proxy?target=${encodeURIComponent(target)}`)).toBe(expected);
    expect(resolved.every((name) => name === 'api.shop.example')).toBe(true);
    expect(resolved.length > 0).toBe(expected === allow);
  });

  test.each([
    ['/proxy', 'target_missing'],
    ['/proxy?', 'target_missing'],
    ['/proxy?target=', 'target_missing'],
    ['/proxy?target', 'target_missing'],
    [`/proxy?target=${host}/&b=2`, invalid],
    [`/proxy?target=${host}/&target=${host}/`, invalid],
    [`/proxy?a=1&target=${host}/`, invalid],
    ['/proxy?target=%', invalid],
    ['/proxy?target=%ff', invalid],
    ['/proxy?target=%ED%A0%80', invalid],
    [`/proxy?target=https%253A%252F%252Fapi.shop.example/`, invalid],
    [`/proxy?target=${host}/${'a'.repeat(9_000)}`, 'target_too_long'],
    ['/proxy/', 'not_found'],
    ['/Proxy?target=x', 'not_found'],
    ['//evil.example/x', 'not_found'],
    ['/proxy/../activity', 'not_found'],
    ['/', 'not_found'],
    ['/metrics', 'not_found'],
    ['/readyz', 'not_found'],
  ])('is refused for %s as %s', async (path, expected) => {
    expect(await ask(`GET ${path}`)).toBe(expected);
    expect(resolved).toEqual([]);
  });

  test.each([
    [33, [{ address: '10.0.0.7', family: 4 }]],
    [
      34,
      [
        { address: '93.184.216.34', family: 4 },
        { address: '127.0.0.1', family: 4 },
      ],
    ],
    [33, [{ address: '::ffff:169.254.169.254', family: 6 }]],
    [33, [{ address: '64:ff9b::a9fe:a9fe', family: 6 }]],
  ])('is not connected to a name with a private address: case %i, %j', async (_number, responses) => {
    addresses = responses;
    expect(await ask(`GET /proxy?target=${encodeURIComponent(`${host}/x`)}`)).toBe('target_address_denied');
  });

  test('gets refusals that differ only in their code for an unknown name and a denied one', async () => {
    addresses = [];
    expect(await ask(`POST /proxy?target=${encodeURIComponent(`${host}/x`)}`, 'Content-Length: 0\r\n')).toBe(
      'upstream_unreachable',
    );
  });
});

describe('a call to /via/{upstream}/', () => {
  test.each([
    ['/via/shop/v1/orders', allow],
    ['/via/shop', allow],
    ['/via/shop?x=1', allow],
    ['/via/shop//double', allow],
    ['/via/shop/a%0d%0aX:1', allow],
    ['/via/shop/%2e%2e/admin', invalid],
    ['/via/shop/../stores/x', invalid],
    ['/via/shop@evil.example/', forbidden],
    ['/via/shop:8443/', forbidden],
    ['/via/shop/\\evil.example', invalid],
    ['/via/Shop/v1', forbidden],
    ['/via/sh%6fp/v1', forbidden],
    ['/via/none/v1', forbidden],
    ['/via/__proto__/v1', forbidden],
    ['/via/constructor', forbidden],
    ['/via//v1', 'target_missing'],
    ['/via/', 'not_found'],
    ['/via', 'not_found'],
    ['/via/stores', 'target_missing'],
    ['/via/stores/', 'target_missing'],
    ['/via/stores/a.stores.example/admin', allow],
    ['/via/stores/A.Stores.Example/admin', allow],
    ['/via/stores/a.stores.example:443/admin', allow],
    ['/via/stores/a.b.stores.example/admin', forbidden],
    ['/via/stores/stores.example/admin', forbidden],
    ['/via/stores/.stores.example/admin', forbidden],
    ['/via/stores/a.stores.example.evil.example/', forbidden],
    ['/via/stores/a.stores.example./admin', invalid],
    ['/via/stores/user@a.stores.example/admin', invalid],
    ['/via/stores/evil.example%2f.stores.example/', invalid],
    ['/via/stores/a.stores.example:8443/admin', forbidden],
    ['/via/stores/169.254.169.254/latest', forbidden],
    ['/via/stores/[::1]/', forbidden],
  ])('is, for %s, %s', async (path, expected) => {
    addresses = [{ address: '127.0.0.1', family: 4 }];
    const reported = await ask(`GET ${path}`);
    // Where a case is refused, either of the two refusals keeps it from being connected to.
    if (expected === allow) expect(reported).toBe(expected);
    else expect([expected, invalid, forbidden]).toContain(reported);
    expect(resolved.length > 0).toBe(expected === allow);
  });
});

test.each([
  ['GET https://api.shop.example/x', 'request_invalid'],
  ['GET http://evil.example/proxy?target=x', 'request_invalid'],
  ['OPTIONS *', 'request_invalid'],
  ['TRACE /proxy?target=x', 'method_not_allowed'],
  ['CONNECT api.shop.example:443', 'method_not_allowed'],
])('the request line %j is refused as %s', async (line, expected) => {
  expect(await ask(line)).toBe(expected);
  expect(resolved).toEqual([]);
});

test.each(['1.1 sluice', '1.0 fred, 1.1 SLUICE (comment)', 'HTTP/1.1 sluice'])(
  'a call that already came through this gateway is refused: Via %j',
  async (via) => {
    expect(await ask(`GET /via/shop/x`, `Via: ${via}\r\n`)).toBe('loop_detected');
    expect(resolved).toEqual([]);
  },
);

describe('the exchange with the upstream', () => {
  const stacks: Stack[] = [];
  afterEach(async () => {
    for (const stack of stacks.splice(0)) await stack.close();
  });

  test('passes a redirect to a metadata address back and does not follow it', async () => {
    const location = 'http://169.254.169.254/latest/meta-data/';
    const stack = await startStack(
      answering(`HTTP/1.1 302 Found\r\nLocation: ${location}\r\nContent-Length: 0\r\n\r\n`),
    );
    stacks.push(stack);
    for (const path of [stack.proxy('/a'), '/via/up/a']) {
      const { responses } = await stack.exchange(stack.head('GET', path));
      expect(responses.map((response) => [response.status, response.field('location')])).toEqual([
        [302, location],
      ]);
    }
    expect(requestLines(receivedBy(stack))).toHaveLength(2);
    expect(await leftBehind(stack)).toEqual({});
    expect(faults(stack)).toEqual([]);
  });

  test('keeps a redirect within the upstream on the way of a /via/ client', async () => {
    const stack = await startStack((connection) => {
      void connection
        .requests(1)
        .then(() =>
          connection.send(
            `HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:${connection.socket.localPort ?? 0}/b?c\r\nContent-Length: 0\r\n\r\n`,
          ),
        );
    });
    stacks.push(stack);
    const { responses } = await stack.exchange(stack.head('GET', '/via/up/a'));
    expect(responses[0]?.field('location')).toMatch(/\/via\/up\/b\?c$/);
  });

  test('carries path and query byte for byte', async () => {
    const stack = await startStack(answering('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'));
    stacks.push(stack);
    const paths = [
      "/a;b?a=$&b=$'&c=$`$&",
      '/%2f%2F+?q=a+b%20c&&=',
      '//x//',
      "/a%00'()*!~|^`{}",
      '/?',
      '/%61/..a/.../',
    ];
    for (const path of paths) {
      await stack.exchange(stack.head('GET', stack.proxy(path)));
      await stack.exchange(stack.head('GET', `/via/up${path}`));
    }
    expect(requestLines(receivedBy(stack))).toEqual(
      paths.flatMap((path) => [`GET ${path} HTTP/1.1`, `GET ${path} HTTP/1.1`]),
    );
  });
});
