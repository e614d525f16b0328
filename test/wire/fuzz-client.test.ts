/**
 * Seeded hostile clients against the whole gateway: method × framing × field tricks × fragmentation, then bytes that
 * are mutated. The oracle is outside: every response well framed or the connection closed, the upstream saw only framed
 * requests without a secret of ours, nothing hidden in a body became a request, and nothing is left behind.
 */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { connectRaw, readResponses } from '../support/raw-client.ts';
import { answering } from '../support/raw-upstream.ts';
import { upstreamRequests } from './stack-oracle.ts';
import { faults, injected, leftBehind, startStack, nextIteration } from './stack-fixture.ts';
import type { Stack } from './stack-fixture.ts';

const seed = 20_261_121;
const rounds = 1_400;

const methods = ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH'];
const framings: readonly (readonly [string, string])[] = [
  ['', ''],
  ['Content-Length: 5\r\n', 'abcde'],
  ['Content-Length: 34\r\n', 'GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n.'],
  ['Transfer-Encoding: chunked\r\n', '5\r\nabcde\r\n0\r\n\r\n'],
  ['Transfer-Encoding: chunked\r\n', '5;a=b\r\nabcde\r\n0\r\nX-Trailer: x\r\n\r\n'],
  ['Transfer-Encoding: chunked\r\n', '22\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n.\r\n0\r\n\r\n'],
];
const tricks = [
  '',
  'Trailer: X\r\n',
  'TE: trailers\r\n',
  'Connection: close\r\n',
  'Connection: keep-alive, content-length\r\n',
  'Connection: transfer-encoding\r\n',
  'Connection: authorization, cookie\r\n',
  'Proxy-Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n',
  'Proxy-Authorization: Basic eA==\r\n',
  'Expect: 100-continue\r\n',
  'Expect: other\r\n',
  'Upgrade: h2c\r\nConnection: upgrade, http2-settings\r\nHTTP2-Settings: AAA\r\n',
  'Upgrade: websocket\r\nConnection: upgrade\r\n',
  '__proto__: x\r\nconstructor: y\r\nhasOwnProperty: z\r\ntoString: w\r\n',
  'Host: second\r\n',
  'Content-Length: 0\r\n',
  'Content-Length: 5, 5\r\n',
  'Transfer-Encoding: gzip, chunked\r\n',
  'Transfer-Encoding : chunked\r\n',
  'Transfer-Encoding:\tchunked\r\n',
  'Sluice-Error: x\r\nSluice-Request-Id: y\r\nSluice-Admission: z\r\n',
  'Sluice-Upstream-Authorization: Bearer brought\r\n',
  'Forwarded: for=1\r\nX-Forwarded-For: 1\r\nX-Real-IP: 1\r\nVia: 1.1 other\r\n',
  'Via: 1.1 sluice\r\n',
  'Prefer: wait=99999999999\r\nPriority: u=9, i\r\n',
  'Prefer: wait=-1, wait=x\r\nPriority: \xff\r\n',
  'Idempotency-Key: "a"\r\n',
  'Idempotency-Key:\r\nX-Stainless-Retry-Count: NaN\r\n',
  'X-Stainless-Timeout: -5\r\nX-Stainless-Retry-Count: 1\r\n',
  'traceparent: 00-00000000000000000000000000000000-0000000000000000-00\r\nbaggage: a=b\r\n',
  'Content-Type: multipart/form-data; boundary="\r\n',
  'Content-Type: application/json; charset=\xff\r\n',
  'X-High: \xe9\xff\x80\r\n',
  'X-Nul: a\0b\r\n',
  ' X-Folded: a\r\n',
  'X-Lf: a\nX-More: b\r\n',
  'X-Cr: a\rb\r\n',
  'X Blank: a\r\n',
  ': empty\r\n',
  `X-Large: ${'a'.repeat(17_000)}\r\n`,
  'Cookie: a=b\r\nCookie: c=d\r\n',
  'X-Client-IP: 1\r\nTrue-Client-IP: 1\r\nCF-Connecting-IP: 1\r\nX_Forwarded_For: 1\r\nX-Original-URL: /hidden\r\n',
  'b3: 1-1-1\r\nX-B3-Sampled: 1\r\nX-Datadog-Trace-Id: 1\r\nuber-trace-id: 1:1:0:1\r\n',
  'X-HTTP-Method-Override: POST\r\nX_HTTP_Method: DELETE\r\n',
];

let stack: Stack | null = null;
/** What is complete is answered within this, several times as long as a plain request takes here. Milliseconds. */
let patienceMs = 25;
function started(): Stack {
  if (stack === null) throw new Error('not started');
  return stack;
}

beforeAll(async () => {
  // No body in the response and no length beyond it: right for every method, HEAD included.
  stack = await startStack(answering('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'), {
    more: '    limits: { requestsPerMinute: none }',
    timeouts: '{ headSeconds: 10, idleSeconds: 10 }',
  });
  const { head, proxy } = stack;
  const askedAt = performance.now();
  for (let count = 0; count < 5; count += 1) await stack.exchange(head('GET', proxy('/plain'), ''), 'GET');
  patienceMs = Math.max(patienceMs, performance.now() - askedAt);
});

afterAll(() => stack?.close());

type Random = SeededRandom;
const below = (random: Random, end: number): number => Math.floor(random.next() * end);
const pick = <T>(random: Random, from: readonly T[], otherwise: T): T =>
  from[below(random, from.length)] ?? otherwise;

/** Cuts bytes into one to four parts. */
function fragments(random: Random, bytes: Buffer): Buffer[] {
  const cuts = Array.from({ length: below(random, 4) }, () => below(random, bytes.length)).toSorted(
    (a, b) => a - b,
  );
  return [0, ...cuts].map((from, n) => bytes.subarray(from, cuts[n] ?? bytes.length));
}

/** One byte deleted, doubled, replaced or inserted; a few times over. */
function mutated(random: Random, bytes: Buffer): Buffer {
  let text = bytes.toString('latin1');
  const interesting = '\r\n\0 :;,\t"/#?%\x7f\xff0aZ';
  for (let times = 1 + below(random, 3); times > 0; times -= 1) {
    const at = below(random, text.length);
    const byte = interesting.charAt(below(random, interesting.length));
    const kind = below(random, 4);
    const inserted = kind === 0 ? '' : kind === 1 ? text.charAt(at).repeat(2) : byte;
    text = text.slice(0, at) + inserted + text.slice(kind === 3 ? at : at + 1);
  }
  return Buffer.from(text, 'latin1');
}

/** Sends one case and reads what comes until the connection ends or has been answered. */
async function attack(random: Random, bytes: Buffer, method: string): Promise<string | null> {
  const client = await connectRaw(started().port);
  for (const part of fragments(random, bytes)) {
    await client.send(part);
    await nextIteration();
  }
  // What is not complete would wait for its rest: this client has no more to say.
  const answered = client
    .until((text) => /^HTTP\/1\.1 [2-5]/m.test(text))
    .then(
      () => {},
      () => {},
    );
  const patience = Promise.withResolvers<void>();
  const timer = setTimeout(patience.resolve, patienceMs);
  await Promise.race([answered, client.closed, patience.promise]);
  clearTimeout(timer);
  client.halfClose();
  const { bytes: received } = await client.closed;
  try {
    const { responses, rest } = readResponses(received, [method], true);
    if (rest.length === 0) return null;
    // What the parser gave up on has no method yet: its refusal has a body, and the connection ends behind it.
    const [only] = responses;
    const unread = only?.status === 400 || only?.status === 431;
    const asGet =
      method === 'HEAD' && unread && responses.length === 1 && only.field('connection') === 'close';
    if (asGet && readResponses(received, ['GET'], true).rest.length === 0) return null;
    return `bytes behind the responses: ${JSON.stringify(rest.toString('latin1'))}`;
  } catch (error) {
    return String(error);
  }
}

async function fuzz(count: number, next: (random: Random) => { bytes: Buffer; method: string }) {
  const random = new SeededRandom(seed);
  const wrong: string[] = [];
  const lanes = Array.from({ length: 16 }, async (_, lane) => {
    for (let n = lane; n < count; n += 16) {
      const { bytes, method } = next(random);
      const fault = await attack(random, bytes, method);
      if (fault !== null)
        wrong.push(`${fault} for ${JSON.stringify(bytes.toString('latin1').slice(0, 600))}`);
    }
  });
  await Promise.all(lanes);
  return wrong;
}

/** Every request that the upstream saw is framed, plain and without a secret; `upstreamRequests` throws otherwise. */
function expectUpstreamPlain(): void {
  const { upstream, key } = started();
  let seen = 0;
  for (const connection of upstream.connections) {
    const text = connection.received();
    expect(text).not.toContain(key.slice(-43));
    for (const { line, fields } of upstreamRequests(text)) {
      seen += 1;
      expect(line).not.toContain('hidden');
      const names = fields.map(([name]) => name);
      for (const [name, value] of fields) if (name === 'authorization') expect(value).toBe(injected);
      for (const name of [
        'trailer',
        'te',
        'expect',
        'upgrade',
        'proxy-authorization',
        'forwarded',
        'x-real-ip',
        'x-client-ip',
        'true-client-ip',
        'cf-connecting-ip',
        'x_forwarded_for',
        'x-original-url',
        'b3',
        'x-b3-sampled',
        'x-datadog-trace-id',
        'uber-trace-id',
      ])
        expect(names).not.toContain(name);
      expect(names.some((name) => name.startsWith('sluice-'))).toBe(false);
    }
  }
  // Enough of them got through to prove something.
  expect(seen).toBeGreaterThan(100);
}

test(`the stack survives ${rounds} combinations of request tricks (seed ${seed})`, async () => {
  const { head, proxy } = started();
  const wrong = await fuzz(rounds, (random) => {
    const method = pick(random, methods, 'GET');
    const [framing, body] = pick(random, framings, ['', '']);
    const trick = pick(random, tricks, '') + (random.next() < 0.3 ? pick(random, tricks, '') : '');
    const route = random.next() < 0.5 ? proxy('/fuzz?a=b') : '/via/up/fuzz?a=b';
    const ordered = random.next() < 0.5 ? framing + trick : trick + framing;
    return { bytes: Buffer.from(head(method, route, ordered) + body, 'latin1'), method };
  });
  expect(wrong.slice(0, 3)).toEqual([]);
  expectUpstreamPlain();
  expect(await leftBehind(started())).toEqual({});
  expect(faults(started())).toEqual([]);
});

test(`the stack survives 600 mutated requests (seed ${seed})`, async () => {
  const { head, proxy } = started();
  const wrong = await fuzz(600, (random) => {
    const method = pick(random, ['GET', 'POST', 'DELETE'], 'GET');
    const [framing, body] = pick(random, framings, ['', '']);
    const bytes = Buffer.from(head(method, proxy('/fuzz?a=b'), framing) + body, 'latin1');
    return { bytes: mutated(random, bytes), method };
  });
  expect(wrong.slice(0, 3)).toEqual([]);
  expectUpstreamPlain();
  expect(await leftBehind(started())).toEqual({});
  expect(faults(started())).toEqual([]);
  const { responses } = await started().exchange(head('GET', proxy('/after')));
  expect(responses.map(({ status }) => status)).toEqual([200]);
});
