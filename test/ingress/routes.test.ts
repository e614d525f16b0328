/** Ordinary requests over an ordinary client. */
import { describe, expect, test } from '@jest/globals';
import { Readable } from 'node:stream';
import request from 'supertest';
import { Refusal } from '../../src/errors.ts';
import { outcomeOf, startDataServer } from './data-server-fixture.ts';

describe('routes', () => {
  test('a call of the proxy form arrives with its request target untouched', async () => {
    const { data, calls } = await startDataServer();
    const target = '/proxy?target=https%3A%2F%2Fa.example%2Fx%3Fy%3D1%2B2&b=%24&';
    const answer = await request(data.server).get(target).set('Authorization', 'Bearer k');
    expect(answer.status).toBe(200);
    expect(calls[0]).toMatchObject({ method: 'GET', form: 'proxy', rawUrl: target, source: '127.0.0.1' });
    expect(calls[0]?.id).toMatch(/^[0-9a-f]{32}$/);
    expect(answer.headers['sluice-request-id']).toBe(calls[0]?.id);
    expect(calls[0]?.rawFields).toContain('Bearer k');
  });

  test.each(['/via/openai/v1/chat/completions', '/via/shop/%zz/..%2f', '/via/openai'])(
    'a call of the base-URL form arrives: %s',
    async (path) => {
      const { data, calls } = await startDataServer();
      expect((await request(data.server).post(path).send({ a: 1 })).status).toBe(200);
      expect(calls[0]).toMatchObject({ method: 'POST', form: 'via', rawUrl: path });
    },
  );

  test.each(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND'])(
    '%s is served',
    async (method) => {
      const { data, calls, port } = await startDataServer();
      const answer = await fetch(`http://127.0.0.1:${port}/proxy?target=x`, { method });
      expect(await answer.text()).toBe('fine');
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
  ])('%s does not exist', async (path) => {
    const { port, calls, earlyRefusals } = await startDataServer();
    // supertest would resolve `//evil…` itself.
    const answer = await fetch(`http://127.0.0.1:${port}${path}`);
    expect(answer.status).toBe(404);
    expect(await answer.json()).toMatchObject({ code: 'not_found' });
    expect(calls).toHaveLength(0);
    expect(earlyRefusals).toEqual(['not_found']);
  });

  test('no word about the software is added', async () => {
    const { data } = await startDataServer();
    const { headers } = await request(data.server).get('/proxy?target=x');
    expect(headers).not.toHaveProperty('x-powered-by');
    expect(headers).not.toHaveProperty('etag');
    expect(headers).not.toHaveProperty('server');
  });
});

describe('activity', () => {
  test('is JSON, for the caller who is known', async () => {
    const { data } = await startDataServer(undefined, {
      activity: (call) => Promise.resolve({ form: call.form, sent: call.rawFields.includes('k1') }),
    });
    const answer = await request(data.server).get('/activity').set('Sluice-Key', 'k1');
    expect(answer.status).toBe(200);
    expect(answer.type).toBe('application/json');
    expect(answer.body).toEqual({ form: 'activity', sent: true });
    expect((await request(data.server).head('/activity')).status).toBe(200);
  });

  test('is refused to others', async () => {
    const { data } = await startDataServer(undefined, {
      activity: () => Promise.reject(new Refusal('unauthenticated')),
    });
    const answer = await request(data.server).get('/activity');
    expect(answer.status).toBe(401);
    expect(answer.headers['www-authenticate']).toBe('Bearer');
  });

  test('only has GET and HEAD', async () => {
    const { data } = await startDataServer();
    const answer = await request(data.server).post('/activity').send({});
    expect(answer.status).toBe(405);
    expect(answer.headers['allow']).toBe('GET, HEAD');
  });
});

describe('answers', () => {
  test("carry the upstream's fields and ours", async () => {
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
          record: { waitedMs: 1_234, attempts: 3, absorbed: 2 },
          rateLimit: { limit: 40, windowSeconds: 60, remaining: 0, resetSeconds: 1.5 },
          shouldRetry: false,
          onEnd: (how) => ends.push(how),
        }),
      ),
    );
    const answer = await request(data.server).get('/proxy?target=x');
    expect(answer.status).toBe(418);
    expect(answer.headers).toMatchObject({
      'x-a': '1',
      'set-cookie': ['a', 'b'],
      'x-should-retry': 'false',
      'content-length': '4',
      'sluice-admission': 'waited=1234, attempts=3, absorbed=2',
      'ratelimit-policy': '"workspace";q=40;w=60',
      ratelimit: '"workspace";r=0;t=2',
    });
    expect(answer.headers).not.toHaveProperty('sluice-error');
    expect(ends).toEqual(['complete']);
  });

  test.each([
    ['HEAD', 200, Readable.from([]), '4'],
    ['GET', 204, null, undefined],
    ['GET', 304, null, '4'],
    ['GET', 205, Readable.from(['abcd']), '0'],
    ['GET', 200, null, '0'],
  ])('%s with status %d is well framed', async (method, status, body, length) => {
    const ends: string[] = [];
    const { port, bugs } = await startDataServer(() =>
      Promise.resolve(
        outcomeOf({ status, body, fields: ['Content-Length', '4'], onEnd: (how) => ends.push(how) }),
      ),
    );
    const answer = await fetch(`http://127.0.0.1:${port}/proxy?target=x`, { method });
    expect(await answer.text()).toBe('');
    expect(answer.headers.get('content-length') ?? undefined).toBe(length);
    expect(ends).toEqual(['complete']);
    expect(bugs).toEqual([]);
    expect(body === null || body.destroyed).toBe(true);
  });

  test.each([[0], [101], [600]])('status %d of an upstream becomes upstream_invalid', async (status) => {
    const ends: string[] = [];
    const body = Readable.from(['x']);
    const { data, bugs } = await startDataServer(() =>
      Promise.resolve(outcomeOf({ status, body, onEnd: (how) => ends.push(how) })),
    );
    const answer = await request(data.server).get('/proxy?target=x');
    expect([answer.status, answer.headers['sluice-error']]).toEqual([502, 'upstream_invalid']);
    expect(ends).toEqual(['upstream_cut']);
    expect(body.destroyed).toBe(true);
    expect(bugs).toEqual([]);
  });

  test.each([
    ['a line break in a value', ['X-A', 'a\r\nb']],
    ['a name that is no token', ['X A', 'a']],
    ['a value beyond one byte', ['X-A', '\u2028']],
  ])('a field that cannot be sent becomes upstream_invalid: %s', async (_name, fields) => {
    const { data, bugs } = await startDataServer(() => Promise.resolve(outcomeOf({ fields })));
    const answer = await request(data.server).get('/proxy?target=x');
    expect([answer.status, answer.headers['sluice-error']]).toEqual([502, 'upstream_invalid']);
    expect(bugs).toEqual([]);
  });

  test('a refusal tells what is known so far', async () => {
    const { data, bugs } = await startDataServer((call) => {
      call.report({ rateLimit: { limit: 40, windowSeconds: 60, remaining: 0, resetSeconds: 30 } });
      call.report({ record: { waitedMs: 5, attempts: 0, absorbed: 0 } });
      throw new Refusal('wait_too_long', { retryInMs: 30_000, detail: 'Later.' });
    });
    const answer = await request(data.server).get('/proxy?target=x');
    expect(answer.status).toBe(429);
    expect(answer.headers).toMatchObject({
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
    'the refusal %s keeps a connection whose request is whole',
    async (code) => {
      const { port } = await startDataServer(() => Promise.reject(new Refusal(code)));
      const answer = await fetch(`http://127.0.0.1:${port}/proxy?target=x`);
      expect(answer.headers.get('sluice-error')).toBe(code);
      expect(answer.headers.get('connection')).toBe('keep-alive');
      expect(await answer.json()).toMatchObject({ code, requestId: answer.headers.get('sluice-request-id') });
    },
  );

  test('a refusal of HEAD has no body', async () => {
    const { data } = await startDataServer(() => Promise.reject(new Refusal('target_missing')));
    const answer = await request(data.server).head('/proxy');
    expect([answer.status, answer.headers['sluice-error']]).toEqual([400, 'target_missing']);
    expect(answer.text).toBeUndefined();
  });

  test('anything else thrown is a bug: told once, without details', async () => {
    const bug = new Error('secret https://a.example/?key=1');
    const { data, bugs } = await startDataServer(() => Promise.reject(bug));
    const answer = await request(data.server).get('/proxy?target=x');
    expect([answer.status, answer.headers['sluice-error']]).toEqual([500, 'internal']);
    expect(JSON.stringify([answer.headers, answer.body])).not.toContain('secret');
    expect(bugs).toEqual([bug]);
  });

  test('a synchronous throw is treated alike, and the next call is served', async () => {
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
