import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { usualCarriers } from '../../src/credential-carriers.policy.ts';
import { outgoingFields } from '../../src/dispatch/request-fields.policy.ts';
import { answering } from '../support/raw-upstream.ts';
import { failure, sendingWorlds, text } from '../support/sending.ts';
import type { SendingWorld } from '../support/sending.ts';

const ok = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';
const worldOf = sendingWorlds();
const world = (): Promise<SendingWorld> => worldOf(answering(ok));

/** All bytes that the upstream received, on all connections. */
const wire = ({ upstream }: SendingWorld): string =>
  upstream.connections.map((connection) => connection.received()).join('');

describe('a request to the upstream', () => {
  test('has exactly the requested bytes', async () => {
    const opened = await world();
    const response = await opened.send({
      method: 'POST',
      pathAndQuery: '/a?b',
      fields: { host: 'upstream.test', 'x-a': ['1', '2'], 'content-length': '5' },
      body: Buffer.from('hello'),
    });
    expect(await text(response.body)).toBe('ok');
    expect(wire(opened)).toBe(
      'POST /a?b HTTP/1.1\r\nhost: upstream.test\r\nx-a: 1\r\nx-a: 2\r\ncontent-length: 5\r\nConnection: keep-alive\r\n\r\nhello',
    );
  });

  test('carries path and query byte for byte', async () => {
    const opened = await world();
    const paths: string[] = ["/a;b?a=$&b=$'", '//evil.example/x', '/?', '/?a?b&&=', '/%2e%2e/%2F', '/x?q={"a":[1]}|^`\\', '/.//..', '/a#b'];
    fc.assert(fc.property(fc.string({ unit: 'grapheme-ascii', maxLength: 40 }), (tail) => void paths.push(`/${tail.replaceAll(' ', '+')}`)), { numRuns: 50 });
    for (const pathAndQuery of paths) {
      const { body } = await opened.send({ pathAndQuery });
      await text(body);
      const seen = wire(opened).split('\r\n\r\n').at(-2) ?? '';
      expect(seen.startsWith(`GET ${pathAndQuery} HTTP/1.1\r\n`) || seen).toBe(true);
    }
    expect(opened.upstream.connections).toHaveLength(1);
  }); // prettier-ignore

  test.each(['GET', 'HEAD', 'DELETE', 'OPTIONS', 'PUT', 'PATCH', 'QUERY'])(
    'is framed when a %s has a body, whatever the client’s Connection says',
    async (method) => {
      const opened = await world();
      const smuggled = 'GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n';
      const rawFields = ['Connection', 'content-length, transfer-encoding', 'Transfer-Encoding', 'chunked'];
      const body = Buffer.from(smuggled);
      const fields = outgoingFields({
        rawFields,
        route: {
          host: 'upstream.test',
          credential: null,
          upstream: { propagateTrace: false, carriers: usualCarriers },
        },
        passesCookies: false,
        dropFields: [],
        method,
        bodyBytes: body.length,
        traceparent: null,
      });
      const response = await opened.send({ method, fields, body });
      response.body.destroy();
      const [head = '', ...rest] = wire(opened).split('\r\n\r\n');
      expect(head.match(/content-length: \d+/gi)).toEqual([`content-length: ${body.length}`]);
      expect(head).not.toMatch(/transfer-encoding/i);
      expect(rest.join('\r\n\r\n')).toBe(smuggled);
    },
  );

  test('with a body of more than one piece arrives whole', async () => {
    const opened = await worldOf(async (connection) => {
      await connection.until((received) => received.endsWith('END'));
      connection.send(ok);
    });
    const body = Buffer.concat([Buffer.alloc(300_000, 7), Buffer.from('END')]);
    const fields = { host: 'x', 'content-length': String(body.length) };
    const response = await opened.send({ method: 'POST', fields, body });
    expect(await text(response.body)).toBe('ok');
    expect(wire(opened).split('\r\n\r\n')[1]?.length).toBe(body.length);
  });

  test('never carries the API key, Expect or hop-by-hop fields of the client', async () => {
    const opened = await world();
    const key = `slc_a_${'c'.repeat(43)}`;
    const rawFields = ['Authorization', `Bearer ${key}`, 'Expect', '100-continue', 'Trailer', 'X-T', 'TE', 'trailers', 'Upgrade', 'h2c', 'HTTP2-Settings', 'x', 'Sluice-Key', key, 'X-Again', key, '__proto__', 'p', 'constructor', 'c'];
    for (const method of ['GET', 'POST']) {
      const fields = outgoingFields({
        rawFields,
        route: { host: 'upstream.test', credential: { field: 'x-api-key', value: 'theirs' }, upstream: { propagateTrace: false, carriers: usualCarriers } },
        passesCookies: false,
        dropFields: ['authorization'],
        method,
        bodyBytes: 0,
        traceparent: null,
      });
      await text((await opened.send({ method, fields })).body);
    }
    expect(wire(opened)).not.toContain(key);
    expect(wire(opened)).not.toMatch(/expect|trailer|te:|upgrade|settings|sluice-key/i);
    expect(wire(opened).match(/x-api-key: theirs/g)).toHaveLength(2);
    expect(wire(opened)).toContain('__proto__: p');
  }); // prettier-ignore

  test.each([
    ['a line break in a value', { fields: { host: 'x', 'x-a': 'a\r\nb: c' } }],
    ['a NUL in a value', { fields: { host: 'x', 'x-a': 'a\u0000' } }],
    ['a value beyond latin-1', { fields: { host: 'x', 'x-a': '\u2028' } }],
    ['a name that is no token', { fields: { host: 'x', 'x a': '1' } }],
    ['a blank in the path', { pathAndQuery: '/a b' }],
    ['a line break in the path', { pathAndQuery: '/a\r\nx: 1' }],
    ['a method that is no token', { method: 'GE T' }],
  ])('is not written with %s', async (_, changes) => {
    const opened = await world();
    const error = await failure(opened.send(changes));
    expect(error).toMatchObject({ kind: 'invalid', neverSent: true, phase: 'connect' });
    expect(wire(opened)).toBe('');
  });

  test('reports when its bytes are written, on a new and on a kept connection', async () => {
    const opened = await world();
    let sent = 0;
    for (const expected of [1, 2]) {
      const response = await opened.send({ onSent: () => sent++ });
      expect(sent).toBe(expected);
      await text(response.body);
    }
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('is not reported as sent while it waits for a socket', async () => {
    const opened = await world();
    const agent = opened.agents.forOrigin(opened.upstream.origin);
    agent.maxSockets = 1;
    const first = await opened.send({});
    let sent = 0;
    const second = opened.send({ onSent: () => sent++ });
    await new Promise(setImmediate);
    expect(sent).toBe(0);
    await text(first.body);
    await text((await second).body);
    expect(sent).toBe(1);
    expect(opened.upstream.connections).toHaveLength(1);
  });
});
