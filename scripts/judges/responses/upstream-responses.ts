/**
 * What the upstream of the recorded responses can say: one response of each kind that HTTP knows and a gateway might spoil.
 * Clean by themselves, so that whatever a judge marks bad behind the gateway is the gateway's.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';

export interface Kind {
  readonly status: number;
  /** GET by default. */
  readonly method?: 'POST' | 'OPTIONS';
  readonly say: (response: ServerResponse, request: IncomingMessage) => void | Promise<void>;
}

type Fields = Readonly<Record<string, string | readonly string[]>>;

const json = { 'Content-Type': 'application/json' };
const plain = { 'Content-Type': 'text/plain; charset=utf-8' };
const yesterday = new Date(Date.now() - 86_400_000).toUTCString();
const tomorrow = new Date(Date.now() + 86_400_000).toUTCString();
const content = Buffer.from('0123456789'.repeat(100));
const ETag = '"of-the-thing"';

const said = (status: number, fields: Fields, body?: string | Buffer): Kind => ({
  status,
  say(response) {
    for (const [name, value] of Object.entries(fields))
      response.setHeader(name, typeof value === 'string' ? value : [...value]);
    if (body !== undefined) response.setHeader('Content-Length', Buffer.byteLength(body));
    response.writeHead(status).end(body);
  },
});
const refusal = (status: number, fields: Fields = {}): Kind =>
  said(status, { ...json, ...fields }, '{"error":"no"}');
const ok = (fields: Fields, body: string | Buffer = 'ok'): Kind => said(200, { ...plain, ...fields }, body);

/** Written in pieces, so that nothing says its length. */
const inPieces = (fields: Record<string, string>, pieces: readonly string[], hasTrailer = false): Kind => ({
  status: 200,
  async say(response, { method }) {
    // A response to HEAD is none that could have a trailer.
    const trails = hasTrailer && method !== 'HEAD';
    response.writeHead(200, trails ? { ...fields, Trailer: 'X-Checksum' } : fields);
    for (const piece of pieces) {
      response.write(piece);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    if (trails) response.addTrailers({ 'X-Checksum': 'abc' });
    response.end();
  },
});
const redirect = (status: number): Kind => said(status, { Location: '/elsewhere', ...plain }, 'there');

export const kinds: Readonly<Record<string, Kind>> = {
  json: said(200, { ...json, ETag, 'Last-Modified': yesterday, 'Cache-Control': 'no-cache' }, '{}'),
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
  shared: ok({ 'Access-Control-Allow-Origin': '*', 'Access-Control-Expose-Headers': 'ETag', ETag }),
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
  zipped: ok({ 'Content-Encoding': 'gzip', Vary: 'Accept-Encoding' }, gzipSync('ok'.repeat(500))),
  chunked: inPieces(plain, ['a piece ', 'and another']),
  trailed: inPieces(plain, ['a piece'], true),
  streamed: inPieces({ 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' }, [
    'data: {"choices":[]}\n\n',
    'data: [DONE]\n\n',
  ]),
  hinted: {
    status: 200,
    say(response, request) {
      response.writeEarlyHints({ link: '</style.css>; rel=preload; as=style' });
      void ok({}).say(response, request);
    },
  },
  part: said(206, { ...plain, 'Content-Range': 'bytes 0-99/1000', ETag }, content.subarray(0, 100)),
  beyond: said(416, { ...plain, 'Content-Range': 'bytes */1000' }, 'not so long'),
  unchanged: said(304, { ETag, 'Cache-Control': 'no-cache' }),
  created: { ...said(201, { ...json, Location: '/things/1' }, '{}'), method: 'POST' },
  accepted: { ...said(202, json, '{}'), method: 'POST' },
  nothing: said(204, {}),
  ...Object.fromEntries([301, 302, 303, 307, 308].map((status) => [`to-${status}`, redirect(status)])),
  ...Object.fromEntries(
    [400, 403, 404, 409, 410, 415, 422, 500, 502, 503].map((status) => [`no-${status}`, refusal(status)]),
  ),
  unknown: refusal(401, { 'WWW-Authenticate': 'Bearer realm="upstream"' }),
  method: refusal(405, { Allow: 'GET, HEAD' }),
  options: { ...said(204, { Allow: 'GET, HEAD, OPTIONS' }), method: 'OPTIONS' },
};

/** Fields with which a client asks for these; without them the response would be out of place. */
export const askedWith: Readonly<Record<string, readonly string[]>> = {
  part: ['Range: bytes=0-99'],
  beyond: ['Range: bytes=5000-'],
  unchanged: [`If-None-Match: ${ETag}`],
  zipped: ['Accept-Encoding: gzip'],
};
