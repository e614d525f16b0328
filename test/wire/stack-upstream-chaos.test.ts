/**
 * An upstream that stalls, resets, floods and lies, behind the whole gateway. Every accepted call ends within its
 * deadlines in one response or a closed connection, its lease ends, and a call that may not run twice is sent once.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { gzipSync } from 'node:zlib';
import { connectRaw } from '../support/raw-client.ts';
import { answering } from '../support/raw-upstream.ts';
import type { RawConnection, Script } from '../support/raw-upstream.ts';
import { upstreamRequests } from './stack-oracle.ts';
import { faults, leftBehind, receivedBy, requestLines, startStack } from './stack-fixture.ts';
import type { Ended, Stack, StackOptions } from './stack-fixture.ts';

const stacks: Stack[] = [];

async function opened(script: Script, options: StackOptions = {}): Promise<Stack> {
  const stack = await startStack(script, options);
  stacks.push(stack);
  return stack;
}

afterEach(async () => {
  for (const stack of stacks.splice(0)) await stack.close();
});

/** For upstreams that do answer: a loaded machine may be slow in reading it. */
const patient: StackOptions = { timeouts: '{ connectSeconds: 10, headSeconds: 20, idleSeconds: 20 }' };

const post = 'Content-Length: 2\r\n';

const call = (stack: Stack, method: string, path: string, more = ''): Promise<Ended> =>
  method === 'POST'
    ? stack.exchange(`${stack.head('POST', stack.proxy(path), post + more)}{}`, method)
    : stack.exchange(stack.head(method, stack.proxy(path), more), method);

async function expectClean(stack: Stack): Promise<void> {
  expect(await leftBehind(stack)).toEqual({});
  expect(faults(stack)).toEqual([]);
}

const codeOf = ({ responses }: Ended): string | undefined => responses.at(-1)?.field('sluice-error');

describe('an upstream that falls silent', () => {
  const whole = 'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789';
  test.each([
    ['GET', 0, 'upstream_timeout'],
    ['POST', 0, 'upstream_timeout'],
    ['GET', 20, 'upstream_timeout'],
    ['POST', 20, 'upstream_timeout'],
  ])('makes %s end in 504 after %i bytes of a response', async (method, bytes, code) => {
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      connection.send(whole.slice(0, bytes));
    });
    const ended = await call(stack, method, '/silent');
    expect(codeOf(ended)).toBe(code);
    expect(ended.responses.at(-1)?.status).toBe(504);
    // The GET is safe to repeat and is, once; the POST is not.
    expect(requestLines(receivedBy(stack))).toHaveLength(method === 'GET' ? 2 : 1);
    expect(ended.responses.at(-1)?.field('x-should-retry')).toBe(method === 'GET' ? undefined : 'false');
    await stack.upstream.allClosed();
    await expectClean(stack);
  });

  test.each(['GET', 'POST'])('cuts the client of %s off in the body', async (method) => {
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      connection.send(whole.slice(0, -5));
    });
    const ended = await call(stack, method, '/silent');
    expect(ended.responses).toHaveLength(0);
    expect(ended.closed).toBe(true);
    expect(ended.rest.toString('latin1')).toMatch(/\r\n\r\n01234$/);
    expect(requestLines(receivedBy(stack))).toHaveLength(1);
    await expectClean(stack);
  });

  test('never ends a stalled chunked body with a last chunk', async () => {
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      connection.send('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n');
    });
    const ended = await call(stack, 'GET', '/stalls');
    expect(ended.responses).toHaveLength(0);
    expect(ended.rest.toString('latin1')).toMatch(/\r\nabc\r\n$/);
    await expectClean(stack);
  });
});

describe('an upstream that resets at each byte of the response', () => {
  const response = 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-A: b\r\n\r\nbody';
  test.each(['GET', 'POST'])(
    'makes %s end in one response or a cut body, and a POST is sent once',
    async (method) => {
      const cutAt = new Map<string, number>();
      const stack = await opened(async (connection) => {
        const request = await connection.requests(1);
        const path = /^\w+ (\/\S*)/.exec(request)?.[1] ?? '';
        connection.send(response.slice(0, cutAt.get(path) ?? response.length));
        // A turn later, so that the bytes are on their way before the reset.
        setImmediate(() => connection.socket.resetAndDestroy());
      }, patient);
      const headBytes = response.indexOf('\r\n\r\n') + 4;
      for (let at = 0; at < response.length; at += 1) cutAt.set(`/cut/${at}`, at);
      await Promise.all(
        [...cutAt].map(async ([path, at]) => {
          const ended = await call(stack, method, path);
          if (at < headBytes) {
            expect(ended.responses.map(({ status }) => status)).toEqual([502]);
          } else {
            // A reset may overtake the bytes before it: then there was no head.
            const last = ended.responses.at(-1);
            expect(last === undefined ? ended.closed : last.status === 502).toBe(true);
          }
        }),
      );
      const lines = requestLines(receivedBy(stack));
      for (const path of cutAt.keys()) {
        const times = lines.filter((line) => line === `${method} ${path} HTTP/1.1`).length;
        expect([path, times <= (method === 'POST' ? 1 : 2)]).toEqual([path, true]);
      }
      await expectClean(stack);
    },
  );

  test.each(['GET', 'POST'])(
    'makes %s end likewise on a kept connection, and a POST is still sent once',
    async (method) => {
      const ok = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok';
      const stack = await opened(async (connection) => {
        await connection.requests(1);
        connection.send(ok);
        await connection.requests(2);
        connection.socket.resetAndDestroy();
      });
      await call(stack, 'GET', '/first');
      const ended = await call(stack, method, '/second');
      const times = requestLines(receivedBy(stack)).filter((line) => line.includes('/second')).length;
      if (method === 'POST') {
        expect(ended.responses.at(-1)?.status).toBe(502);
        expect(times).toBe(1);
      } else {
        expect(ended.responses.at(-1)?.status).toBe(200);
        expect(times).toBe(2);
      }
      await expectClean(stack);
    },
  );
});

describe('a call that met a stale connection', () => {
  const ok = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok';
  const ceiling = (perMinute: number): StackOptions => ({
    workspaces: { acme: `    requestsPerMinute: { up: ${perMinute} }\n` },
  });

  /** The first connection breaks at its second request. */
  const stale =
    (): Script =>
    async (connection): Promise<void> => {
      await connection.requests(1);
      connection.send(ok);
      await connection.requests(2);
      connection.socket.resetAndDestroy();
    };

  test.each(['', 'Prefer: wait=0\r\n'])('is admitted again, and charged again (%j)', async (more) => {
    const stack = await opened(stale(), ceiling(10));
    expect((await call(stack, 'GET', '/first')).responses.at(-1)?.field('ratelimit')).toMatch(/;r=9;/);
    const response = (await call(stack, 'GET', '/second', more)).responses.at(-1);
    expect(response?.status).toBe(200);
    expect(response?.field('sluice-admission')).toMatch(/attempts=2, absorbed=0/);
    expect(response?.field('ratelimit')).toMatch(/;r=7;/);
    const lines = requestLines(receivedBy(stack));
    expect(lines.filter((line) => line.includes('/second'))).toHaveLength(2);
    await expectClean(stack);
  });

  test('is not sent again without a slot under its ceiling', async () => {
    const stack = await opened(stale(), ceiling(2));
    await call(stack, 'GET', '/first');
    const ended = await call(stack, 'GET', '/second', 'Prefer: wait=1\r\n');
    expect(codeOf(ended)).toBe('wait_too_long');
    const lines = requestLines(receivedBy(stack));
    expect(lines.filter((line) => line.includes('/second'))).toHaveLength(1);
    await expectClean(stack);
  });
});

describe('a refusal whose body breaks', () => {
  test.each([400, 404, 500, 502])('is passed on or becomes 502 for status %i', async (status) => {
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      connection.send(`HTTP/1.1 ${status} Odd\r\nContent-Length: 100\r\n\r\n{"error":`);
      setTimeout(() => connection.socket.resetAndDestroy(), 20);
    });
    const ended = await call(stack, 'POST', '/broken', 'Prefer: wait=1\r\n');
    const last = ended.responses.at(-1);
    expect(last === undefined || last.status === 502).toBe(true);
    expect(requestLines(receivedBy(stack))).toHaveLength(1);
    await expectClean(stack);
  });

  test.each([429, 503])('keeps the wait that its head states for status %i', async (status) => {
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      if (connection.number > 0) return connection.send('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
      connection.send(`HTTP/1.1 ${status} Slow\r\nRetry-After: 1\r\nContent-Length: 100\r\n\r\n{"error":`);
      setTimeout(() => connection.socket.resetAndDestroy(), 20);
    });
    const ended = await call(stack, 'GET', '/refused');
    expect(ended.responses.at(-1)?.status).toBe(200);
    const waited = /waited=(\d+)/.exec(ended.responses.at(-1)?.field('sluice-admission') ?? '')?.[1];
    // The wait counts from the response's head, its record from the end of the look into the body.
    expect(Number(waited)).toBeGreaterThanOrEqual(950);
    await expectClean(stack);
  });

  test.each(['', 'Idempotency-Key: one\r\n'])(
    'reaches the client whole when it is large and does not break: %j',
    async (field) => {
      const body = 'x'.repeat(300_000);
      const stack = await opened(
        answering(`HTTP/1.1 422 No\r\nContent-Length: ${body.length}\r\n\r\n${body}`),
      );
      const ended = await call(stack, 'POST', '/large', field);
      expect(ended.responses.at(-1)?.body.toString()).toBe(body);
      await expectClean(stack);
    },
  );

  test('is absorbed for a 429 with an endless body, and its connection is closed', async () => {
    let refused = 0;
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      if (refused > 0) return connection.send('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
      refused += 1;
      connection.send('HTTP/1.1 429 Slow\r\nRetry-After: 1\r\nTransfer-Encoding: chunked\r\n\r\n');
      const more = setInterval(() => connection.send('5\r\nwait!\r\n'), 5);
      connection.socket.on('close', () => clearInterval(more));
    });
    const ended = await call(stack, 'POST', '/endless');
    expect(ended.responses.at(-1)?.status).toBe(200);
    expect(ended.responses.at(-1)?.field('sluice-admission')).toContain('absorbed=1');
    expect(stack.upstream.open()).toBeLessThan(2);
    await expectClean(stack);
  });

  test('is passed on while it streams for a final 429, and ends with its limits', async () => {
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      connection.send(
        'HTTP/1.1 429 Slow\r\nRetry-After: 3600\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwait!\r\n',
      );
    });
    const ended = await call(stack, 'POST', '/endless', 'Prefer: wait=1\r\n');
    expect(ended.rest.toString('latin1')).toMatch(/^HTTP\/1\.1 429 /);
    expect(ended.closed).toBe(true);
    await expectClean(stack);
  });
});

describe('a response before or beside its request', () => {
  test('reaches the client whole when it is early and the body is large', async () => {
    const stack = await opened((connection) => {
      connection.send('HTTP/1.1 413 Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig');
      connection.socket.end();
    });
    const body = 'x'.repeat(500_000);
    const ended = await stack.exchange(
      stack.head('POST', stack.proxy('/early'), `Content-Length: ${body.length}\r\n`) + body,
    );
    expect([413, 502]).toContain(ended.responses.at(-1)?.status);
    await expectClean(stack);
  });

  test('is dropped when it is interim, up to 16 of them, and a flood of them ends in 502', async () => {
    const interim = 'HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n';
    for (const [count, status] of [
      [16, 200],
      [200, 502],
    ] as const) {
      const stack = await opened(
        answering(`${interim.repeat(count)}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`),
      );
      const ended = await call(stack, 'POST', '/interim');
      expect(ended.responses.map((response) => response.status)).toEqual([status]);
      await expectClean(stack);
    }
  });

  test('that is interim without end makes the call end at its deadline', async () => {
    const stack = await opened(async (connection: RawConnection) => {
      await connection.requests(1);
      const flood = setInterval(() => connection.send('HTTP/1.1 102 Wait\r\n\r\n'), 50);
      connection.socket.on('close', () => clearInterval(flood));
    });
    const ended = await call(stack, 'POST', '/interim');
    expect([502, 504]).toContain(ended.responses.at(-1)?.status);
    await expectClean(stack);
  });

  test('never takes bytes that follow another response', async () => {
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      connection.send(
        'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison',
      );
    });
    for (let n = 0; n < 5; n += 1) {
      const ended = await call(stack, 'GET', `/n/${n}`);
      expect(ended.responses.at(-1)?.body.toString()).toBe('ok');
    }
    await expectClean(stack);
  });

  test('loses hop-by-hop fields and forged fields of Sluice', async () => {
    const stack = await opened(
      answering(
        'HTTP/1.1 200 OK\r\nSluice-Error: queue_full\r\nSluice-Request-Id: forged\r\nSluice-Admission: waited=999999\r\n' +
          'RateLimit: "workspace";r=0;t=9\r\nConnection: X-Named\r\nX-Named: 1\r\nProxy-Authenticate: Basic\r\n' +
          'Upgrade: h2c\r\nKeep-Alive: timeout=1\r\nX-Kept: yes\r\nContent-Length: 2\r\n\r\nok',
      ),
    );
    const [response] = (await call(stack, 'GET', '/forged')).responses;
    const names = response?.fields.map(([name]) => name) ?? [];
    expect(names).toContain('x-kept');
    for (const dropped of ['sluice-error', 'x-named', 'proxy-authenticate', 'upgrade'])
      expect(names).not.toContain(dropped);
    expect(JSON.stringify(response?.fields)).not.toMatch(/forged|waited=999999|timeout=1"/);
  });
});

describe('a GraphQL response that cannot be read', () => {
  const json = 'Content-Type: application/json\r\n';
  const bomb = gzipSync(Buffer.alloc(8 * 1024 * 1024, '{'));
  const cases: readonly (readonly [string, string, Buffer])[] = [
    ['broken JSON', json, Buffer.from('{"data":{"shop":')],
    ['deep JSON', json, Buffer.from('['.repeat(30_000))],
    ['a prototype in JSON', json, Buffer.from('{"__proto__":{"errors":1},"extensions":{"cost":null}}')],
    ['odd extensions', json, Buffer.from('{"errors":[null,1,{"extensions":7}],"extensions":{"cost":"x"}}')],
    ['a gzip bomb', `${json}Content-Encoding: gzip\r\n`, bomb],
    ['broken gzip', `${json}Content-Encoding: gzip\r\n`, Buffer.from('not gzip at all')],
    ['a large body', json, Buffer.alloc(3_000_000, ' ')],
    ['an unknown coding', `${json}Content-Encoding: x-odd\r\n`, Buffer.from('????')],
    ['a short gzip', `${json}Content-Encoding: gzip\r\n`, bomb.subarray(0, 100)],
    ['large broken gzip', `${json}Content-Encoding: gzip\r\n`, Buffer.alloc(200_000, 7)],
    ['large gzip that is cut', `${json}Content-Encoding: gzip\r\n`, gzipSync(noise(300_000)).subarray(0, -9)],
  ];
  test.each(cases)(
    'reaches the client byte for byte, and its lease ends: %s',
    async (_name, fields, body) => {
      const stack = await opened(
        async (connection) => {
          for (let count = 1; ; count += 1) {
            await connection.requests(count);
            if (connection.socket.destroyed) return;
            connection.socket.write(`HTTP/1.1 200 OK\r\n${fields}Content-Length: ${body.length}\r\n\r\n`);
            connection.socket.write(body);
          }
        },
        {
          kind: 'commerce',
          credential: '{ header: x-shopify-access-token, value: "token-of-the-shop" }',
          timeouts: '{ headSeconds: 20, idleSeconds: 20 }',
        },
      );
      const query = JSON.stringify({ query: '{ shop { name } }' });
      const path = '/admin/api/2026-10/graphql.json';
      const asked = `${json}Content-Length: ${query.length}\r\n`;
      for (let n = 0; n < 2; n += 1) {
        const ended = await stack.exchange(stack.head('POST', stack.proxy(path), asked) + query);
        const [response] = ended.responses;
        expect(response?.status).toBe(200);
        expect(response?.body.equals(body)).toBe(true);
      }
      await expectClean(stack);
    },
  );
});

/** Bytes that do not compress, the same every time. */
function noise(length: number): Buffer {
  const bytes = Buffer.alloc(length);
  let state = 1;
  for (let at = 0; at < length; at += 1) {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    bytes[at] = state >>> 16;
  }
  return bytes;
}

test('a slow upstream answers many clients, and each gets its own response', async () => {
  const stack = await opened(
    async (connection) => {
      for (let count = 1; ; count += 1) {
        await connection.requests(count);
        if (connection.socket.destroyed) return;
        const nonce = upstreamRequests(connection.received())[count - 1]?.line.split(' ')[1] ?? '';
        const body = Buffer.from(nonce.repeat(50));
        const split = (count * 37) % body.length;
        connection.send(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n`);
        connection.socket.write(body.subarray(0, split));
        setTimeout(() => connection.socket.write(body.subarray(split)), count % 5);
      }
    },
    { timeouts: '{ headSeconds: 20, idleSeconds: 20 }', more: '    limits: { requestsPerMinute: none }' },
  );
  await Promise.all(
    Array.from({ length: 20 }, async (_, client) => {
      const connection = await connectRaw(stack.port);
      for (let n = 0; n < 15; n += 1) {
        const path = `/nonce-${client}-${n}`;
        await connection.send(stack.head(n % 2 === 0 ? 'GET' : 'DELETE', stack.proxy(path)));
        const responses = await connection.responses(n + 1);
        expect(responses[n]?.body.toString()).toBe(path.repeat(50));
      }
      connection.socket.destroy();
    }),
  );
  await expectClean(stack);
});
