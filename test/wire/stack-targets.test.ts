/**
 * Where a call may go, asked over real HTTP in both call forms. A resolver of the test's own sees every name that is
 * about to be connected to: an allowed target reaches it, a refused one never does. All forms of targets are the
 * subject of `test/target/`.
 */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { connectRaw } from '../support/raw-client.ts';
import { answering } from '../support/raw-upstream.ts';
import { bytes } from '../support/scripts.ts';
import { receivedBy, requestLines, stacks } from './stack-fixture.ts';

const resolved: string[] = [];
const logs: string[] = [];
const { key, hash } = createKey();
let service: Service;

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
      return Promise.resolve([{ address: '127.0.0.1', family: 4 }]);
    },
  });
});
afterAll(async () => {
  await service.close();
  expect(logs.filter((line) => line.includes('"level":"error"'))).toEqual([]);
  // What was asked for is written nowhere.
  expect(logs.join('')).not.toMatch(/shop\.example|stores\.example|evil|169\.254/);
});
afterEach(() => {
  resolved.length = 0;
});

/** The code of the response to one request on its own connection; the status, as `200`, where Sluice did not refuse. */
async function ask(requestLine: string): Promise<string> {
  const client = await connectRaw(service.dataAddress.port);
  const request = `${requestLine} HTTP/1.1|Host: gateway.example|Authorization: Bearer ${key}||`;
  await client.send(Buffer.from(bytes(request), 'latin1'));
  const [response] = await client.responses(1);
  client.socket.destroy();
  return response?.field('sluice-error') ?? String(response?.status);
}
const to = (target: string): string => `/proxy?target=${encodeURIComponent(target)}`;

/** Allowed targets fail only at the (private) address. */
const allow = 'target_address_denied';
const host = 'https://api.shop.example';

test.each([
  [to(`${host}/v1/orders`), allow],
  [to(`${host}/a;b?a=$&b=$'`), allow],
  [to(`${host}@evil.example/x`), 'target_invalid'],
  [to(`${host}/a\r\nX: 1`), 'target_invalid'],
  [to(`${host}/%2e%2e/admin`), 'target_invalid'],
  [to(`${host}.evil.example/`), 'target_forbidden'],
  [to('http://169.254.169.254/latest/meta-data/'), 'target_forbidden'],
  [to('https://gateway.example/'), 'target_forbidden'],
  ['/proxy', 'target_missing'],
  [`/proxy?target=${host}/&target=${host}/`, 'target_invalid'],
  ['/proxy?target=%ff', 'target_invalid'],
  [`/proxy?target=${host}/${'a'.repeat(9_000)}`, 'target_too_long'],
  ['/proxy/../activity', 'not_found'],
  ['/metrics', 'not_found'],
  ['/via/shop/v1/orders', allow],
  ['/via/shop/%2e%2e/admin', 'target_invalid'],
  ['/via/shop@evil.example/', 'target_forbidden'],
  ['/via/__proto__/v1', 'target_forbidden'],
  ['/via/stores/', 'target_missing'],
  ['/via/stores/a.stores.example/admin', allow],
  ['/via/stores/a.stores.example.evil.example/', 'target_forbidden'],
  ['/via/stores/169.254.169.254/latest', 'target_forbidden'],
])('a call to %s is, at most before its connection, %s', async (path, expected) => {
  expect(await ask(`GET ${path}`)).toBe(expected);
  expect(resolved.length > 0).toBe(expected === allow);
  expect(resolved.filter((name) => !/^(api\.shop|a\.stores)\.example$/.test(name))).toEqual([]);
});

describe('the exchange with the upstream', () => {
  const opened = stacks();

  test('passes a redirect to a metadata address back and does not follow it', async () => {
    const location = 'http://169.254.169.254/latest/meta-data/';
    const stack = await opened(
      answering(bytes(`HTTP/1.1 302 Found|Location: ${location}|Content-Length: 0||`)),
    );
    for (const path of [stack.proxy('/a'), '/via/up/a']) {
      const { responses } = await stack.exchange(stack.head('GET', path));
      expect(responses.map(({ status, field }) => [status, field('location')])).toEqual([[302, location]]);
    }
    expect(requestLines(receivedBy(stack))).toHaveLength(2);
  });

  test('carries path and query byte for byte', async () => {
    const stack = await opened();
    const odd = [
      "/a;b?a=$&b=$'&c=$`$&",
      '/%2f%2F+?q=a+b%20c&&=',
      '//x//',
      "/a%00'()*!~|^`{}",
      '/?',
      '/%61/..a/.../',
    ];
    for (const path of odd) {
      await stack.exchange(stack.head('GET', stack.proxy(path)));
      await stack.exchange(stack.head('GET', `/via/up${path}`));
    }
    const lines = odd.map((path) => `GET ${path} HTTP/1.1`);
    expect(requestLines(receivedBy(stack))).toEqual(lines.flatMap((line) => [line, line]));
  });
});
