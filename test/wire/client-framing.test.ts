/** What plain Node accepts and Sluice must refuse, and what Node refuses and must go on refusing. Raw bytes only. */
import { describe, expect, test } from '@jest/globals';
import { settled } from '../ingress/data-server-fixture.ts';
import { allOf, answer, echo, get, head, inShort, served, upload } from './served.ts';

const chunked = 'Transfer-Encoding: chunked';
const none = '0\r\n\r\n';
/** Bytes in one line: `|` stands for CRLF. */
const bytes = (text: string): string => text.replaceAll('|', '\r\n');

const own = 'Sluice-Upstream-Authorization';
const noUpgrade = '426 upgrade_unsupported';
const refusedHere: readonly (readonly [string, string, string?])[] = [
  ['two Host fields', get('Host: sluice.test')],
  ['two equal Host fields in other case', get('hOST: sluice.test')],
  ['two Authorization fields', get('Authorization: Bearer a', 'authorization: Bearer b')],
  ['two Sluice-Key fields', get('Sluice-Key: a', 'Sluice-Key: a')],
  ['two injected-credential fields', get('x-api-key: a', 'X-Api-Key: b')],
  ['two credentials for the upstream', get(`${own}: a`, `${own}: b`)],
  ['Host with a path', bytes('GET /proxy HTTP/1.1|Host: a/b||')],
  ['Host with user info', bytes('GET /proxy HTTP/1.1|Host: u@a||')],
  ['an empty Host', bytes('GET /proxy HTTP/1.1|Host:||')],
  ['another coding before chunked', upload('Transfer-Encoding: gzip, chunked') + none],
  ['a transfer coding in HTTP/1.0', head('POST /proxy HTTP/1.0', chunked) + none],
  ['a request line of HTTP/2.0', head('GET /proxy HTTP/2.0')],
  ['TRACE', head('TRACE /proxy HTTP/1.1'), '405 method_not_allowed'],
  ['CONNECT', head('CONNECT api.shop.example:443 HTTP/1.1'), '405 method_not_allowed'],
  ['OPTIONS *', head('OPTIONS * HTTP/1.1')],
  ['the absolute form', head('GET http://sluice.test/proxy?target=x HTTP/1.1')],
  ['the absolute form of another host', head('GET https://evil.example/ HTTP/1.1')],
  ['a fragment', head('GET /proxy?target=x#y HTTP/1.1')],
  ['a websocket upgrade', get('Connection: Upgrade', 'Upgrade: websocket'), noUpgrade],
  ['an upgrade without its Connection option', get('Upgrade: TLS/1.3'), noUpgrade],
  ['h2c beside another protocol', get('Connection: Upgrade', 'Upgrade: h2c, websocket'), noUpgrade],
  ['an unknown expectation', get('Expect: 200-ok'), '417 request_invalid'],
  ['an unknown expectation beside the known one', get('Expect: 100-continue, more'), '417 request_invalid'],
  ['a Connection option naming framing', upload('Connection: content-length', 'Content-Length: 0')],
  ['a Connection option naming a credential', get('Connection: close, authorization')],
  ['a Connection option of an object prototype', get('Connection: __proto__')],
  ['a second Connection line with an unknown option', get('Connection: close', 'Connection: cookie')],
];

const tooLarge = '431 headers_too_large';
const refusedByNode: typeof refusedHere = [
  ['a length before a transfer coding', upload('Content-Length: 1', chunked) + none],
  ['a length after a transfer coding', upload(chunked, 'Content-Length: 1') + none],
  ['two lengths', upload('Content-Length: 1', 'Content-Length: 2') + 'ab'],
  ['two equal lengths', upload('Content-Length: 1', 'Content-Length: 1') + 'a'],
  ['a list of lengths', upload('Content-Length: 1, 1') + 'a'],
  ['a signed length', upload('Content-Length: +1') + 'a'],
  ['a negative length', upload('Content-Length: -1') + 'a'],
  ['an empty length', upload('Content-Length:') + 'a'],
  ['a huge length', upload('Content-Length: 99999999999999999999999') + 'a'],
  ['chunked twice', upload('Transfer-Encoding: chunked, chunked') + none],
  ['two lines of chunked', upload(chunked, chunked) + none],
  ['chunked not last', upload('Transfer-Encoding: chunked, gzip') + none],
  ['chunked misspelt', upload('Transfer-Encoding: xchunked') + none],
  ['a blank before the colon', get('X-Field : a')],
  ['a folded line', get('X-Field: a', ' b')],
  ['a bare line feed', 'GET /proxy HTTP/1.1\nHost: a\n\n'],
  ['a bare carriage return', bytes('GET /proxy HTTP/1.1|Host: a\rX: b||')],
  ['NUL in a value', get('X-Field: a\0b')],
  ['a missing Host', bytes('GET /proxy HTTP/1.1||')],
  ['an empty field name', get(': a')],
  ['a field name that is no token', get('X(Field): a')],
  ['an unknown method', head('FETCH /proxy HTTP/1.1')],
  ['a method in lower case', head('get /proxy HTTP/1.1')],
  ['HTTP/1.2', head('GET /proxy HTTP/1.2')],
  ['the preface of HTTP/2', bytes('PRI * HTTP/2.0||SM||')],
  ['a blank in the request target', head('GET /proxy?a b HTTP/1.1')],
  ['a high byte in the request target', head('GET /proxy?\xe9 HTTP/1.1')],
  ['bytes that are not HTTP', bytes('\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello||')],
  ['17 KiB in one field', get(`X-Field: ${'a'.repeat(17_000)}`), tooLarge],
  ['17 KiB of request target', head(`GET /proxy?${'a'.repeat(17_000)} HTTP/1.1`), tooLarge],
  ['1,001 fields', get(...Array<string>(1_000).fill('a: b')), tooLarge],
];

describe.each([
  ['what Node accepts and Sluice does not', refusedHere],
  ['what Node refuses', refusedByNode],
])('%s', (_whose, cases) => {
  test.each(cases)(
    '%s is refused with a problem document',
    async (_, sent, expected = '400 request_invalid') => {
      const { raw, calls, bugs } = await served();
      await raw.send(Buffer.from(sent, 'latin1'));
      const [response] = await raw.responses(1);
      await raw.closed;
      expect(inShort(response)).toBe(`${expected} close`);
      expect(response?.field('content-type')).toBe('application/problem+json');
      expect(response?.field('allow')?.includes('POST')).toBe(expected.startsWith('405') ? true : undefined);
      const [status, code] = expected.split(' ');
      expect(JSON.parse(response?.body.toString() ?? '')).toMatchObject({ status: Number(status), code });
      expect([calls, bugs]).toEqual([[], []]);
    },
  );
});

test.each([
  ['a chunk size with a prefix', bytes('0x1|a|0||')],
  ['a chunk size ended by a line feed', bytes('1\na|0||')],
  ['a chunk longer than its size', bytes('1|ab|0||')],
  ['17 KiB of chunk extension', bytes(`1;${'a'.repeat(17_000)}|a|0||`)],
  ['a length among the trailers', bytes('1|a|0|Content-Length: 3||')],
])('a request with %s is refused while its body is read', async (_name, body) => {
  const left: unknown[] = [];
  const { raw, bugs } = await served(async (call) => {
    try {
      await call.readBody('w');
    } catch (error) {
      left.push(error === call.clientGone.reason);
      throw error;
    }
    throw new Error('the body was taken for whole');
  });
  await raw.send(upload(chunked) + body);
  expect(await answer(raw)).toBe('400 request_invalid close');
  await raw.closed;
  expect([left, bugs]).toEqual([[true], []]);
});

describe('an unusual but allowed request', () => {
  test.each([
    ['1,000 fields', Array<string>(999).fill('a: b')],
    ['fields named like members of objects', ['__proto__: a', 'constructor: b', 'hasOwnProperty: c']],
  ])('of %s is served, and keeps them all', async (_name, fields) => {
    const { raw, calls } = await served();
    await raw.send(get(...fields));
    expect(await answer(raw)).toBe('200 keep-alive');
    expect(calls[0]?.rawFields.slice(2)).toEqual(fields.flatMap((field) => field.split(': ')));
  });

  const offer = ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABkAAQAAP__'];
  test.each([
    ['a length', 'Content-Length: 6', ['abc', 'def']],
    ['chunks', chunked, ['3\r\nabc\r\n', '3\r\ndef\r\n0\r\n\r\n']],
  ])('with an offer of h2c is served as the plain request that it is, with %s', async (_, framing, parts) => {
    const { raw, calls } = await served(echo);
    await raw.send(upload(...offer, framing));
    await settled(() => calls.length === 1);
    for (const part of parts) await raw.send(part);
    expect((await raw.responses(1))[0]?.body.toString()).toBe('abcdef');
  });

  test("with an offer of h2c ends the connection, because Node's parser loses the bytes that follow", async () => {
    const { raw, calls } = await served();
    await raw.send(get(...offer) + get());
    expect((await allOf(raw)).map(inShort)).toEqual(['200 close']);
    expect(calls).toHaveLength(1);
  });

  test('of HTTP/1.0 without Host is served, and its connection ends', async () => {
    const { raw } = await served();
    await raw.send('GET /proxy?target=x HTTP/1.0\r\n\r\n');
    expect((await allOf(raw)).map(({ status }) => status)).toEqual([200]);
  });

  test('of GET with a body keeps the body', async () => {
    const { raw } = await served(echo);
    await raw.send(get('Content-Length: 3') + 'abc');
    expect((await raw.responses(1))[0]?.body.toString()).toBe('abc');
  });
});
