/** Responses that are there with their head are handed on as bytes; all others stay streams. */
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { attempt, type AttemptRequest, type AttemptResult } from '../../src/dispatch/dispatcher.ts';
import type { TransportAttempt } from '../../src/dispatch/transport.ts';
import type { RawConnection, Script } from '../support/raw-upstream.ts';
import { sendingWorlds, text, type SendingWorld } from '../support/sending.ts';

const world = sendingWorlds();

const sendTo = (opened: SendingWorld, changes: Partial<TransportAttempt> = {}): Promise<AttemptResult> =>
  attempt(opened.transport, requestOf(opened, changes), systemClock);

const requestOf = (opened: SendingWorld, changes: Partial<TransportAttempt>): AttemptRequest => ({
  ...opened.attempt(changes),
  kind: 'generic',
  dialect: null,
  callClass: 'default',
  sentAt: systemClock.monotonic(),
  onReady: () => {},
});

/** How the body came, and what it says. */
async function bodyOf(sending: Promise<AttemptResult>): Promise<string> {
  const result = await sending;
  if (result.kind === 'failed') return `failed ${result.error.kind}`;
  if (Buffer.isBuffer(result.body)) return `bytes ${result.body.toString('latin1')}`;
  try {
    return `stream ${await text(result.body)}`;
  } catch {
    return 'stream cut';
  }
}

/** Answers every request on every connection with the same bytes, in one write. */
const always =
  (bytes: string): Script =>
  async (connection) => {
    for (let count = 1; ; count += 1) {
      await connection.requests(count);
      connection.send(bytes);
    }
  };

/** Responds once and ends the connection as the test says. */
const once =
  (bytes: string, end: (connection: RawConnection) => void): Script =>
  async (connection) => {
    await connection.requests(1);
    connection.socket.write(bytes, 'latin1', () => end(connection));
  };

const ok = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';

describe('a small response', () => {
  test('is returned as bytes, and its connection can serve a call that is sent at once', async () => {
    const opened = await world(always(ok));
    const bodies: string[] = [];
    for (let n = 0; n < 10; n += 1) bodies.push(await bodyOf(sendTo(opened)));
    expect(new Set(bodies)).toEqual(new Set(['bytes ok']));
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('keeps its bytes when it is compressed', async () => {
    const packed = gzipSync('hello').toString('latin1');
    const head = `HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: ${packed.length}\r\n\r\n`;
    const opened = await world(always(head + packed));
    expect(await bodyOf(sendTo(opened))).toBe(`bytes ${packed}`);
  });

  test('is whole when the upstream resets the connection behind it', async () => {
    const opened = await world(once(ok, ({ socket }) => socket.resetAndDestroy()));
    expect(['bytes ok', 'failed reset']).toContain(await bodyOf(sendTo(opened)));
    await opened.upstream.allClosed();
  });

  test('stays whole when its call is aborted in the tick in which it came', async () => {
    const opened = await world(always(ok));
    const leaving = new AbortController();
    const { transport } = opened;
    const response = attempt(
      {
        send: async (asked) => {
          const head = await transport.send(asked);
          queueMicrotask(() => queueMicrotask(() => leaving.abort()));
          return head;
        },
      },
      requestOf(opened, { signal: leaving.signal }),
      systemClock,
    );
    expect(await bodyOf(response)).toBe('bytes ok');
  });
});

describe('a response that is not complete at once', () => {
  const head = 'HTTP/1.1 200 OK\r\n';
  test.each([
    ['no body', `${head}content-length: 0\r\n\r\n`, 'GET', 'stream '],
    ['the length of a body that HEAD does not get', `${head}content-length: 2\r\n\r\n`, 'HEAD', 'stream '],
    ['chunks', `${head}transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: y\r\n\r\n`, 'GET', 'stream ok'],
    ['two equal lengths in one line', `${head}content-length: 2, 2\r\n\r\nok`, 'GET', 'failed invalid'],
    ['a length with a zero in front', `${head}content-length: 02\r\n\r\nok`, 'GET', 'stream ok'],
  ])('with %s stays a stream', async (_, bytes, method, expected) => {
    const opened = await world(always(bytes));
    expect(await bodyOf(sendTo(opened, { method }))).toBe(expected);
  });

  test('is a stream when its second half comes later', async () => {
    const opened = await world(async (connection) => {
      await connection.requests(1);
      connection.send(`${head}content-length: 4\r\n\r\nha`);
      await begun;
      connection.send('lf');
    });
    let begin = (): void => {};
    const begun = new Promise<void>((resolve) => (begin = resolve));
    const sending = sendTo(opened);
    await sending;
    begin();
    expect(await bodyOf(sending)).toBe('stream half');
  });

  test('is cut when its connection ends before its length', async () => {
    const opened = await world(once(`${head}content-length: 9\r\n\r\nshort`, ({ socket }) => socket.end()));
    expect(await bodyOf(sendTo(opened))).toBe('stream cut');
  });
});
