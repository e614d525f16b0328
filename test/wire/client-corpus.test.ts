/**
 * Hostile bytes by class: method × framing × field × fragmentation. The oracle: no fault of our own, every response
 * well framed or the connection closed, at most one call, and the next connection served.
 */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { DataServer } from '../../src/ingress/data-server.ts';
import { held, outcomeOf, serverSettings, settled } from '../ingress/data-server-fixture.ts';
import { connectRaw, readResponses } from '../support/raw-client.ts';

const methods = ['GET', 'HEAD', 'POST', 'DELETE', 'OPTIONS'];
const framings: readonly (readonly [string, string])[] = [
  ['', ''],
  ['Content-Length: 5\r\n', 'abcde'],
  ['Transfer-Encoding: chunked\r\n', '5\r\nabcde\r\n0\r\n\r\n'],
  ['Transfer-Encoding: chunked\r\n', '5;ext="x"\r\nabcde\r\n0\r\nTrailer: x\r\n\r\n'],
];
const tricks = [
  'Trailer: x',
  'TE: trailers',
  'Connection: te\r\nTE: trailers, deflate',
  'Connection: transfer-encoding',
  'Connection: keep-alive, content-length',
  'Connection: sluice-key\r\nSluice-Key: k',
  'Proxy-Connection: keep-alive\r\nKeep-Alive: timeout=5',
  'Expect: 100-continue',
  'Expect: nothing',
  'Upgrade: websocket\r\nConnection: upgrade',
  'Upgrade: h2c\r\nConnection: upgrade, http2-settings\r\nHTTP2-Settings: x',
  'Upgrade: h2c',
  'HTTP2-Settings: x',
  '__proto__: x\r\nconstructor: y\r\ntoString: z',
  'Host: other',
  'Authorization: a\r\nAuthorization: b',
  'Cookie: a\r\nCookie: b',
  'Forwarded: for=1.1.1.1\r\nVia: 1.1 x\r\nX-Forwarded-For: 1',
  'Sluice-Error: queue_full\r\nSluice-Request-Id: x',
  'X-High: \xe9\xff',
  'X-Empty:',
  'X-Nul: a\0b',
  ' X-Folded: a',
  'X Blank: a',
  'X-Lf: a\nX-More: b',
  'X-Cr: a\rb',
  'Content-Length: 0',
  'Transfer-Encoding: identity',
  'Transfer-Encoding : chunked',
  `X-Large: ${'a'.repeat(20_000)}`,
  'Prefer: wait=\xff\r\nPriority: u=99\r\nIdempotency-Key: ""\r\ntraceparent: 00-0',
];
const fragmentations: readonly (readonly [string, (bytes: Buffer) => Buffer[]])[] = [
  ['whole', (bytes) => [bytes]],
  ['cut in the middle', (bytes) => [bytes.subarray(0, bytes.length / 2), bytes.subarray(bytes.length / 2)]],
  ['cut before the last byte', (bytes) => [bytes.subarray(0, -1), bytes.subarray(-1)]],
];

const bugs: unknown[] = [];
let handled = 0;
let data: DataServer | null = null;
let port = 0;

beforeAll(async () => {
  data = new DataServer({
    settings: serverSettings,
    clock: systemClock,
    random: systemRandom,
    handle: async (call) => {
      handled += 1;
      return outcomeOf({ body: (await call.readBody('w')).bytes });
    },
    activity: () => Promise.resolve({}),
    credentialFields: () => new Set(['authorization']),
    onRequestRefused: () => {},
    onOverload: () => {},
    onShedding: () => {},
    load: null,
    onBug: (bug) => bugs.push(bug),
    lingerMs: 10,
  });
  port = (await data.listen()).port;
});

afterAll(async () => {
  await data?.close();
});

async function exchange(method: string, pieces: readonly Buffer[]): Promise<string> {
  handled = 0;
  const raw = await connectRaw(port);
  for (const piece of pieces) await raw.send(piece);
  // A last, plain request shows whether the connection is still in frame, and closes a connection that is.
  await raw.send('GET /proxy?last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
  const { bytes } = await raw.closed;
  const read = readResponses(bytes, [method, 'GET'], true);
  // A head that does not parse has no method: its refusal has a body even if the method would have been HEAD.
  const unparsed = method === 'HEAD' && read.rest.length > 0;
  const { responses, rest } = unparsed ? readResponses(bytes, [], true) : read;
  if (unparsed) expect(responses.map(({ field }) => field('connection'))).toEqual(['close']);
  expect(rest.toString()).toBe('');
  const finals = responses.filter(({ status }) => status >= 200);
  expect(finals.length).toBeLessThanOrEqual(2);
  // Compared with the bytes, so that a failure shows what was sent.
  const sent = Buffer.concat(pieces).toString('latin1');
  expect([handled <= finals.length, sent]).toEqual([true, sent]);
  return finals.map(({ status }) => status).join(' ');
}

/** Each method with the whole head at once, and POST in all pieces. */
const sendings = fragmentations.flatMap((cut, n) =>
  (n === 0 ? methods : ['POST']).map((method) => [method, ...cut] as const),
);
test.each(sendings)(
  'every framing and trick with %s, %s, gets well-framed responses or a closed connection',
  async (method, _name, cut) => {
    const seen = new Set<string>();
    for (const [framing, body] of framings)
      for (const trick of tricks) {
        const head = `${method} /proxy?first HTTP/1.1\r\nHost: a\r\n${framing}${trick}\r\n\r\n`;
        seen.add(await exchange(method, cut(Buffer.from(head + body, 'latin1'))));
      }
    expect(bugs).toEqual([]);
    // Served twice, refused and closed, and served once and closed were all reached.
    expect([...seen]).toEqual(expect.arrayContaining(['200 200', '400', '426', '417', '200']));
    await settled(() => data?.stats().openCalls === 0 && held(data) === 0);
    expect(await exchange('GET', [])).toBe('200');
  },
);
