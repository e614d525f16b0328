/**
 * Seeded hostile clients and upstreams around the whole gateway. The oracle is outside: every response well framed or the connection
 * closed, the upstream saw only framed requests without a secret of ours, nothing hidden in a body became a request, a POST arrived
 * once, a cut body is not passed off as whole, and nothing is left behind.
 */
import { expect, test } from '@jest/globals';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { connectRaw, readResponses, splitFields, type RawClient } from '../support/raw-client.ts';
import { answering, type Script } from '../support/raw-upstream.ts';
import { bytes } from '../support/scripts.ts';
import { injected, leftBehind, nextIteration, receivedBy, requestLines, stacks } from './stack-fixture.ts';
import type { Stack } from './stack-fixture.ts';

const seed = 20_261_121;
type Random = SeededRandom;
const below = (random: Random, end: number): number => Math.floor(random.next() * end);
const pick = (random: Random, from: readonly string[]): string => from[below(random, from.length)] ?? '';

/** The requests in what an upstream received, read as strictly as a second parser would: every one framed, nothing between. */
function upstreamRequests(text: string) {
  const requests: { readonly line: string; readonly fields: ReturnType<typeof splitFields> }[] = [];
  for (let rest = text; rest !== '';) {
    const headEnd = rest.indexOf('\r\n\r\n');
    const [line = '', ...lines] = rest.slice(0, headEnd).split('\r\n');
    if (headEnd < 0 || !/^[A-Z]+ \/[\x21-\x7e]* HTTP\/1\.1$/.test(line))
      throw new Error(`bytes outside of a request: ${JSON.stringify(rest)}`);
    const fields = splitFields(lines);
    const values = (name: string): string[] =>
      fields.flatMap(([key, value]) => (key === name ? [value] : []));
    const lengths = values('content-length');
    const framing = [values('transfer-encoding').length, values('host').length, lengths.length > 1];
    if (JSON.stringify(framing) !== '[0,1,false]') throw new Error(`unclear framing: ${lines.join()}`);
    const end = headEnd + 4 + Number(lengths[0] ?? 0);
    if (rest.length < end) throw new Error('a body shorter than its length');
    requests.push({ line, fields });
    rest = rest.slice(end);
  }
  return requests;
}

/** So many times one byte deleted, doubled, replaced or inserted, mostly in the head. */
function mutated(random: Random, text: string, times: number): string {
  const interesting = '\r\n\0 :;,\t"/#?%\x7f\xff-09aZ'.split('');
  for (; times > 0; times -= 1) {
    const at = below(random, random.next() < 0.8 ? Math.min(200, text.length) : text.length);
    const kind = below(random, 4);
    const inserted = kind === 0 ? '' : kind === 1 ? text.charAt(at).repeat(2) : pick(random, interesting);
    text = text.slice(0, at) + inserted + text.slice(kind === 3 ? at : at + 1);
  }
  return text;
}

/** Numbers from 0 to `count`, a few at a time. */
const inLanes = (count: number, lanes: number, run: (n: number) => Promise<void>): Promise<unknown> =>
  Promise.all(
    Array.from({ length: lanes }, async (_, first) => {
      for (let n = first; n < count; n += lanes) await run(n);
    }),
  );

/** Ends a connection when it has been answered, or has nothing more to say; all that came on it. */
async function conclude(client: RawClient, patienceMs?: number): Promise<Buffer> {
  const answered = client.until((text) => /^HTTP\/1\.1 [2-5]/m.test(text)).catch(() => '');
  const { promise: waited, resolve } = Promise.withResolvers<void>();
  const timer = patienceMs === undefined ? undefined : setTimeout(resolve, patienceMs);
  await Promise.race([answered, client.closed, waited]);
  clearTimeout(timer);
  // Nothing of a second response may follow.
  await nextIteration();
  client.halfClose();
  return (await client.closed).bytes;
}

const opened = stacks();

const hidden = 'GET /hidden HTTP/1.1|Host: x||.';
/** Fields, and behind `@` the body. */
const framings = [
  '',
  'Content-Length: 5|@abcde',
  `Content-Length: 34|@${hidden}`,
  'Transfer-Encoding: chunked|@5|abcde|0||',
  'Transfer-Encoding: chunked|@5;a=b|abcde|0|X-Trailer: x||',
  `Transfer-Encoding: chunked|@22|${hidden}|0||`,
];
const tricks = [
  '',
  'Trailer: X|TE: trailers',
  'Connection: te|TE: trailers, deflate',
  'Connection: keep-alive, content-length',
  'Connection: authorization, cookie',
  'Connection: sluice-key|Sluice-Key: k',
  'Proxy-Connection: keep-alive|Keep-Alive: timeout=5',
  'Proxy-Authorization: Basic eA==',
  'Expect: 100-continue',
  'Upgrade: h2c|Connection: upgrade, http2-settings|HTTP2-Settings: AAA',
  'Upgrade: websocket|Connection: upgrade',
  '__proto__: x|constructor: y|hasOwnProperty: z|toString: w',
  'Host: second',
  'Content-Length: 0',
  'Transfer-Encoding: gzip, chunked',
  'Transfer-Encoding : chunked',
  'Transfer-Encoding:\tchunked',
  'Sluice-Error: x|Sluice-Request-Id: y|Sluice-Admission: z',
  'Sluice-Upstream-Authorization: Bearer brought',
  'Forwarded: for=1|X-Forwarded-For: 1|X-Real-IP: 1|Via: 1.1 other',
  'Via: 1.1 sluice',
  'Prefer: wait=99999999999|Priority: u=9, i',
  'Prefer: wait=-1, wait=x|Priority: \xff',
  'Idempotency-Key: "a"',
  'Idempotency-Key:|X-Stainless-Retry-Count: NaN',
  'X-Stainless-Timeout: -5|X-Stainless-Retry-Count: 1',
  'traceparent: 00-00000000000000000000000000000000-0000000000000000-00|baggage: a=b',
  'Content-Type: multipart/form-data; boundary="',
  'Content-Type: application/json; charset=\xff',
  'X-High: \xe9\xff\x80',
  'X-Nul: a\0b',
  ' X-Folded: a',
  'X-Lf: a\nX-More: b',
  'X-Cr: a\rb',
  `X-Large: ${'a'.repeat(17_000)}`,
  'Cookie: a=b|Cookie: c=d',
  'X-Client-IP: 1|True-Client-IP: 1|CF-Connecting-IP: 1|X_Forwarded_For: 1|X-Original-URL: /hidden',
  'b3: 1-1-1|X-B3-Sampled: 1|X-Datadog-Trace-Id: 1|uber-trace-id: 1:1:0:1',
  'X-HTTP-Method-Override: POST|X_HTTP_Method: DELETE',
].map((trick) => (trick === '' ? '' : `${trick}|`));
const neverSent = new RegExp(
  '^(?:trailer|te|expect|upgrade|proxy-authorization|forwarded|x-real-ip|x-client-ip|true-client-ip|sluice-.*' +
    '|cf-connecting-ip|x_forwarded_for|x-original-url|b3|x-b3-sampled|x-datadog-trace-id|uber-trace-id)$',
);

/** Sends one case in one to four parts; what is wrong with what came back. */
async function attack({ port }: Stack, random: Random, sent: Buffer, method: string, patienceMs: number) {
  const client = await connectRaw(port);
  const anywhere = Array.from({ length: below(random, 4) }, () => below(random, sent.length));
  const cuts = anywhere.toSorted((a, b) => a - b);
  for (const [at, from] of [0, ...cuts].entries()) {
    await client.send(sent.subarray(from, cuts[at] ?? sent.length));
    await nextIteration();
  }
  // What is not complete would wait for its rest: this client has no more to say.
  const received = await conclude(client, patienceMs);
  try {
    const { responses, rest } = readResponses(received, [method], true);
    if (rest.length === 0) return null;
    // What the parser gave up on has no method yet: its refusal has a body, and the connection ends behind it.
    const [only] = responses;
    const isUnread = only?.status === 400 || only?.status === 431;
    if (method === 'HEAD' && isUnread && responses.length === 1 && only.field('connection') === 'close')
      if (readResponses(received, ['GET'], true).rest.length === 0) return null;
    return `bytes behind the responses: ${JSON.stringify(rest.toString('latin1'))}`;
  } catch (error) {
    return String(error);
  }
}

const caseOf = (random: Random, { head, proxy }: Stack, method: string, more: string): string => {
  const [framing = '', body = ''] = pick(random, framings).split('@');
  const path = random.next() < 0.5 ? proxy('/fuzz?a=b') : '/via/up/fuzz?a=b';
  return head(method, path, bytes(random.next() < 0.5 ? framing + more : more + framing)) + bytes(body);
};

test.each([
  [1_400, 'combinations of request tricks', ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH'], 0],
  [600, 'mutated requests', ['GET', 'POST', 'DELETE'], 3],
])(`the stack survives %i %s (seed ${seed})`, async (count, _what, methods, mutations) => {
  // No body in the response and no length beyond it: right for every method, HEAD included.
  const stack = await opened(answering(bytes('HTTP/1.1 200 OK|Content-Length: 0||')), {
    more: '    limits: { requestsPerMinute: none }',
    timeouts: '{ headSeconds: 10, idleSeconds: 10 }',
  });
  // What is complete is answered within this, several times as long as a plain request takes here.
  const askedAt = performance.now();
  for (let n = 0; n < 5; n += 1) await stack.exchange(stack.head('GET', stack.proxy('/plain')));
  const patienceMs = Math.max(25, performance.now() - askedAt);
  const random = new SeededRandom(seed);
  const wrong: string[] = [];
  await inLanes(count, 16, async () => {
    const method = pick(random, methods);
    const two = pick(random, tricks) + (random.next() < 0.3 ? pick(random, tricks) : '');
    const plain = caseOf(random, stack, method, mutations === 0 ? two : '');
    const text = mutations === 0 ? plain : mutated(random, plain, 1 + below(random, mutations));
    const fault = await attack(stack, random, Buffer.from(text, 'latin1'), method, patienceMs);
    if (fault !== null) wrong.push(`${fault} for ${JSON.stringify(text.slice(0, 600))}`);
  });
  expect(wrong.slice(0, 3)).toEqual([]);
  const seen = stack.upstream.connections.flatMap((one) => upstreamRequests(one.received()));
  // Enough of them got through to prove something.
  expect(seen.length).toBeGreaterThan(count / 20);
  expect(seen.filter(({ line }) => line.includes('hidden'))).toEqual([]);
  const fields = seen.flatMap((one) => one.fields);
  expect(fields.filter(([name]) => neverSent.test(name))).toEqual([]);
  expect(fields.filter(([name, value]) => name === 'authorization' && value !== injected)).toEqual([]);
  const { responses } = await stack.exchange(stack.head('GET', stack.proxy('/after')));
  expect(responses.map(({ status }) => status)).toEqual([200]);
});

const json = '{"data":{"shop":null},"extensions":{"cost":{"requestedQueryCost":1,"actualQueryCost":1}}}';
const size = json.length.toString(16);
const hostile = [
  `200 OK|Content-Type: application/json|Content-Length: ${json.length}||${json}`,
  `200 OK|Transfer-Encoding: chunked||${size}|${json}|0||`,
  `200 OK|Transfer-Encoding: chunked|Trailer: X||${size};a=b|${json}|0|X: y||`,
  `200 OK|Connection: close||${json}`,
  '404 Not Found|Content-Length: 3|Connection: X-A, content-length|X-A: b||no!',
  '429 Slow|Retry-After: 3600|X-Shopify-Shop-Api-Call-Limit: 40/40|Content-Length: 3||no!',
  '503 Busy|Retry-After: Sat, 21 Nov 2099 04:49:44 GMT|Content-Length: 0||',
  '100 Continue||HTTP/1.1 103 Hints|Link: <x>||HTTP/1.1 201 Made|Content-Length: 2||ok',
  '204 None|X-RateLimit-Remaining-Requests: 1|X-RateLimit-Reset-Requests: 6m0s||',
  '304 Same|ETag: "a"|Content-Length: 10||',
  '302 Found|Location: http://169.254.169.254/|Content-Length: 0||',
  '200 OK|X-Accel-Redirect: /x|x-sendfile: /x|Surrogate-Control: a|Clear-Site-Data: "*"|Content-Length: 2||ok',
  '200 OK|Cache-Control: public, s-maxage=9|Cache-Control: x="y, public|Vary: A|Content-Length: 2||ok',
  '200 OK|Set-Cookie: a=1; Domain=x; Path=/|Content-Length: 2||ok',
  '200 OK|Content-Encoding: gzip|Content-Type: application/json|Content-Length: 4||\x1f\x8b\b\0',
].map((response) => bytes(`HTTP/1.1 ${response}`));
/** What no client ever gets of an upstream on `/proxy`. */
const withheld = /^(?:x-accel-redirect|x-sendfile|surrogate-control|clear-site-data|set-cookie)$/;

/** Half of them as they are or cut, half with a few bytes changed, some doubled. */
function responseOf(random: Random): string {
  let text = mutated(random, pick(random, hostile), below(random, 4) * below(random, 2));
  if (random.next() < 0.1) text += text;
  return random.next() < 0.25 ? text.slice(0, below(random, text.length)) : text;
}

/** Sends one response of the seed per request, in two parts, and ends the connection now and then. */
const lying =
  (random: Random, refused: Set<string>): Script =>
  async ({ requests, send, socket }) => {
    for (let count = 1; ; count += 1) {
      const received = await requests(count);
      if (socket.destroyed) return;
      const response = responseOf(random);
      if (/429|503/.test(response)) refused.add(requestLines(received).at(-1) ?? '');
      const cut = below(random, response.length + 1);
      send(response.slice(0, cut));
      if (random.next() < 0.3) await nextIteration();
      send(response.slice(cut));
      const end = random.next();
      if (end < 0.3) socket.end();
      else if (end < 0.4) socket.resetAndDestroy();
    }
  };

function faultOf(received: Buffer, method: string): string | null {
  try {
    const { responses, rest } = readResponses(received, [method], false);
    if (responses.length > 1) return 'more than one response';
    if (responses.length === 1 && rest.length > 0) return 'bytes behind the response';
    const [response] = responses;
    if (response === undefined) return null;
    if (response.fields.some(([name]) => withheld.test(name))) return JSON.stringify(response.fields);
    const caching = response.field('cache-control') ?? '';
    return /(?:^|, ?)(?:private|no-store)(?:,|$)/.test(caching) ? null : `a cache may store it: ${caching}`;
  } catch (error) {
    return String(error);
  }
}

test.each([
  ['generic', '/fuzz'],
  ['language-model', '/v1/chat/completions'],
  ['commerce', '/admin/api/2026-10/graphql.json'],
] as const)(`the stack survives mutated responses of a %s upstream (seed ${seed})`, async (kind, path) => {
  const refused = new Set<string>();
  const stack = await opened(lying(new SeededRandom(seed), refused), {
    kind,
    timeouts: '{ connectSeconds: 5, headSeconds: 0.15, idleSeconds: 0.15, totalSeconds: 2 }',
    credential: null,
    more: '    limits: { requestsPerMinute: none, maxInFlight: none }',
  });
  const wrong: string[] = [];
  const methods = ['GET', 'POST', 'HEAD', 'DELETE'];
  await inLanes(300, 48, async (n) => {
    const method = methods[n % methods.length] ?? 'GET';
    const client = await connectRaw(stack.port);
    // A credential of its own is a bucket of its own: no 429 of one case holds up the next.
    const own = `Sluice-Upstream-Authorization: Bearer n${n}|Prefer: wait=2|Content-Type: application/json|`;
    const [length, body] = method === 'POST' ? ['Content-Length: 2|', '{}'] : ['', ''];
    await client.send(stack.head(method, stack.proxy(`${path}?n=${n}`), bytes(length + own)) + body);
    const fault = faultOf(await conclude(client), method);
    if (fault !== null) wrong.push(`case ${n}: ${fault}`);
  });
  expect(wrong.slice(0, 5)).toEqual([]);
  const posts = requestLines(receivedBy(stack)).filter((line) => line.startsWith('POST '));
  expect(posts.length).toBeGreaterThan(300 / 8);
  // Sent again is only what the upstream had refused to run.
  const repeated = posts.filter((line, at) => posts.indexOf(line) < at);
  expect(repeated.filter((line) => !refused.has(line))).toEqual([]);
  expect(await leftBehind(stack, 1_000)).toEqual({});
});
