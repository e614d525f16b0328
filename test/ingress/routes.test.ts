/** Ordinary requests over an ordinary client. */
import { describe, expect, test } from '@jest/globals';
import { Readable } from 'node:stream';
import request from 'supertest';
import { Refusal } from '../../src/errors.ts';
import { outcomeOf, startDataServer } from './data-server-fixture.ts';

describe('a route', () => {
  test('passes the request target of a /proxy call unchanged', async () => {
    const { data, calls } = await startDataServer();
    const target = '/proxy?target=https%3A%2F%2Fa.example%2Fx%3Fy%3D1%2B2&b=%24&';
    const response = await request(data.server).get(target).set('Authorization', 'Bearer k');
    expect(response.status).toBe(200);
    expect(calls[0]).toMatchObject({ method: 'GET', form: 'proxy', rawUrl: target });
    expect(calls[0]?.id).toMatch(/^[0-9a-f]{32}$/);
    expect(response.headers['sluice-request-id']).toBe(calls[0]?.id);
    expect(calls[0]?.rawFields).toContain('Bearer k');
  });

  test.each(['/via/openai/v1/chat/completions', '/via/shop/%zz/..%2f', '/via/openai'])(
    'passes a base-URL call: %s',
    async (path) => {
      const { data, calls } = await startDataServer();
      expect((await request(data.server).post(path).send({ a: 1 })).status).toBe(200);
      expect(calls[0]).toMatchObject({ method: 'POST', form: 'via', rawUrl: path });
    },
  );

  test.each(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND'])(
    'is served: %s',
    async (method) => {
      const { data, calls, port } = await startDataServer();
      const response = await fetch(`http://127.0.0.1:${port}/proxy?target=x`, { method });
      expect(await response.text()).toBe('fine');
      expect(calls[0]?.method).toBe(method);
      expect(data.stats().openCalls).toBe(0);
    },
  );

  test.each([
    '/',
    '/PROXY?target=x',
    '/proxy/',
    '/proxyx',
    '/via/',
    '/via',
    '//evil.example/x',
    '/metrics',
    '/livez',
  ])('does not exist: %s', async (path) => {
    const { port, calls, requestRefusals } = await startDataServer();
    // supertest would resolve `//evil…` itself.
    const response = await fetch(`http://127.0.0.1:${port}${path}`);
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({ code: 'not_found' });
    expect(calls).toHaveLength(0);
    expect(requestRefusals).toEqual(['not_found']);
  });

  test('adds no word about the software', async () => {
    const { data } = await startDataServer();
    const { headers } = await request(data.server).get('/proxy?target=x');
    expect(headers).not.toHaveProperty('x-powered-by');
    expect(headers).not.toHaveProperty('etag');
    expect(headers).not.toHaveProperty('server');
  });
});

describe('the route of activity', () => {
  test('responds with JSON to an authenticated workspace', async () => {
    const { data } = await startDataServer(undefined, {
      activity: (call) => Promise.resolve({ form: call.form, sent: call.rawFields.includes('k1') }),
    });
    const response = await request(data.server).get('/activity').set('Sluice-Key', 'k1');
    expect(response.status).toBe(200);
    expect(response.type).toBe('application/json');
    expect(response.body).toEqual({ form: 'activity', sent: true });
    expect((await request(data.server).head('/activity')).status).toBe(200);
  });

  test('refuses others', async () => {
    const { data } = await startDataServer(undefined, {
      activity: () => Promise.reject(new Refusal('unauthenticated')),
    });
    const response = await request(data.server).get('/activity');
    expect(response.status).toBe(401);
    expect(response.headers['www-authenticate']).toBe('Bearer');
  });

  test('serves GET and HEAD only', async () => {
    const { data } = await startDataServer();
    const response = await request(data.server).post('/activity').send({});
    expect(response.status).toBe(405);
    expect(response.headers['allow']).toBe('GET, HEAD');
  });
});

describe('the response to a call', () => {
  test('carries the upstream’s fields and those of Sluice', async () => {
    const ends: string[] = [];
    const { data } = await startDataServer(() =>
      Promise.resolve(
        outcomeOf({
          status: 418,
          fields: [
            'X-A',
            '1',
            'Set-Cookie',
            'a',
            'Set-Cookie',
            'b',
            'x-should-retry',
            'true',
            'Content-Length',
            '4',
          ],
          record: { waitedMs: 1_234, attempts: 3, absorbed: 2, held: [] },
          rateLimit: { limit: 40, windowSeconds: 60, remaining: 0, resetSeconds: 1.5 },
          shouldRetry: false,
          onEnd: (how) => ends.push(how),
        }),
      ),
    );
    const response = await request(data.server).get('/proxy?target=x');
    expect(response.status).toBe(418);
    expect(response.headers).toMatchObject({
      'x-a': '1',
      'set-cookie': ['a', 'b'],
      'x-should-retry': 'false',
      'content-length': '4',
      'sluice-admission': 'waited=1234, attempts=3, absorbed=2',
      'ratelimit-policy': '"workspace";q=40;w=60',
      ratelimit: '"workspace";r=0;t=2',
    });
    expect(response.headers).not.toHaveProperty('sluice-error');
    expect(ends).toEqual(['complete']);
  });

  test.each([
    ['HEAD', 200, Readable.from([]), '4'],
    ['GET', 204, null, undefined],
    ['GET', 304, null, '4'],
    ['GET', 205, Readable.from(['abcd']), '0'],
    ['GET', 200, null, '0'],
  ])('to %s with status %d is well framed', async (method, status, body, length) => {
    const ends: string[] = [];
    const { port, bugs } = await startDataServer(() =>
      Promise.resolve(
        outcomeOf({ status, body, fields: ['Content-Length', '4'], onEnd: (how) => ends.push(how) }),
      ),
    );
    const response = await fetch(`http://127.0.0.1:${port}/proxy?target=x`, { method });
    expect(await response.text()).toBe('');
    expect(response.headers.get('content-length') ?? undefined).toBe(length);
    expect(ends).toEqual(['complete']);
    expect(bugs).toEqual([]);
    expect(body === null || body.destroyed).toBe(true);
  });

  test.each([[0], [101], [600]])('with the upstream’s status %d becomes upstream_invalid', async (status) => {
    const ends: string[] = [];
    const body = Readable.from(['x']);
    const { data, bugs } = await startDataServer(() =>
      Promise.resolve(outcomeOf({ status, body, onEnd: (how) => ends.push(how) })),
    );
    const response = await request(data.server).get('/proxy?target=x');
    expect([response.status, response.headers['sluice-error']]).toEqual([502, 'upstream_invalid']);
    expect(ends).toEqual(['upstream_cut']);
    expect(body.destroyed).toBe(true);
    expect(bugs).toEqual([]);
  });

  test.each([
    ['a line break in a value', ['X-A', 'a\r\nb']],
    ['a name that is no token', ['X A', 'a']],
    ['a value beyond one byte', ['X-A', '\u2028']],
  ])('with a field that cannot be sent becomes upstream_invalid: %s', async (_name, fields) => {
    const { data, bugs } = await startDataServer(() => Promise.resolve(outcomeOf({ fields })));
    const response = await request(data.server).get('/proxy?target=x');
    expect([response.status, response.headers['sluice-error']]).toEqual([502, 'upstream_invalid']);
    expect(bugs).toEqual([]);
  });

  test('states what is known so far when it is a refusal', async () => {
    const { data, bugs } = await startDataServer((call) => {
      call.report({
        rateLimit: { limit: 40, windowSeconds: 60, remaining: 0, resetSeconds: 30 },
        record: { waitedMs: 5, attempts: 0, absorbed: 0, held: [] },
      });
      throw new Refusal('wait_too_long', { retryInMs: 30_000, detail: 'Later.' });
    });
    const response = await request(data.server).get('/proxy?target=x');
    expect(response.status).toBe(429);
    expect(response.headers).toMatchObject({
      'content-type': 'application/problem+json',
      'sluice-error': 'wait_too_long',
      'retry-after': '30',
      'retry-after-ms': '30000',
      'sluice-admission': 'waited=5, attempts=0, absorbed=0',
      ratelimit: '"workspace";r=0;t=30',
      connection: 'close',
    });
    expect(bugs).toEqual([]);
  });

  test.each(['target_too_long', 'upstream_timeout', 'loop_detected'] as const)(
    'keeps the connection of a whole request for the refusal %s',
    async (code) => {
      const { port } = await startDataServer(() => Promise.reject(new Refusal(code)));
      const response = await fetch(`http://127.0.0.1:${port}/proxy?target=x`);
      expect(response.headers.get('sluice-error')).toBe(code);
      expect(response.headers.get('connection')).toBe('keep-alive');
      expect(await response.json()).toMatchObject({
        code,
        requestId: response.headers.get('sluice-request-id'),
      });
    },
  );

  test('has no body for a refused HEAD', async () => {
    const { data } = await startDataServer(() => Promise.reject(new Refusal('target_missing')));
    const response = await request(data.server).head('/proxy');
    expect([response.status, response.headers['sluice-error']]).toEqual([400, 'target_missing']);
    expect(response.text).toBeUndefined();
  });

  test('to a call that throws a bug has no details, and the bug is reported once', async () => {
    const bug = new Error('secret https://a.example/?key=1');
    const { data, bugs } = await startDataServer(() => Promise.reject(bug));
    const response = await request(data.server).get('/proxy?target=x');
    expect([response.status, response.headers['sluice-error']]).toEqual([500, 'internal']);
    expect(JSON.stringify([response.headers, response.body])).not.toContain('secret');
    expect(bugs).toEqual([bug]);
  });

  test('is the same for a synchronous throw, and the next call is served', async () => {
    let first = true;
    const { data, bugs } = await startDataServer(() => {
      if (!first) return Promise.resolve(outcomeOf());
      first = false;
      throw new TypeError('x');
    });
    expect((await request(data.server).get('/proxy?target=x')).status).toBe(500);
    expect((await request(data.server).get('/proxy?target=x')).status).toBe(200);
    expect(bugs).toHaveLength(1);
  });
});
