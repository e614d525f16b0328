/** Responses that are there with their head are handed on as bytes; all others stay streams. */
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { attempt, type AttemptResult } from '../../src/dispatch/dispatcher.ts';
import type { Transport, TransportAttempt } from '../../src/dispatch/transport.ts';
import { answering } from '../support/raw-upstream.ts';
import { bytes, ending, ok } from '../support/scripts.ts';
import { sendingWorlds, text, type SendingWorld } from '../support/sending.ts';

const world = sendingWorlds();

function sendTo(
  opened: SendingWorld,
  changes: Partial<TransportAttempt> = {},
  transport: Pick<Transport, 'send'> = opened.transport,
): Promise<AttemptResult> {
  const request = { kind: 'generic', dialect: null, callClass: 'default' } as const;
  return attempt(transport, { ...opened.attempt(changes), ...request }, systemClock);
}

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

describe('a small response', () => {
  test('is returned as bytes, and its connection can serve a call that is sent at once', async () => {
    const opened = await world(answering(ok));
    for (let n = 0; n < 10; n += 1) expect(await bodyOf(sendTo(opened))).toBe('bytes ok');
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('is whole when the upstream resets the connection behind it', async () => {
    const opened = await world(async ({ requests, socket }) => {
      await requests(1);
      socket.write(ok, () => socket.resetAndDestroy());
    });
    expect(['bytes ok', 'failed reset']).toContain(await bodyOf(sendTo(opened)));
    await opened.upstream.allClosed();
  });

  test('stays whole when its call is aborted in the tick in which it came', async () => {
    const opened = await world(answering(ok));
    const leaving = new AbortController();
    const send: Transport['send'] = async (asked) => {
      const head = await opened.transport.send(asked);
      queueMicrotask(() => queueMicrotask(() => leaving.abort()));
      return head;
    };
    expect(await bodyOf(sendTo(opened, { signal: leaving.signal }, { send }))).toBe('bytes ok');
  });
});

const start = 'HTTP/1.1 200 OK|';
const packed = gzipSync('hello').toString('latin1');
test.each([
  ['gzip', `${start}content-encoding: gzip|content-length: ${packed.length}||${packed}`, `bytes ${packed}`],
  ['no body', `${start}content-length: 0||`, 'stream '],
  ['chunks', `${start}transfer-encoding: chunked||2|ok|0|x: y||`, 'stream ok'],
  ['two equal lengths in one line', `${start}content-length: 2, 2||ok`, 'failed invalid'],
  ['a length with a zero in front', `${start}content-length: 02||ok`, 'stream ok'],
  ['an end before its length', `${start}content-length: 9||short`, 'stream cut'],
])('a response with %s is handed on as what it is', async (what, response, expected) => {
  const opened = await world(
    what.startsWith('an end') ? ending(bytes(response)) : answering(bytes(response)),
  );
  expect(await bodyOf(sendTo(opened))).toBe(expected);
});

test('a response to HEAD with the length of a body is a stream', async () => {
  const opened = await world(answering(bytes(`${start}content-length: 2||`)));
  expect(await bodyOf(sendTo(opened, { method: 'HEAD' }))).toBe('stream ');
});

test('a response whose second half comes later is a stream', async () => {
  const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
  const opened = await world(async ({ requests, send }) => {
    await requests(1);
    send(bytes(`${start}content-length: 4||ha`));
    await begun;
    send('lf');
  });
  const sending = sendTo(opened);
  await sending;
  begin();
  expect(await bodyOf(sending)).toBe('stream half');
});
