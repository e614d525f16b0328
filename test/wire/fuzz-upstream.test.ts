/**
 * Seeded hostile upstreams behind the whole gateway: responses whose bytes are mutated, cut and fragmented. Whatever they
 * are, the client gets one well-framed response or a closed connection, a POST arrives once, a cut body is not passed
 * off as whole, and nothing is left behind.
 */
import { expect, test } from '@jest/globals';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { connectRaw, readResponses } from '../support/raw-client.ts';
import { faults, leftBehind, receivedBy, requestLines, startStack, nextIteration } from './stack-fixture.ts';
import type { Stack } from './stack-fixture.ts';

const seed = 20_261_121;

const body = '{"data":{"shop":null},"extensions":{"cost":{"requestedQueryCost":1,"actualQueryCost":1}}}';
const length = body.length;
const hex = length.toString(16);
const responses: readonly string[] = [
  `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n${body}`,
  `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${hex}\r\n${body}\r\n0\r\n\r\n`,
  `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n${hex};a=b\r\n${body}\r\n0\r\nX: y\r\n\r\n`,
  `HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n${body}`,
  `HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\nConnection: X-A, content-length\r\nX-A: b\r\n\r\nno!`,
  `HTTP/1.1 429 Slow\r\nRetry-After: 3600\r\nX-Shopify-Shop-Api-Call-Limit: 40/40\r\nContent-Length: 3\r\n\r\nno!`,
  `HTTP/1.1 503 Busy\r\nRetry-After: Sat, 21 Nov 2099 04:49:44 GMT\r\nContent-Length: 0\r\n\r\n`,
  `HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nok`,
  `HTTP/1.1 204 None\r\nX-RateLimit-Remaining-Requests: 1\r\nX-RateLimit-Reset-Requests: 6m0s\r\n\r\n`,
  `HTTP/1.1 304 Same\r\nETag: "a"\r\nContent-Length: 10\r\n\r\n`,
  `HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n`,
  `HTTP/1.1 200 OK\r\nX-Accel-Redirect: /via/up/x\r\nx-sendfile: /x\r\nSurrogate-Control: max-age=9\r\nClear-Site-Data: "*"\r\nContent-Length: 2\r\n\r\nok`,
  `HTTP/1.1 200 OK\r\nCache-Control: public, s-maxage=9\r\nCache-Control: x="y, public\r\nVary: A\r\nSet-Cookie: a=1; Domain=x; Path=/\r\nContent-Length: 2\r\n\r\nok`,
  `HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n\x1f\x8b\b\0`,
];

/** What no client ever gets of an upstream on `/proxy`. */
const commands = new Set([
  'x-accel-redirect',
  'x-sendfile',
  'surrogate-control',
  'clear-site-data',
  'set-cookie',
]);

type Random = SeededRandom;
const below = (random: Random, end: number): number => Math.floor(random.next() * end);

/** Half of them as they are or cut, half with a few bytes changed, some doubled. */
function responseOf(random: Random): string {
  let text = responses[below(random, responses.length)] ?? '';
  const interesting = '\r\n\0 :;,\t"/09aZ\x7f\xff-';
  for (let times = below(random, 4) * below(random, 2); times > 0; times -= 1) {
    // Most of what matters is in the head.
    const at = below(random, random.next() < 0.8 ? Math.min(120, text.length) : text.length);
    const kind = below(random, 4);
    const byte = interesting.charAt(below(random, interesting.length));
    const inserted = kind === 0 ? '' : kind === 1 ? text.charAt(at).repeat(2) : byte;
    text = text.slice(0, at) + inserted + text.slice(kind === 3 ? at : at + 1);
  }
  if (random.next() < 0.1) text += text;
  if (random.next() < 0.25) text = text.slice(0, below(random, text.length));
  return text;
}

async function run(stack: Stack, cases: number, path: string, refused: ReadonlySet<string>): Promise<void> {
  const wrong: string[] = [];
  const methods = ['GET', 'POST', 'HEAD', 'DELETE'];
  const lanes = Array.from({ length: 48 }, async (_, lane) => {
    for (let n = lane; n < cases; n += 48) {
      const method = methods[n % methods.length] ?? 'GET';
      const client = await connectRaw(stack.port);
      // A credential of its own is a bucket of its own: no 429 of one case holds up the next.
      const own = `Sluice-Upstream-Authorization: Bearer n${n}\r\nPrefer: wait=2\r\n`;
      const more = method === 'POST' ? `Content-Length: 2\r\n${own}` : own;
      await client.send(
        stack.head(method, stack.proxy(`${path}?n=${n}`), `${more}Content-Type: application/json\r\n`) +
          (method === 'POST' ? '{}' : ''),
      );
      const answered = client.responses(1, [method]).then(
        () => {},
        () => {},
      );
      await Promise.race([answered, client.closed]);
      // Nothing of a second response may follow on this connection.
      await nextIteration();
      client.halfClose();
      const { bytes } = await client.closed;
      try {
        const read = readResponses(bytes, [method], false);
        for (const response of read.responses) {
          const beyond = response.fields.filter(([name]) => commands.has(name));
          if (beyond.length > 0) wrong.push(`case ${n}: ${beyond.join()}`);
          const caching = response.field('cache-control') ?? '';
          if (
            !/^(?:private|no-store)(?:,|$)/.test(caching) &&
            !/, ?(?:private|no-store)(?:,|$)/.test(caching)
          )
            wrong.push(`case ${n}: a cache may store it: ${caching}`);
        }
        if (read.responses.length > 1) wrong.push(`case ${n}: more than one response`);
        if (read.responses.length === 1 && read.rest.length > 0)
          wrong.push(`case ${n}: bytes behind the response`);
      } catch (error) {
        wrong.push(`case ${n}: ${String(error)}`);
      }
    }
  });
  await Promise.all(lanes);
  expect(wrong.slice(0, 5)).toEqual([]);
  const lines = requestLines(receivedBy(stack));
  const posts = lines.filter((line) => line.startsWith('POST '));
  expect(posts.length).toBeGreaterThan(cases / 8);
  // Sent again is only what the upstream had refused to run.
  const repeated = posts.filter((line, at) => posts.indexOf(line) < at);
  expect(repeated.filter((line) => !refused.has(line))).toEqual([]);
  expect(await leftBehind(stack, 1_000)).toEqual({});
  expect(faults(stack)).toEqual([]);
}

/** Sends one response of the seed per request, in up to three parts, and ends the connection now and then. */
const hostile =
  (random: Random, refused: Set<string>) =>
  async (connection: Parameters<Parameters<typeof startStack>[0]>[0]) => {
    for (let count = 1; ; count += 1) {
      await connection.requests(count);
      if (connection.socket.destroyed) return;
      const response = responseOf(random);
      const line = requestLines(connection.received()).at(-1);
      if (line !== undefined && /429|503/.test(response)) refused.add(line);
      const cut = below(random, response.length + 1);
      connection.send(response.slice(0, cut));
      if (random.next() < 0.3) await nextIteration();
      connection.send(response.slice(cut));
      const end = random.next();
      if (end < 0.3) connection.socket.end();
      else if (end < 0.4) connection.socket.resetAndDestroy();
    }
  };

const timeouts = '{ connectSeconds: 5, headSeconds: 0.15, idleSeconds: 0.15, totalSeconds: 2 }';

test.each([
  ['generic', '/fuzz'],
  ['language-model', '/v1/chat/completions'],
  ['commerce', '/admin/api/2026-10/graphql.json'],
] as const)(`the stack survives mutated responses of a %s upstream (seed ${seed})`, async (kind, path) => {
  const refused = new Set<string>();
  const stack = await startStack(hostile(new SeededRandom(seed), refused), {
    kind,
    timeouts,
    credential: null,
    more: '    limits: { requestsPerMinute: none, maxInFlight: none }',
  });
  await run(stack, 300, path, refused);
  await stack.close();
});
