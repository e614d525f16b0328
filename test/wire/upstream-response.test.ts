import type { Socket } from 'node:net';
import { describe, expect, test } from '@jest/globals';
import type { UpstreamResponse } from '../../src/call.ts';
import { bodyError } from '../../src/dispatch/transport-error.ts';
import { answering } from '../support/raw-upstream.ts';
import type { Script } from '../support/raw-upstream.ts';
import { failure, sendingWorlds, text } from '../support/sending.ts';

const world = sendingWorlds();

/** Sends these bytes once and closes. */
const once =
  (bytes: string): Script =>
  async (connection) => {
    await connection.requests(1);
    connection.socket.end(bytes, 'latin1');
  };

/** What became of a call: the whole response, how it was cut, or the failure before its head. */
async function outcome(sending: Promise<UpstreamResponse>): Promise<string> {
  let response: UpstreamResponse;
  try {
    response = await sending;
  } catch (error) {
    return `failed ${bodyError(error).kind} ${bodyError(error).phase}`;
  }
  try {
    return `${response.head.status} ${JSON.stringify(await text(response.body))}`;
  } catch (error) {
    return `${response.head.status} cut ${bodyError(error).kind}`;
  }
}

describe('a response of the upstream', () => {
  test('is returned with its status, field lines and body, without the reason', async () => {
    const opened = await world(
      once('HTTP/1.1 404 Reason canary\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 3\r\n\r\n\xe9\x00\xff'),
    );
    const response = await opened.send();
    expect(response.head).toEqual({ status: 404, rawFields: ['X-A', '1', 'x-a', '2', 'Content-Length', '3'] });
    expect(await text(response.body)).toBe('\xe9\x00\xff');
    expect(JSON.stringify(response.head)).not.toContain('canary');
  });

  test('with a status from 200 to 599 is passed on, with another one it is invalid', async () => {
    const opened = await world(async (connection) => {
      const status = /^GET \/(\d+)/.exec(await connection.requests(1))?.[1];
      connection.socket.end(`HTTP/1.1 ${status} x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n`);
    });
    const wrong: string[] = [];
    const judge = async (status: number): Promise<void> => {
      const got = await outcome(opened.send({ pathAndQuery: `/${String(status).padStart(3, '0')}` }));
      const expected =
        status >= 200 && status <= 599 ? got === `${status} ""` : /^failed (invalid|reset) sent$/.test(got);
      if (!expected) wrong.push(`${status}: ${got}`);
    };
    const around = [0, 1, 10, 99, 100, 101, 102, 103, 199, 200, 201, 204, 205, 299, 300, 304, 399, 400, 429, 499, 500, 599, 600, 700, 999];
    await Promise.all(around.map(judge));
    expect(wrong).toEqual([]);
  });

  test('may have any byte in its reason', async () => {
    const opened = await world(async (connection) => {
      const byte = Number(/^GET \/(\d+)/.exec(await connection.requests(1))?.[1]);
      connection.socket.end(`HTTP/1.1 200 a${String.fromCharCode(byte)}b\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok`, 'latin1');
    });
    const seen = new Map<string, number>();
    // Control bytes, what follows them, and both ends of the upper half.
    for (const byte of [...Array(40).keys(), 126, 127, 128, 160, 255]) {
      const got = await outcome(opened.send({ pathAndQuery: `/${byte}` }));
      seen.set(got, (seen.get(got) ?? 0) + 1);
    }
    expect([...seen.keys()].every((got) => got === '200 "ok"' || got === 'failed invalid sent')).toBe(true);
    expect(seen.get('200 "ok"')).toBeGreaterThan(10);
  });

  const body = 'content-length: 2\r\n\r\nok';
  test.each([
    ['Trailer beside Content-Length', `HTTP/1.1 200 OK\r\nTrailer: x\r\n${body}`, '200 "ok"'],
    ['trailers', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n', '200 "ok"'],
    ['16 interim responses', `${'HTTP/1.1 103 Early\r\nLink: x\r\n\r\n'.repeat(16)}HTTP/1.1 200 OK\r\n${body}`, '200 "ok"'],
    ['17 interim responses', `${'HTTP/1.1 103 Early\r\nLink: x\r\n\r\n'.repeat(17)}HTTP/1.1 200 OK\r\n${body}`, 'failed invalid sent'],
    ['an unasked 100', `HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n${body}`, '200 "ok"'],
    ['an unasked 101 with Upgrade', 'HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n', 'failed invalid sent'],
    ['content-length and transfer-encoding', `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n${body}`, 'failed invalid sent'],
    ['two lengths', `HTTP/1.1 200 OK\r\ncontent-length: 3\r\n${body}`, 'failed invalid sent'],
    ['a negative length', 'HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n', 'failed invalid sent'],
    ['bare line feeds', 'HTTP/1.1 200 OK\ncontent-length: 2\n\nok', 'failed invalid sent'],
    ['a folded line', `HTTP/1.1 200 OK\r\nx: a\r\n b\r\n${body}`, 'failed invalid sent'],
    ['a CR in a value', `HTTP/1.1 200 OK\r\nx: a\rb\r\n${body}`, 'failed invalid sent'],
    ['a NUL in a value', `HTTP/1.1 200 OK\r\nx: a\u0000b\r\n${body}`, 'failed invalid sent'],
    ['a field of 20 KiB', `HTTP/1.1 200 OK\r\nx: ${'a'.repeat(20_000)}\r\n${body}`, 'failed invalid sent'],
    ['something that is not HTTP', 'SSH-2.0-OpenSSH\r\n', 'failed invalid sent'],
    ['HTTP/2 frames', '\x00\x00\x00\x04\x00\x00\x00\x00\x00', 'failed invalid sent'],
    ['nothing', '', 'failed reset sent'],
    ['half a head', 'HTTP/1.1 200 OK\r\nx: a', 'failed reset sent'],
    ['a short body', 'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort', '200 cut reset'],
    ['a chunk that is too short', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nshort', '200 cut reset'],
    ['chunks without an end', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n', '200 cut reset'],
    ['a broken chunk length', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n', '200 cut invalid'],
    ['a body ended by the close', 'HTTP/1.1 200 OK\r\n\r\nuntil the end', '200 "until the end"'],
    ['an HTTP/1.0 body ended by the close', 'HTTP/1.0 200 OK\r\n\r\nold', '200 "old"'],
    ['a body on 204', `HTTP/1.1 204 No\r\n${body}`, '204 ""'],
    ['a body on 304', `HTTP/1.1 304 No\r\n${body}`, '304 ""'],
    ['no body on 304 with its length', 'HTTP/1.1 304 No\r\ncontent-length: 2\r\n\r\n', '304 ""'],
    ['bytes after the body', `HTTP/1.1 200 OK\r\n${body}garbage`, '200 "ok"'],
    ['a second response after the first', `HTTP/1.1 200 OK\r\n${body}HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison`, '200 "ok"'],
  ])('with %s is passed on or fails as it must', async (_, bytes, expected) => {
    const opened = await world(once(bytes));
    expect(await outcome(opened.send())).toBe(expected);
    await opened.upstream.allClosed();
  }); // prettier-ignore

  test('of 1,000 fields or more is refused, because Node drops the rest without an error', async () => {
    const fields = (count: number): string => 'x:\r\n'.repeat(count);
    const opened = await world(async (connection) => {
      const count = Number(/^GET \/(\d+)/.exec(await connection.requests(1))?.[1]);
      connection.socket.end(`HTTP/1.1 200 OK\r\nconnection: close\r\n${fields(count)}content-length: 2\r\n\r\nok`);
    });
    expect(await outcome(opened.send({ pathAndQuery: '/900' }))).toBe('200 "ok"');
    expect(await outcome(opened.send({ pathAndQuery: '/1500' }))).toBe('failed invalid sent');
  });

  test('to HEAD has no body whatever its length says, and its connection is used again', async () => {
    const opened = await world(answering('HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n'));
    for (const _ of [1, 2, 3]) expect(await outcome(opened.send({ method: 'HEAD' }))).toBe('200 ""');
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test.each(['204 No Content', '304 Not Modified'])('with %s leaves its connection usable', async (status) => {
    const opened = await world(answering(`HTTP/1.1 ${status}\r\nx: y\r\n\r\n`));
    for (const _ of [1, 2, 3]) expect(await outcome(opened.send())).toBe(`${status.slice(0, 3)} ""`);
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('that is sent unasked on an idle connection reaches no call', async () => {
    const good = 'HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood';
    const opened = await world(async (connection) => {
      await connection.requests(1);
      connection.send(good);
      if (connection.number > 0) return;
      setImmediate(() => connection.send('HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison'));
    });
    expect(await outcome(opened.send())).toBe('200 "good"');
    await opened.upstream.allClosed();
    expect(await outcome(opened.send())).toBe('200 "good"');
    expect(opened.upstream.connections).toHaveLength(2);
  });

  const whole = {
    'a counted': 'HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 12\r\n\r\nHello World!',
    'a chunked': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nHello \r\n6\r\nWorld!\r\n0\r\n\r\n',
  };
  const cuts = Object.entries(whole).flatMap(([name, bytes]) =>
    (['end', 'reset'] as const).map((how) => [name, how, bytes] as const),
  );
  test.each(cuts)('of %s body, cut by %s after any number of bytes, never ends cleanly', async (_, how, bytes) => {
    const opened = await world(async (connection) => {
      const cut = Number(/^GET \/(\d+)/.exec(await connection.requests(1))?.[1]);
      connection.socket.write(bytes.slice(0, cut), 'latin1', () => {
        // The reset would overtake bytes that the other side has not read yet, so it comes a turn later.
        setTimeout(() => (how === 'end' ? connection.socket.end() : connection.socket.resetAndDestroy()), 5);
      });
    });
    const got = await Promise.all(
      Array.from({ length: bytes.length }, (__, cut) => outcome(opened.send({ pathAndQuery: `/${cut}` }))),
    );
    const headEnd = bytes.indexOf('\r\n\r\n') + 4;
    got.forEach((result, cut) => {
      expect(`${cut}: ${result}`).toBe(`${cut}: ${cut < headEnd ? 'failed reset sent' : '200 cut reset'}`);
    });
  });

  test('that ends with the connection does not end cleanly when the connection is reset instead', async () => {
    const opened = await world(async (connection) => {
      await connection.requests(1);
      connection.send('HTTP/1.1 200 OK\r\n\r\npart of it');
      await connection.until((received) => received.includes('\r\n\r\n'));
      setTimeout(() => connection.socket.resetAndDestroy(), 5);
    });
    expect(await outcome(opened.send())).toBe('200 cut reset');
  });

  test('that comes while the body is still being sent is passed on', async () => {
    const opened = await world(async (connection) => {
      await connection.until((received) => received.includes('\r\n\r\n'));
      connection.socket.pause();
      connection.send('HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig');
    });
    const body = Buffer.alloc(16 * 1024 * 1024);
    const fields = { host: 'x', 'content-length': String(body.length) };
    expect(await outcome(opened.send({ method: 'POST', fields, body }))).toBe('413 "big"');
    opened.upstream.connections[0]?.socket.resume();
    await opened.upstream.allClosed();
  });

  test('that refuses a large body ends the upload', async () => {
    const body = Buffer.alloc(16 * 1024 * 1024);
    const opened = await world(async (connection) => {
      await connection.until((received) => received.length > 0);
      connection.send('HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\n');
      for (let read = -1; read < connection.socket.bytesRead;) {
        read = connection.socket.bytesRead;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      connection.send('big');
    });
    const fields = { host: 'x', 'content-length': String(body.length) };
    expect(await outcome(opened.send({ method: 'POST', fields, body }))).toBe('413 "big"');
    await opened.upstream.allClosed();
    expect(opened.upstream.connections[0]?.received().length).toBeLessThan(body.length);
  });

  test.each([
    ['ends its connection', (socket: Socket) => void socket.end()],
    ['closes its connection', (socket: Socket) => void socket.destroy()],
    ['resets its connection', (socket: Socket) => void socket.resetAndDestroy()],
  ])('of an upstream that has not read the body and %s is passed on', async (_how, close) => {
    const opened = await world(async (connection) => {
      await connection.until((received) => received.includes('\r\n\r\n'));
      const status = /^POST \/(\d+)/.exec(connection.received())?.[1];
      const response = `HTTP/1.1 ${status} x\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbig`;
      connection.socket.write(response, () => close(connection.socket));
    });
    for (const status of [413, 401, 200])
      for (const bytes of [10_000, 8_000_000]) {
        const fields = { host: 'x', 'content-length': String(bytes) };
        const upload = { method: 'POST', pathAndQuery: `/${status}`, fields, body: Buffer.alloc(bytes) };
        expect(await outcome(opened.send(upload))).toBe(`${status} "big"`);
      }
  });

  test('that comes before a large body was read does not end the upload when it is no refusal', async () => {
    const body = Buffer.alloc(16 * 1024 * 1024);
    const opened = await world(async (connection) => {
      await connection.until((received) => received.length > 0);
      connection.send('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n');
      while (connection.socket.bytesRead <= body.length) await new Promise((resolve) => connection.socket.once('data', resolve));
      connection.send('2\r\nok\r\n0\r\n\r\n');
    });
    const fields = { host: 'x', 'content-length': String(body.length) };
    expect(await outcome(opened.send({ method: 'POST', fields, body }))).toBe('200 "ok"');
  });

  test('is streamed: each event arrives before the next is sent', async () => {
    let go = (): void => {};
    const next = new Promise<void>((resolve) => (go = resolve));
    const opened = await world(async (connection) => {
      await connection.requests(1);
      connection.send('HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n');
      connection.send('9\r\ndata: 1\n\n\r\n');
      await next;
      connection.send('9\r\ndata: 2\n\n\r\n0\r\n\r\n');
    });
    const { body } = await opened.send();
    const events: string[] = [];
    for await (const chunk of body) {
      events.push(String(chunk));
      go();
    }
    expect(events).toEqual(['data: 1\n\n', 'data: 2\n\n']);
  });

  test('is received no faster than it is read', async () => {
    const size = 64 * 1024 * 1024;
    const opened = await world(async (connection) => {
      await connection.requests(1);
      connection.send(`HTTP/1.1 200 OK\r\ncontent-length: ${size}\r\n\r\n`);
      connection.socket.write(Buffer.alloc(size));
    });
    const { body } = await opened.send();
    const upstream = opened.upstream.connections[0]?.socket;
    const sent = (): number => (upstream?.bytesWritten ?? 0) - (upstream?.writableLength ?? 0);
    let before = -1;
    while (before !== sent()) {
      before = sent();
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    expect(upstream?.writableLength).toBeGreaterThan(size / 2);
    expect(body.readableLength).toBeLessThan(1024 * 1024);
    body.destroy();
    await opened.upstream.allClosed();
  });

  test('that is a redirect is a response like any other', async () => {
    const opened = await world(once('HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n'));
    const response = await opened.send();
    expect(response.head).toMatchObject({ status: 302, rawFields: ['Location', 'http://169.254.169.254/', 'content-length', '0'] });
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('that is invalid makes an error that says nothing of its content or its origin', async () => {
    const opened = await world(once('HTTP/1.1 200 OK\r\ncanary\r\n\r\n'));
    const error = await failure(opened.send({ pathAndQuery: '/canary' }));
    expect(JSON.stringify(Object.getOwnPropertyNames(error).filter((name) => name !== 'stack').map((name) => Reflect.get(error, name)))).not.toMatch(/canary|127\.0\.0\.1/);
  });
}); // prettier-ignore
