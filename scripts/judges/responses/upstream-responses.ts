/**
 * What the upstream of the recorded responses can say: one response of each kind that HTTP knows and a gateway might spoil.
 * Clean by themselves, so that whatever a judge marks bad behind the gateway is the gateway's.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';

export type Say = (response: ServerResponse, request: IncomingMessage) => void;

const text = 'text/plain; charset=utf-8';
const json = 'application/json';
const yesterday = new Date(Date.now() - 86_400_000).toUTCString();
const tomorrow = new Date(Date.now() + 86_400_000).toUTCString();
const content = Buffer.from('0123456789'.repeat(100));
const etag = '"of-the-thing"';

const say =
  (
    status: number,
    fields: Readonly<Record<string, string | readonly string[]>>,
    body?: string | Buffer,
  ): Say =>
  (response) => {
    for (const [name, value] of Object.entries(fields))
      response.setHeader(name, typeof value === 'string' ? value : [...value]);
    if (body !== undefined) response.setHeader('Content-Length', Buffer.byteLength(body));
    response.writeHead(status).end(body);
  };
const refusal = (status: number, fields: Readonly<Record<string, string>> = {}): Say =>
  say(status, { 'Content-Type': json, ...fields }, '{"error":"no"}');
const ok = (
  fields: Readonly<Record<string, string | readonly string[]>>,
  body: string | Buffer = 'ok',
): Say => say(200, { 'Content-Type': text, ...fields }, body);

/** Written in pieces, so that nothing says its length. */
const inPieces =
  (fields: Readonly<Record<string, string>>, pieces: readonly string[], trailer: string | null = null): Say =>
  async (response, { method }) => {
    // A response to HEAD is none that could have a trailer.
    const hasTrailer = trailer !== null && method !== 'HEAD';
    response.writeHead(200, !hasTrailer ? fields : { ...fields, Trailer: 'X-Checksum' });
    for (const piece of pieces) {
      response.write(piece);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    if (hasTrailer) response.addTrailers({ 'X-Checksum': trailer });
    response.end();
  };

export const kinds = {
  json: say(
    200,
    { 'Content-Type': json, ETag: etag, 'Last-Modified': yesterday, 'Cache-Control': 'no-cache' },
    '{}',
  ),
  text: ok({}),
  html: ok({ 'Content-Type': 'text/html; charset=utf-8' }, '<!doctype html><title>a page</title>'),
  xml: ok({ 'Content-Type': 'application/xml' }, '<a/>'),
  bytes: ok({ 'Content-Type': 'application/octet-stream' }, content),
  large: ok({ 'Content-Type': 'application/octet-stream' }, Buffer.alloc(300_000)),
  download: ok({ 'Content-Disposition': 'attachment; filename="a.txt"' }),
  cached: ok({ 'Cache-Control': 'max-age=60', Age: '5' }),
  expires: ok({ Expires: tomorrow, 'Last-Modified': yesterday }),
  stored: ok({ 'Cache-Control': 'no-store' }),
  varied: ok({ Vary: 'Accept, Accept-Encoding' }),
  spoken: ok({ 'Content-Language': 'de' }),
  cookie: ok({
    'Set-Cookie': ['a=1; Path=/; Secure; HttpOnly; SameSite=Lax', 'b=2; Path=/; Secure; SameSite=Lax'],
  }),
  linked: ok({ Link: '</next>; rel="next", <https://other.example/>; rel="other"' }),
  located: ok({ 'Content-Location': '/the-thing' }),
  shared: ok({ 'Access-Control-Allow-Origin': '*', 'Access-Control-Expose-Headers': 'ETag', ETag: etag }),
  secured: ok({
    'Strict-Transport-Security': 'max-age=31536000',
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
  }),
  counted: ok({
    'x-ratelimit-limit-requests': '500',
    'x-ratelimit-remaining-requests': '499',
    'x-ratelimit-reset-requests': '120ms',
  }),
  limited: ok({ 'RateLimit-Policy': '"burst";q=100;w=60', RateLimit: '"burst";r=99;t=60' }),
  served: ok({ Server: 'an-upstream', Via: '1.1 a-cache', 'X-Request-Id': 'of-the-upstream' }),
  zipped: say(
    200,
    { 'Content-Type': text, 'Content-Encoding': 'gzip', Vary: 'Accept-Encoding' },
    gzipSync('ok'.repeat(500)),
  ),
  chunked: inPieces({ 'Content-Type': text }, ['a piece ', 'and another']),
  trailed: inPieces({ 'Content-Type': text }, ['a piece'], 'abc'),
  streamed: inPieces({ 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' }, [
    'data: {"choices":[]}\n\n',
    'data: [DONE]\n\n',
  ]),
  hinted: (response) => {
    response.writeEarlyHints({ link: '</style.css>; rel=preload; as=style' });
    ok({})(response, response.req);
  },
  part: say(
    206,
    { 'Content-Type': text, 'Content-Range': 'bytes 0-99/1000', ETag: etag },
    content.subarray(0, 100),
  ),
  beyond: say(416, { 'Content-Type': text, 'Content-Range': 'bytes */1000' }, 'not so long'),
  unchanged: say(304, { ETag: etag, 'Cache-Control': 'no-cache' }),
  created: say(201, { 'Content-Type': json, Location: '/things/1' }, '{}'),
  accepted: say(202, { 'Content-Type': json }, '{}'),
  nothing: say(204, {}),
  moved: say(301, { Location: '/elsewhere', 'Content-Type': text }, 'there'),
  found: say(302, { Location: '/elsewhere', 'Content-Type': text }, 'there'),
  other: say(303, { Location: '/elsewhere', 'Content-Type': text }, 'there'),
  temporary: say(307, { Location: '/elsewhere', 'Content-Type': text }, 'there'),
  permanent: say(308, { Location: '/elsewhere', 'Content-Type': text }, 'there'),
  wrong: refusal(400),
  unknown: refusal(401, { 'WWW-Authenticate': 'Bearer realm="upstream"' }),
  forbidden: refusal(403),
  missing: refusal(404),
  method: refusal(405, { Allow: 'GET, HEAD' }),
  conflict: refusal(409),
  gone: refusal(410),
  media: refusal(415),
  invalid: refusal(422),
  broken: refusal(500),
  gateway: refusal(502),
  unavailable: refusal(503),
  options: say(204, { Allow: 'GET, HEAD, OPTIONS' }),
} satisfies Readonly<Record<string, Say>>;

export type Kind = keyof typeof kinds;

/** Fields with which a client asks for these; without them the response would be out of place. */
export const askedWith: Readonly<Partial<Record<Kind, readonly string[]>>> = {
  part: ['Range: bytes=0-99'],
  beyond: ['Range: bytes=5000-'],
  unchanged: [`If-None-Match: ${etag}`],
  zipped: ['Accept-Encoding: gzip'],
};
