/** An upstream that stalls, resets, floods and lies, behind the whole gateway. */
import { describe, expect, test } from '@jest/globals';
import { randomBytes } from 'node:crypto';
import { gzipSync } from 'node:zlib';
import { answering, type Script } from '../support/raw-upstream.ts';
import { bytes, ok } from '../support/scripts.ts';
import { receivedBy, requestLines, stacks } from './stack-fixture.ts';
import type { Ended, Stack, StackOptions } from './stack-fixture.ts';

const opened = stacks();
/** For upstreams that do answer: a loaded machine may be slow in reading it. */
const patient: StackOptions = { timeouts: '{ connectSeconds: 10, headSeconds: 20, idleSeconds: 20 }' };

const call = (stack: Stack, method: string, path: string, more = ''): Promise<Ended> =>
  method === 'POST'
    ? stack.exchange(`${stack.head('POST', stack.proxy(path), `Content-Length: 2\r\n${more}`)}{}`, method)
    : stack.exchange(stack.head(method, stack.proxy(path), more), method);
const last = ({ responses }: Ended) => responses.at(-1);
const sent = (stack: Stack, path: string): number =>
  requestLines(receivedBy(stack)).filter((line) => line.includes(` ${path} `)).length;

describe('a call that met a stale connection', () => {
  const ceiling = (perMinute: number): StackOptions => ({
    workspaces: { acme: `    requestsPerMinute: { up: ${perMinute} }\n` },
  });
  /** The first connection breaks at its second request. */
  const stale: Script = async ({ requests, send, socket }) => {
    await requests(1);
    send(ok);
    await requests(2);
    socket.resetAndDestroy();
  };

  test.each(['', 'Prefer: wait=0\r\n'])('is admitted again, and charged again (%j)', async (more) => {
    const stack = await opened(stale, ceiling(10));
    expect(last(await call(stack, 'GET', '/first'))?.field('ratelimit')).toMatch(/;r=9;/);
    const response = last(await call(stack, 'GET', '/second', more));
    expect(response?.status).toBe(200);
    expect(response?.field('sluice-admission')).toMatch(/attempts=2, absorbed=0/);
    expect(response?.field('ratelimit')).toMatch(/;r=7;/);
    expect(sent(stack, '/second')).toBe(2);
  });

  test.each([
    ['a POST', 'POST', 10, 502, 'upstream_unreachable'],
    ['a GET without a slot under its ceiling', 'GET', 2, 429, 'wait_too_long'],
  ])('is not sent again when it is %s', async (_, method, perMinute, status, code) => {
    const stack = await opened(stale, ceiling(perMinute));
    await call(stack, 'GET', '/first');
    const response = last(await call(stack, method, '/second', 'Prefer: wait=30\r\n'));
    expect([response?.status, response?.field('sluice-error')]).toEqual([status, code]);
    expect(sent(stack, '/second')).toBe(1);
  });
});

describe('a refusal whose body breaks', () => {
  /** `at` notes when the refusal was sent, and when the call came again. */
  const breaking =
    (head: string, at: number[] = []): Script =>
    async ({ requests, send, socket, number }) => {
      await requests(1);
      at.push(performance.now());
      if (number > 0) return send(ok);
      send(bytes(`HTTP/1.1 ${head}|Content-Length: 100||{"error":`));
      setTimeout(() => socket.resetAndDestroy(), 20);
    };

  test.each([400, 404, 500, 502])('is passed on or becomes 502 for status %i', async (status) => {
    const stack = await opened(breaking(`${status} Odd`));
    const response = last(await call(stack, 'POST', '/broken', 'Prefer: wait=1\r\n'));
    expect([undefined, 502]).toContain(response?.status);
    expect(sent(stack, '/broken')).toBe(1);
  });

  test.each([429, 503])('keeps the wait that its head states for status %i', async (status) => {
    const at: number[] = [];
    const stack = await opened(breaking(`${status} Slow|Retry-After: 1`, at));
    expect(last(await call(stack, 'GET', '/refused'))?.status).toBe(200);
    const [refused = 0, again = 0] = at;
    expect(again - refused).toBeGreaterThanOrEqual(1_000);
  });
});

test('a 429 with an endless body is absorbed, and its connection is closed', async () => {
  const stack = await opened(async ({ requests, send, socket, number }) => {
    await requests(1);
    if (number > 0) return send(ok);
    send(bytes('HTTP/1.1 429 Slow|Retry-After: 1|Transfer-Encoding: chunked||'));
    const more = setInterval(() => send(bytes('5|wait!|')), 5);
    socket.on('close', () => clearInterval(more));
  });
  const response = last(await call(stack, 'POST', '/endless'));
  expect(response?.status).toBe(200);
  expect(response?.field('sluice-admission')).toContain('absorbed=1');
  expect(stack.upstream.open()).toBeLessThan(2);
});

const json = 'Content-Type: application/json\r\n';
const gzip = `${json}Content-Encoding: gzip\r\n`;
const bomb = gzipSync(Buffer.alloc(8 * 1024 * 1024, '{'));
const odd = '{"errors":[null,1,{"extensions":7}],"extensions":{"cost":"x"}}';
test.each<[string, string, Buffer]>([
  ['broken JSON', json, Buffer.from('{"data":{"shop":')],
  ['deep JSON', json, Buffer.from('['.repeat(30_000))],
  ['a prototype in JSON', json, Buffer.from('{"__proto__":{"errors":1},"extensions":{"cost":null}}')],
  ['odd extensions', json, Buffer.from(odd)],
  ['a gzip bomb', gzip, bomb],
  ['broken gzip', gzip, Buffer.from('not gzip at all')],
  ['a large body', json, Buffer.alloc(3_000_000, ' ')],
  ['an unknown coding', `${json}Content-Encoding: x-odd\r\n`, Buffer.from('????')],
  ['a short gzip', gzip, bomb.subarray(0, 100)],
  ['large broken gzip', gzip, Buffer.alloc(200_000, 7)],
  ['large gzip that is cut', gzip, gzipSync(randomBytes(300_000)).subarray(0, -9)],
])('a GraphQL response that cannot be read reaches the client byte for byte: %s', async (_, fields, body) => {
  const head = `HTTP/1.1 200 OK\r\n${fields}Content-Length: ${body.length}\r\n\r\n`;
  const credential = '{ header: x-shopify-access-token, value: "token-of-the-shop" }';
  const stack = await opened(answering(head + body.toString('latin1')), {
    kind: 'commerce',
    credential,
    ...patient,
  });
  const query = JSON.stringify({ query: '{ shop { name } }' });
  const path = stack.proxy('/admin/api/2026-10/graphql.json');
  // The second one is sent when the lease of the first has ended.
  for (let n = 0; n < 2; n += 1) {
    const request = stack.head('POST', path, `${json}Content-Length: ${query.length}\r\n`) + query;
    const response = last(await stack.exchange(request));
    expect([response?.status, response?.body.equals(body)]).toEqual([200, true]);
  }
});
