import type { Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { attempt } from '../../src/dispatch/dispatcher.ts';
import { bodyError } from '../../src/dispatch/transport-error.ts';
import type { TransportAttempt } from '../../src/dispatch/transport.ts';
import { answering } from '../support/raw-upstream.ts';
import { bytes, ending, ok } from '../support/scripts.ts';
import { failure, sendingWorld as world, text, type SendingWorld } from '../support/sending.ts';

function attemptAt(opened: SendingWorld, changes: Partial<TransportAttempt> = {}) {
  const request = { kind: 'generic', dialect: null, callClass: 'default' } as const;
  return attempt(opened.transport, { ...opened.attempt(changes), ...request }, systemClock);
}

/** What became of a call: the whole response, how it was cut, or the failure before its head. */
async function outcome(...call: Parameters<typeof attemptAt>): Promise<string> {
  const result = await attemptAt(...call);
  if (result.kind === 'failed') return `failed ${result.error.kind} ${result.error.phase}`;
  const { head, body } = result;
  try {
    return `${head.status} ${JSON.stringify(Buffer.isBuffer(body) ? body.toString('latin1') : await text(body))}`;
  } catch (error) {
    return `${head.status} cut ${bodyError(error).kind}`;
  }
}

const uploading = (size: number, pathAndQuery = '/') => ({
  method: 'POST',
  pathAndQuery,
  fields: { host: 'x', 'content-length': String(size) },
  body: Buffer.alloc(size),
});
const large = 16 * 1024 * 1024;
/** No other call meets this connection while it ends. */
const alone = 'connection: close|';

describe('a response of the upstream', () => {
  test('is returned with its status, field lines and body, without the reason', async () => {
    const opened = await world(
      ending(bytes('HTTP/1.1 404 Reason canary|X-A: 1|x-a: 2|Content-Length: 3||\xe9\x00\xff')),
    );
    const { head, body } = await opened.send();
    expect(head).toEqual({ status: 404, rawFields: ['X-A', '1', 'x-a', '2', 'Content-Length', '3'] });
    expect(await text(body)).toBe('\xe9\x00\xff');
  });

  test('with a status from 200 to 599 is passed on, with another one it is invalid', async () => {
    const opened = await world(ending((status) => bytes(`HTTP/1.1 ${status} x|${alone}content-length: 0||`)));
    const passed = [200, 201, 204, 205, 299, 300, 304, 399, 400, 429, 499, 500, 599];
    for (const status of passed)
      expect(await outcome(opened, { pathAndQuery: `/${status}` })).toBe(`${status} ""`);
    for (const status of ['000', '001', '010', '099', 100, 101, 102, 103, 199, 600, 700, 999])
      expect(`${status} ${await outcome(opened, { pathAndQuery: `/${status}` })}`).toMatch(
        /^\d+ failed (invalid|reset) sent$/,
      );
  });

  const start = 'HTTP/1.1 200 OK|';
  const two = 'content-length: 2||ok';
  const inChunks = `${start}transfer-encoding: chunked||`;
  const interim = 'HTTP/1.1 103 Early|Link: x||';
  const switching = 'HTTP/1.1 101 S|Connection: upgrade|Upgrade: websocket||';
  const poison = 'HTTP/1.1 200 OK|content-length: 6||poison';
  const invalid = 'failed invalid sent';
  /** What is cut in the moment of its head has failed as a whole. */
  const cut = (how: string): unknown => expect.stringMatching(`^(200 cut ${how}|failed ${how} body)$`);
  const packed = gzipSync('hello').toString('latin1');
  const ofPacked = `200 ${JSON.stringify(packed)}`;
  test.each([
    ['Trailer beside Content-Length', `${start}Trailer: x|${two}`, '200 "ok"'],
    ['trailers', `${inChunks}2|ok|0|X: y||`, '200 "ok"'],
    ['16 interim responses', `${interim.repeat(16)}${start}${two}`, '200 "ok"'],
    ['17 interim responses', `${interim.repeat(17)}${start}${two}`, invalid],
    ['an unasked 100', `HTTP/1.1 100 Continue||${start}${two}`, '200 "ok"'],
    ['an unasked 101 with Upgrade', switching, invalid],
    ['content-length and transfer-encoding', `${start}transfer-encoding: chunked|${two}`, invalid],
    ['two lengths', `${start}content-length: 3|${two}`, invalid],
    ['a negative length', `${start}content-length: -1||`, invalid],
    ['bare line feeds', 'HTTP/1.1 200 OK\ncontent-length: 2\n\nok', invalid],
    ['a folded line', `${start}x: a| b|${two}`, invalid],
    ['a CR in a value', `${start}x: a\rb|${two}`, invalid],
    ['a NUL in a value', `${start}x: a\u0000b|${two}`, invalid],
    ['a field of 20 KiB', `${start}x: ${'a'.repeat(20_000)}|${two}`, invalid],
    ['900 fields', `${start}${'x:|'.repeat(900)}${two}`, '200 "ok"'],
    ['so many fields that Node drops some without an error', `${start}${'x:|'.repeat(1_500)}${two}`, invalid],
    ['something that is not HTTP', 'SSH-2.0-OpenSSH|', invalid],
    ['HTTP/2 frames', '\x00\x00\x00\x04\x00\x00\x00\x00\x00', invalid],
    ['nothing', '', 'failed reset sent'],
    ['half a head', `${start}x: a`, 'failed reset sent'],
    ['a short body', `${start}content-length: 9||short`, cut('reset')],
    ['a chunk that is too short', `${inChunks}9|short`, cut('reset')],
    ['chunks without an end', `${inChunks}2|ok|`, cut('reset')],
    ['a broken chunk length', `${inChunks}2|ok|zz|`, cut('invalid')],
    ['a body ended by the close', `${start}|until the end`, '200 "until the end"'],
    ['an HTTP/1.0 body ended by the close', 'HTTP/1.0 200 OK||old', '200 "old"'],
    ['a body on 204', `HTTP/1.1 204 No|${two}`, '204 ""'],
    ['a body on 304', `HTTP/1.1 304 No|${two}`, '304 ""'],
    ['no body on 304 with its length', 'HTTP/1.1 304 No|content-length: 2||', '304 ""'],
    ['no body', `${start}content-length: 0||`, '200 ""'],
    ['gzip', `${start}content-encoding: gzip|content-length: ${packed.length}||${packed}`, ofPacked],
    ['two equal lengths in one line', `${start}content-length: 2, 2||ok`, invalid],
    ['a length with a zero in front', `${start}content-length: 02||ok`, '200 "ok"'],
    ['bytes after the body', `${start}${two}garbage`, '200 "ok"'],
    ['a second response after the first', `${start}${two}${poison}`, '200 "ok"'],
  ])('with %s is passed on or fails as it must', async (_, response, expected) => {
    const opened = await world(ending(bytes(response)));
    expect(await outcome(opened)).toEqual(expected);
    await opened.upstream.allClosed();
  });

  test.each([
    ['to HEAD', 'HEAD', 'HTTP/1.1 200 OK|content-length: 7||'],
    ['with 204', 'GET', 'HTTP/1.1 204 No Content|x: y||'],
    ['with 304', 'GET', 'HTTP/1.1 304 Not Modified|x: y||'],
  ])('%s has no body, and its connection is used again', async (_, method, response) => {
    const opened = await world(answering(bytes(response)));
    for (const _again of [1, 2, 3]) expect(await outcome(opened, { method })).toMatch(/^\d{3} ""$/);
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('that is sent unasked on an idle connection reaches no call', async () => {
    const opened = await world(async (connection) => {
      await connection.requests(1);
      connection.send(ok);
      if (connection.number === 0) setImmediate(() => connection.send(bytes(poison)));
    });
    expect(await outcome(opened)).toBe('200 "ok"');
    await opened.upstream.allClosed();
    expect(await outcome(opened)).toBe('200 "ok"');
    expect(opened.upstream.connections).toHaveLength(2);
  });

  const counted = bytes('HTTP/1.1 200 OK|X-A: b|Content-Length: 12||Hello World!');
  const chunked = bytes('HTTP/1.1 200 OK|Transfer-Encoding: chunked||6|Hello |6|World!|0||');
  test.each([
    ['a counted', 'end', counted],
    ['a counted', 'reset', counted],
    ['a chunked', 'end', chunked],
    ['a chunked', 'reset', chunked],
  ] as const)('of %s body, cut by %s after so many bytes, never ends cleanly', async (_, how, whole) => {
    const opened = await world(ending((path) => whole.slice(0, Number(path)), how));
    const headEnd = whole.indexOf('\r\n\r\n') + 4;
    await Promise.all(
      Array.from(whole, async (_byte, at) => {
        const got = await outcome(opened, { pathAndQuery: `/${at}` });
        expect([at, got]).toEqual([at, at < headEnd ? 'failed reset sent' : cut('reset')]);
      }),
    );
  });

  test('that ends with the connection does not end cleanly when the connection is reset instead', async () => {
    const opened = await world(ending(bytes('HTTP/1.1 200 OK||part of it'), 'reset'));
    expect(await outcome(opened)).toEqual(cut('reset'));
  });

  test('that refuses a large body ends the upload', async () => {
    const opened = await world(async (connection) => {
      await connection.until((received) => received.length > 0);
      connection.send(bytes('HTTP/1.1 413 Content Too Large|content-length: 3||'));
      for (let read = -1; read < connection.socket.bytesRead;) {
        read = connection.socket.bytesRead;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      connection.send('big');
    });
    expect(await outcome(opened, uploading(large))).toBe('413 "big"');
    await opened.upstream.allClosed();
    expect(opened.upstream.connections[0]?.received().length).toBeLessThan(large);
  });

  test('that comes before a large body was read does not end the upload when it is no refusal', async () => {
    const opened = await world(async (connection) => {
      await connection.until((received) => received.length > 0);
      connection.send(bytes('HTTP/1.1 200 OK|transfer-encoding: chunked||'));
      await connection.until(() => connection.socket.bytesRead > large);
      connection.send(bytes('2|ok|0||'));
    });
    expect(await outcome(opened, uploading(large))).toBe('200 "ok"');
  });

  test.each([
    ['ends its connection', (socket: Socket) => void socket.end()],
    ['closes its connection', (socket: Socket) => void socket.destroy()],
    ['resets its connection', (socket: Socket) => void socket.resetAndDestroy()],
  ])('of an upstream that has not read the body and %s is passed on', async (_how, close) => {
    const opened = await world(async (connection) => {
      const received = await connection.until((text) => text.includes('\r\n\r\n'));
      const status = /^POST \/(\d+)/.exec(received)?.[1];
      const response = bytes(`HTTP/1.1 ${status} x|connection: close|content-length: 3||big`);
      connection.socket.write(response, () => close(connection.socket));
    });
    for (const status of [413, 401, 200])
      for (const size of [10_000, 8_000_000])
        expect(await outcome(opened, uploading(size, `/${status}`))).toBe(`${status} "big"`);
  });

  test('is received no faster than it is read', async () => {
    const size = 64 * 1024 * 1024;
    const opened = await world(async (connection) => {
      await connection.requests(1);
      connection.send(bytes(`HTTP/1.1 200 OK|content-length: ${size}||`));
      connection.socket.write(Buffer.alloc(size));
    });
    const { body } = await opened.send();
    const upstream = opened.upstream.connections[0]?.socket;
    const sent = (): number => (upstream?.bytesWritten ?? 0) - (upstream?.writableLength ?? 0);
    for (let before = -1; before !== sent();) {
      before = sent();
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    expect(upstream?.writableLength).toBeGreaterThan(size / 2);
    expect(body.readableLength).toBeLessThan(1024 * 1024);
    body.destroy();
    await opened.upstream.allClosed();
  });

  test('that is invalid makes an error that says nothing of its content or its origin', async () => {
    const opened = await world(ending(bytes('HTTP/1.1 200 OK|canary||')));
    const error = await failure(opened.send({ pathAndQuery: '/canary' }));
    const members = Object.getOwnPropertyNames(error).filter((name) => name !== 'stack');
    const said = members.map((name): unknown => Reflect.get(error, name));
    expect(JSON.stringify(said)).not.toMatch(/canary|127\.0\.0\.1/);
  });
});

test('a small response is there with its head, and its connection can serve a call that is sent at once', async () => {
  const opened = await world(answering(ok));
  for (let n = 0; n < 10; n += 1)
    expect(await attemptAt(opened)).toMatchObject({ kind: 'answered', body: Buffer.from('ok') });
  expect(opened.upstream.connections).toHaveLength(1);
});
