import { describe, expect, test } from '@jest/globals';
import { usualCarriers } from '../../src/credential-carriers.policy.ts';
import { outgoingFields } from '../../src/dispatch/fields.policy.ts';
import { answering } from '../support/raw-upstream.ts';
import { bytes, ok } from '../support/scripts.ts';
import { failure, sendingWorld as worldOf, text, type SendingWorld } from '../support/sending.ts';

const world = (): Promise<SendingWorld> => worldOf(answering(ok));

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
    const fields = 'host: upstream.test|x-a: 1|x-a: 2|content-length: 5|Connection: keep-alive';
    expect(wire(opened)).toBe(bytes(`POST /a?b HTTP/1.1|${fields}||hello`));
  });

  test.each('GET HEAD DELETE OPTIONS PUT PATCH QUERY'.split(' '))(
    'is framed for %s with a body, whatever Connection says',
    async (method) => {
      const opened = await world();
      const body = Buffer.from(bytes('GET /smuggled HTTP/1.1|host: x||'));
      const named = ['Connection', 'content-length, transfer-encoding', 'Transfer-Encoding', 'chunked'];
      const fields = outgoingFields({
        call: { form: 'proxy', method, rawFields: named },
        route: {
          host: 'x',
          credential: null,
          upstream: { cookies: 'scoped', propagateTrace: false, carriers: usualCarriers },
        },
        dropFields: [],
        bodyBytes: body.length,
        traceparent: null,
      });
      (await opened.send({ method, fields, body })).body.destroy();
      const [head = '', ...rest] = wire(opened).split('\r\n\r\n');
      expect(head.match(/content-length: \d+/gi)).toEqual([`content-length: ${body.length}`]);
      expect(head).not.toMatch(/transfer-encoding/i);
      expect(rest.join('\r\n\r\n')).toBe(body.toString());
    },
  );

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
    const expected = { kind: 'invalid', neverSent: true, phase: 'connect' };
    expect(await failure(opened.send(changes))).toMatchObject(expected);
    expect(wire(opened)).toBe('');
  });
});

const gate = () => {
  const { promise: hold, resolve: release } = Promise.withResolvers<void>();
  return { hold, release };
};
const pulse = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 20));

describe('a request that waits for its place in the writing order', () => {
  const kept = async (): Promise<SendingWorld> => {
    const opened = await world();
    await text((await opened.send()).body);
    return opened;
  };

  test.each([
    ['a new', world],
    ['a kept', kept],
  ])('is connected but not yet written on %s connection', async (_kind, open) => {
    const opened = await open();
    const { hold, release } = gate();
    let sent = 0;
    const sending = opened.send({ hold, pathAndQuery: '/held', onSent: () => sent++ });
    while (opened.upstream.connections.length === 0) await pulse();
    expect(opened.upstream.connections).toHaveLength(1);
    expect([sent, wire(opened).includes('/held')]).toEqual([0, false]);
    release();
    expect(await text((await sending).body)).toBe('ok');
    expect(sent).toBe(1);
  });

  test('is never written when it is aborted', async () => {
    const opened = await world();
    const { hold, release } = gate();
    const aborter = new AbortController();
    const sending = opened.send({ hold, signal: aborter.signal });
    await pulse();
    aborter.abort();
    expect(await failure(sending)).toMatchObject({ kind: 'aborted', neverSent: true });
    release();
    await opened.upstream.allClosed();
    expect(wire(opened)).toBe('');
  });

  test.each([
    ['is never sent when its kept connection closes meanwhile', ''],
    ['takes no response that was sent before it', bytes('HTTP/1.1 200 OK|content-length: 6||poison')],
  ])('%s', async (_what, unasked) => {
    const opened = await kept();
    const { hold, release } = gate();
    const sending = opened.send({ hold });
    await pulse();
    if (unasked === '') opened.upstream.connections[0]?.socket.end();
    else opened.upstream.connections[0]?.send(unasked);
    expect(await failure(sending)).toMatchObject({ kind: 'unreachable', neverSent: true });
    release();
    await opened.upstream.allClosed();
    expect(wire(opened).match(/GET/g)).toHaveLength(1);
  });
});

describe('requests that become ready in one turn of the event loop', () => {
  test('are written one right after the other at its end, in order', async () => {
    const opened = await world();
    await Promise.all([1, 2, 3].map(async () => text((await opened.send()).body)));
    const events: string[] = [];
    const note = (what: string) => (): unknown => events.push(what);
    const responses = ['a', 'b', 'c'].map((name) =>
      opened.send({ onReady: note(`${name} ready`), onSent: note(`${name} sent`) }),
    );
    for (const response of responses) expect(await text((await response).body)).toBe('ok');
    expect(events).toEqual(['a ready', 'b ready', 'c ready', 'a sent', 'b sent', 'c sent']);
  });

  test('are never written when their client leaves before its end', async () => {
    const opened = await world();
    await text((await opened.send()).body);
    const aborter = new AbortController();
    const sending = opened.send({ signal: aborter.signal, onReady: () => aborter.abort() });
    expect(await failure(sending)).toMatchObject({ kind: 'aborted', neverSent: true });
    await opened.upstream.allClosed();
    expect(wire(opened).match(/GET/g)).toHaveLength(1);
  });
});
