/** Ordinary requests over an ordinary client. */
import { describe, expect, test } from '@jest/globals';
import { Readable } from 'node:stream';
import request from 'supertest';
import type { Call, Outcome } from '../../src/call.ts';
import { Refusal } from '../../src/errors.ts';
import { outcomeOf, startDataServer } from './data-server-fixture.ts';

const answering = (outcome: Partial<Outcome>) => startDataServer(() => Promise.resolve(outcomeOf(outcome)));
const failing = (failure: unknown) => startDataServer(() => Promise.reject(failure as Error));
const get = ({ data }: Awaited<ReturnType<typeof startDataServer>>) =>
  request(data.server).get('/proxy?target=x');

describe('a route', () => {
  test('passes the request target of a /proxy call unchanged, and adds no word about the software', async () => {
    const { data, calls } = await startDataServer();
    const target = '/proxy?target=https%3A%2F%2Fa.example%2Fx%3Fy%3D1%2B2&b=%24&';
    const { status, headers } = await request(data.server).get(target).set('Authorization', 'Bearer k');
    expect(status).toBe(200);
    expect(calls).toMatchObject([{ method: 'GET', form: 'proxy', rawUrl: target }]);
    expect(calls[0]?.id).toMatch(/^[0-9a-f]{32}$/);
    expect(headers['sluice-request-id']).toBe(calls[0]?.id);
    expect(calls[0]?.rawFields).toContain('Bearer k');
    for (const name of ['x-powered-by', 'etag', 'server']) expect(headers).not.toHaveProperty(name);
  });

  test.each(['/via/openai/v1/chat/completions', '/via/shop/%zz/..%2f', '/via/openai'])(
    'passes a base-URL call: %s',
    async (path) => {
      const { data, calls } = await startDataServer();
      expect((await request(data.server).post(path).send({ a: 1 })).status).toBe(200);
      expect(calls).toMatchObject([{ method: 'POST', form: 'via', rawUrl: path }]);
    },
  );

  test.each(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND'])(
    'is served: %s',
    async (method) => {
      const { data, calls, port } = await startDataServer();
      const response = await fetch(`http://127.0.0.1:${port}/proxy?target=x`, { method });
      expect([await response.text(), calls[0]?.method, data.stats().openCalls]).toEqual(['fine', method, 0]);
    },
  );

  test.each('/ /PROXY?target=x /proxy/ /proxyx /via/ /via //evil.example/x /metrics /livez'.split(' '))(
    'does not exist: %s',
    async (path) => {
      const { port, calls, requestRefusals } = await startDataServer();
      // supertest would resolve `//evil…` itself.
      const response = await fetch(`http://127.0.0.1:${port}${path}`);
      expect([response.status, await response.json()]).toEqual([
        404,
        expect.objectContaining({ code: 'not_found' }),
      ]);
      expect([calls, requestRefusals]).toEqual([[], ['not_found']]);
    },
  );
});

describe('the route of activity', () => {
  const start = (activity: (call: Call) => Promise<unknown>) =>
    startDataServer(undefined, { activity: activity as (call: Call) => Promise<object> });

  test('responds with JSON to an authenticated workspace, to GET and HEAD only', async () => {
    const { data } = await start(async ({ form, rawFields }) => ({ form, sent: rawFields.includes('k1') }));
    const response = await request(data.server).get('/activity').set('Sluice-Key', 'k1');
    expect([response.status, response.type]).toEqual([200, 'application/json']);
    expect(response.body).toEqual({ form: 'activity', sent: true });
    expect((await request(data.server).head('/activity')).status).toBe(200);
    const { status, headers } = await request(data.server).post('/activity').send({});
    expect([status, headers['allow']]).toEqual([405, 'GET, HEAD']);
  });

  test('refuses others', async () => {
    const { data } = await start(() => Promise.reject(new Refusal('unauthenticated')));
    const { status, headers } = await request(data.server).get('/activity');
    expect([status, headers['www-authenticate']]).toEqual([401, 'Bearer']);
  });
});

describe('the response to a call', () => {
  test.each([
    ['HEAD', 200, Readable.from([]), '4'],
    ['GET', 204, null, undefined],
    ['GET', 304, null, '4'],
    ['GET', 205, Readable.from(['abcd']), '0'],
    ['GET', 200, null, '0'],
  ])('to %s with status %d is well framed', async (method, status, body, length) => {
    const ends: string[] = [];
    const onEnd = (how: string): void => void ends.push(how);
    const { port, bugs } = await answering({ status, body, fields: ['Content-Length', '4'], onEnd });
    const response = await fetch(`http://127.0.0.1:${port}/proxy?target=x`, { method });
    expect([await response.text(), response.headers.get('content-length') ?? undefined]).toEqual([
      '',
      length,
    ]);
    expect([ends, bugs, body === null || body.destroyed]).toEqual([['complete'], [], true]);
  });

  test.each<[string, Partial<Outcome>]>([
    ['the status 0', { status: 0 }],
    ['the status 101', { status: 101 }],
    ['the status 600', { status: 600 }],
    ['a line break in a value', { fields: ['X-A', 'a\r\nb'] }],
    ['a name that is no token', { fields: ['X A', 'a'] }],
    ['a value beyond one byte', { fields: ['X-A', '\u2028'] }],
  ])('with what cannot be sent becomes upstream_invalid: %s', async (_, outcome) => {
    const ends: string[] = [];
    const body = Readable.from(['x']);
    const server = await answering({ ...outcome, body, onEnd: (how) => ends.push(how) });
    const { status, headers } = await get(server);
    expect([status, headers['sluice-error']]).toEqual([502, 'upstream_invalid']);
    expect([ends, body.destroyed, server.bugs]).toEqual([['upstream_cut'], true, []]);
  });

  test('has one word about trying again: ours goes before that of the upstream', async () => {
    const server = await answering({ status: 500, fields: ['X-Should-Retry', 'true'], shouldRetry: false });
    expect((await get(server)).headers['x-should-retry']).toBe('false');
  });

  test('has no body for a refused HEAD', async () => {
    const { data } = await failing(new Refusal('target_missing'));
    const { status, headers, text } = await request(data.server).head('/proxy');
    expect([status, headers['sluice-error'], text]).toEqual([400, 'target_missing', undefined]);
  });

  test('to a call that throws a bug has no details, the bug is reported once, and the next call is served', async () => {
    const bug = new Error('secret https://a.example/?key=1');
    const throws = [
      () => Promise.reject(bug),
      (): never => {
        throw bug;
      },
    ];
    const server = await startDataServer(() => (throws.shift() ?? (() => Promise.resolve(outcomeOf())))());
    for (const reported of [1, 2]) {
      const response = await get(server);
      expect([response.status, response.headers['sluice-error']]).toEqual([500, 'internal']);
      expect(JSON.stringify([response.headers, response.body])).not.toContain('secret');
      expect(server.bugs).toEqual(Array.from({ length: reported }, () => bug));
    }
    expect((await get(server)).status).toBe(200);
  });
});
