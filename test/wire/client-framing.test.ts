/** What plain Node accepts and Sluice must refuse, and what Node refuses and must go on refusing. Raw bytes only. */
import { describe, expect, test } from '@jest/globals';
import { outcomeOf, settled, startDataServer } from '../ingress/data-server-fixture.ts';
import { readResponses } from '../support/raw-client.ts';
import type { RawResponse } from '../support/raw-client.ts';

interface Problem {
  readonly status: number;
  readonly code: string;
}

const problemOf = (response: RawResponse): Problem => JSON.parse(response.body.toString()) as Problem;

/** Sends the bytes on a connection of their own; the one response, after which the connection must close. */
async function refused(bytes: string): Promise<{ response: RawResponse; calls: number; bugs: unknown[] }> {
  const { client, calls, bugs } = await startDataServer();
  const raw = await client();
  await raw.send(bytes);
  const [response] = await raw.responses(1);
  await raw.closed;
  if (response === undefined) throw new Error('no response');
  return { response, calls: calls.length, bugs };
}

const head = (...fields: string[]): string =>
  ['GET /proxy?target=x HTTP/1.1', 'Host: sluice.test', ...fields, '', ''].join('\r\n');
const upload = (...fields: string[]): string =>
  ['POST /proxy?target=x HTTP/1.1', 'Host: sluice.test', ...fields, '', ''].join('\r\n');
const line = (requestLine: string, ...fields: string[]): string =>
  [requestLine, 'Host: sluice.test', ...fields, '', ''].join('\r\n');

describe('what Node accepts and Sluice does not', () => {
  const cases: readonly (readonly [string, string, number, string])[] = [
    ['two Host fields', head('Host: sluice.test'), 400, 'request_invalid'],
    ['two equal Host fields in other case', head('hOST: sluice.test'), 400, 'request_invalid'],
    [
      'two Authorization fields',
      head('Authorization: Bearer a', 'authorization: Bearer b'),
      400,
      'request_invalid',
    ],
    ['two Sluice-Key fields', head('Sluice-Key: a', 'Sluice-Key: a'), 400, 'request_invalid'],
    ['two injected-credential fields', head('x-api-key: a', 'X-Api-Key: b'), 400, 'request_invalid'],
    [
      'two Sluice-Upstream-Authorization fields',
      head('Sluice-Upstream-Authorization: a', 'Sluice-Upstream-Authorization: b'),
      400,
      'request_invalid',
    ],
    ['Host with a path', 'GET /proxy HTTP/1.1\r\nHost: a/b\r\n\r\n', 400, 'request_invalid'],
    ['Host with user info', 'GET /proxy HTTP/1.1\r\nHost: u@a\r\n\r\n', 400, 'request_invalid'],
    ['an empty Host', 'GET /proxy HTTP/1.1\r\nHost:\r\n\r\n', 400, 'request_invalid'],
    [
      'another coding before chunked',
      upload('Transfer-Encoding: gzip, chunked') + '0\r\n\r\n',
      400,
      'request_invalid',
    ],
    [
      'a transfer coding in HTTP/1.0',
      'POST /proxy HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
      400,
      'request_invalid',
    ],
    ['a request line of HTTP/2.0', line('GET /proxy HTTP/2.0'), 400, 'request_invalid'],
    ['TRACE', line('TRACE /proxy HTTP/1.1'), 405, 'method_not_allowed'],
    ['OPTIONS *', line('OPTIONS * HTTP/1.1'), 400, 'request_invalid'],
    ['the absolute form', line('GET http://sluice.test/proxy?target=x HTTP/1.1'), 400, 'request_invalid'],
    ['the absolute form of another host', line('GET https://evil.example/ HTTP/1.1'), 400, 'request_invalid'],
    ['a fragment', line('GET /proxy?target=x#y HTTP/1.1'), 400, 'request_invalid'],
    ['CONNECT', line('CONNECT api.shop.example:443 HTTP/1.1'), 405, 'method_not_allowed'],
    ['a websocket upgrade', head('Connection: Upgrade', 'Upgrade: websocket'), 426, 'upgrade_unsupported'],
    ['an upgrade without its Connection option', head('Upgrade: TLS/1.3'), 426, 'upgrade_unsupported'],
    [
      'h2c offered beside another protocol',
      head('Connection: Upgrade', 'Upgrade: h2c, websocket'),
      426,
      'upgrade_unsupported',
    ],
    ['an unknown expectation', head('Expect: 200-ok'), 417, 'request_invalid'],
    [
      'an unknown expectation beside the known one',
      head('Expect: 100-continue, more'),
      417,
      'request_invalid',
    ],
    [
      'a Connection option naming framing',
      upload('Connection: content-length', 'Content-Length: 0'),
      400,
      'request_invalid',
    ],
    [
      'a Connection option naming a credential',
      head('Connection: close, authorization'),
      400,
      'request_invalid',
    ],
    ['a Connection option of an object prototype', head('Connection: __proto__'), 400, 'request_invalid'],
    [
      'a second Connection line with an unknown option',
      head('Connection: close', 'Connection: cookie'),
      400,
      'request_invalid',
    ],
  ];

  test.each(cases)('a request with %s is refused', async (_name, bytes, status, code) => {
    const { response, calls, bugs } = await refused(bytes);
    expect(response.status).toBe(status);
    expect(response.field('sluice-error')).toBe(code);
    expect(response.field('connection')).toBe('close');
    expect(problemOf(response)).toMatchObject({ status, code });
    expect(calls).toBe(0);
    expect(bugs).toEqual([]);
  });

  test('405 names the methods that are served', async () => {
    expect((await refused(line('TRACE /proxy HTTP/1.1'))).response.field('allow')).toContain('POST');
    expect((await refused(line('CONNECT a:443 HTTP/1.1'))).response.field('allow')).toContain('POST');
  });
});

describe('what Node refuses gets a problem document', () => {
  const chunked = upload('Transfer-Encoding: chunked');
  const cases: readonly (readonly [string, string, number])[] = [
    [
      'a length before a transfer coding',
      upload('Content-Length: 1', 'Transfer-Encoding: chunked') + '0\r\n\r\n',
      400,
    ],
    [
      'a length after a transfer coding',
      upload('Transfer-Encoding: chunked', 'Content-Length: 1') + '0\r\n\r\n',
      400,
    ],
    ['two lengths', upload('Content-Length: 1', 'Content-Length: 2') + 'ab', 400],
    ['two equal lengths', upload('Content-Length: 1', 'Content-Length: 1') + 'a', 400],
    ['a list of lengths', upload('Content-Length: 1, 1') + 'a', 400],
    ['a signed length', upload('Content-Length: +1') + 'a', 400],
    ['a negative length', upload('Content-Length: -1') + 'a', 400],
    ['an empty length', upload('Content-Length:') + 'a', 400],
    ['a huge length', upload('Content-Length: 99999999999999999999999') + 'a', 400],
    ['chunked twice', upload('Transfer-Encoding: chunked, chunked') + '0\r\n\r\n', 400],
    [
      'two lines of chunked',
      upload('Transfer-Encoding: chunked', 'Transfer-Encoding: chunked') + '0\r\n\r\n',
      400,
    ],
    ['chunked not last', upload('Transfer-Encoding: chunked, gzip') + '0\r\n\r\n', 400],
    ['chunked misspelt', upload('Transfer-Encoding: xchunked') + '0\r\n\r\n', 400],
    ['a blank before the colon', head('X-Field : a'), 400],
    ['a folded line', head('X-Field: a', ' b'), 400],
    ['a bare line feed', 'GET /proxy HTTP/1.1\nHost: a\n\n', 400],
    ['a bare carriage return', 'GET /proxy HTTP/1.1\r\nHost: a\rX: b\r\n\r\n', 400],
    ['NUL in a value', head('X-Field: a\0b'), 400],
    ['a missing Host', 'GET /proxy HTTP/1.1\r\n\r\n', 400],
    ['an empty field name', head(': a'), 400],
    ['a field name that is no token', head('X(Field): a'), 400],
    ['an unknown method', line('FETCH /proxy HTTP/1.1'), 400],
    ['a method in lower case', line('get /proxy HTTP/1.1'), 400],
    ['HTTP/1.2', line('GET /proxy HTTP/1.2'), 400],
    ['the preface of HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400],
    ['a blank in the request target', line('GET /proxy?a b HTTP/1.1'), 400],
    ['a high byte in the request target', line('GET /proxy?\xe9 HTTP/1.1'), 400],
    ['bytes that are not HTTP', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n', 400],
    ['17 KiB in one field', head(`X-Field: ${'a'.repeat(17_000)}`), 431],
    ['17 KiB of request target', line(`GET /proxy?${'a'.repeat(17_000)} HTTP/1.1`), 431],
    ['1,001 fields', head(...Array.from({ length: 1_000 }, () => 'a: b')), 431],
  ];

  test.each(cases)('a request with %s is refused', async (_name, bytes, status) => {
    const { client, calls, bugs } = await startDataServer();
    const raw = await client();
    await raw.send(Buffer.from(bytes, 'latin1'));
    const [response] = await raw.responses(1);
    await raw.closed;
    expect(response?.status).toBe(status);
    expect(response?.field('content-type')).toBe('application/problem+json');
    expect(response?.field('sluice-error')).toBe(status === 431 ? 'headers_too_large' : 'request_invalid');
    expect(response?.field('connection')).toBe('close');
    expect(calls).toHaveLength(0);
    expect(bugs).toEqual([]);
  });

  const brokenChunks: readonly (readonly [string, string])[] = [
    ['a chunk size with a prefix', '0x1\r\na\r\n0\r\n\r\n'],
    ['a chunk size ended by a line feed', '1\na\r\n0\r\n\r\n'],
    ['a chunk longer than its size', '1\r\nab\r\n0\r\n\r\n'],
    ['17 KiB of chunk extension', `1;${'a'.repeat(17_000)}\r\na\r\n0\r\n\r\n`],
    ['a length among the trailers', '1\r\na\r\n0\r\nContent-Length: 3\r\n\r\n'],
  ];
  test.each(brokenChunks)('a request with %s is refused while its body is read', async (_name, body) => {
    const left: unknown[] = [];
    const { client, bugs } = await startDataServer(async (call) => {
      await call.readBody('w').catch((error: unknown) => {
        left.push(error === call.clientGone.reason);
        throw error;
      });
      throw new Error('the body was taken for whole');
    });
    const raw = await client();
    await raw.send(chunked + body);
    const [response] = await raw.responses(1);
    await raw.closed;
    expect(response?.status).toBe(400);
    expect(response?.field('sluice-error')).toBe('request_invalid');
    expect(left).toEqual([true]);
    expect(bugs).toEqual([]);
  });
});

describe('an unusual but allowed request', () => {
  test('of 1,000 fields is served', async () => {
    const { client, calls } = await startDataServer();
    const raw = await client();
    await raw.send(head(...Array.from({ length: 999 }, () => 'a: b')));
    expect((await raw.responses(1))[0]?.status).toBe(200);
    expect(calls[0]?.rawFields).toHaveLength(2_000);
  });

  const offer = ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABkAAQAAP__'];
  test.each([
    ['a length', upload(...offer, 'Content-Length: 6'), ['abc', 'def']],
    ['chunks', upload(...offer, 'Transfer-Encoding: chunked'), ['3\r\nabc\r\n', '3\r\ndef\r\n0\r\n\r\n']],
  ])(
    'with an offer of h2c is served as the plain request that it also is, with %s',
    async (_name, bytes, parts) => {
      const { client, calls } = await startDataServer(async (call) =>
        outcomeOf({ body: (await call.readBody('w')).bytes }),
      );
      const raw = await client();
      await raw.send(bytes);
      await settled(() => calls.length === 1);
      for (const part of parts) await raw.send(part);
      expect((await raw.responses(1))[0]?.body.toString()).toBe('abcdef');
    },
  );

  test("with an offer of h2c ends the connection, because Node's parser loses the bytes that follow", async () => {
    const { client, calls } = await startDataServer();
    const raw = await client();
    await raw.send(head(...offer) + head());
    const { bytes } = await raw.closed;
    const { responses, rest } = readResponses(bytes);
    expect(responses.map(({ status, field }) => [status, field('connection')])).toEqual([[200, 'close']]);
    expect(rest).toHaveLength(0);
    expect(calls).toHaveLength(1);
  });

  test('keeps fields named like members of object prototypes', async () => {
    const { client, calls } = await startDataServer();
    const raw = await client();
    await raw.send(head('__proto__: a', 'constructor: b', 'hasOwnProperty: c'));
    expect((await raw.responses(1))[0]?.status).toBe(200);
    expect(calls[0]?.rawFields.slice(2)).toEqual([
      '__proto__',
      'a',
      'constructor',
      'b',
      'hasOwnProperty',
      'c',
    ]);
  });

  test('of HTTP/1.0 without Host is served, and its connection ends', async () => {
    const { client } = await startDataServer();
    const raw = await client();
    await raw.send('GET /proxy?target=x HTTP/1.0\r\n\r\n');
    expect((await raw.responses(1))[0]?.status).toBe(200);
    await raw.closed;
  });

  test('of GET with a body keeps the body', async () => {
    const { client } = await startDataServer(async (call) =>
      outcomeOf({ body: (await call.readBody('w')).bytes }),
    );
    const raw = await client();
    await raw.send(head('Content-Length: 3') + 'abc');
    expect((await raw.responses(1))[0]?.body.toString()).toBe('abc');
  });
});
