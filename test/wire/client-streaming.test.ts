/** Responses on their way to the client: at once, at the client's pace, whole or visibly broken. */
import { describe, expect, test } from '@jest/globals';
import { PassThrough, Readable } from 'node:stream';
import type { ResponseEnd } from '../../src/call.ts';
import { later, outcomeOf, settled, startDataServer } from '../ingress/data-server-fixture.ts';
import { readResponses } from '../support/raw-client.ts';

const get = 'GET /proxy?target=x HTTP/1.1\r\nHost: a\r\n\r\n';
function streaming(body: Readable, fields: readonly string[] = []) {
  const ends: ResponseEnd[] = [];
  const start = () =>
    startDataServer(() => Promise.resolve(outcomeOf({ body, fields, onEnd: (how) => ends.push(how) })));
  return { ends, start };
}

test('the head of a response is sent before the first byte of its body', async () => {
  const body = new PassThrough();
  const { ends, start } = streaming(body);
  const { client } = await start();
  const raw = await client();
  await raw.send(get);
  expect(await raw.until((text) => text.endsWith('\r\n\r\n'))).toMatch(/^HTTP\/1\.1 200 /);
  for (const part of ['one', 'two', 'three']) {
    body.write(part);
    await raw.until((text) => text.includes(part));
  }
  expect(ends).toEqual([]);
  body.end();
  expect((await raw.responses(1))[0]?.body.toString()).toBe('onetwothree');
  await settled(() => ends.length === 1);
  expect(ends).toEqual(['complete']);
});

test.each([0, 1, 256, 8_191, 8_192, 8_193, 70_000])(
  'a whole response of %d bytes of every value arrives unchanged',
  async (length) => {
    const body = Buffer.from(Array.from({ length }, (_, at) => 255 - (at % 256)));
    const { client } = await startDataServer(() => Promise.resolve(outcomeOf({ body })));
    const raw = await client();
    // Twice on one connection: the first one's framing must be right for the second to be found.
    await raw.send(get + get);
    const responses = await raw.responses(2);
    expect(responses.map((response) => response.body.equals(body))).toEqual([true, true]);
  },
);

test('a small response that is complete is sent in one piece', async () => {
  const { client } = await startDataServer();
  const raw = await client();
  const pieces: number[] = [];
  raw.socket.on('data', (piece) => pieces.push(piece.length));
  await raw.send(get);
  await raw.responses(1);
  expect(pieces).toHaveLength(1);
});

test('a slow client slows the upstream down and gets every byte', async () => {
  const piece = Buffer.alloc(64 * 1_024, 'x');
  const pieces = 400;
  let produced = 0;
  const body = new Readable({
    read() {
      produced += 1;
      this.push(produced > pieces ? null : piece);
    },
  });
  const { ends, start } = streaming(body, ['Content-Length', String(pieces * piece.length)]);
  const { client } = await start();
  const raw = await client();
  raw.socket.pause();
  await raw.send(get.replace('\r\n\r\n', '\r\nConnection: close\r\n\r\n'));
  // Production stops by itself: the figure stays the same over many ticks of the event loop.
  let stalledAt = 0;
  let checks = 0;
  await settled(() => {
    checks = produced > 0 && produced === stalledAt ? checks + 1 : 0;
    stalledAt = produced;
    return checks > 500;
  });
  expect(produced).toBeLessThan(pieces);
  expect(ends).toEqual([]);
  raw.socket.resume();
  const { bytes } = await raw.closed;
  expect(readResponses(bytes).responses[0]?.body).toHaveLength(pieces * piece.length);
  await settled(() => ends.length === 1);
  expect(ends).toEqual(['complete']);
});

describe('a client that does not read its response', () => {
  const endless = () =>
    new Readable({
      read() {
        this.push(Buffer.alloc(64 * 1_024));
      },
    });
  const reading = async (maxUnreadMs: number, body: Readable | Buffer) => {
    const ends: ResponseEnd[] = [];
    const { client } = await startDataServer(() =>
      Promise.resolve(outcomeOf({ body, maxUnreadMs, onEnd: (how) => ends.push(how) })),
    );
    const raw = await client();
    raw.socket.pause();
    await raw.send(get);
    return { raw, ends };
  };

  test('is cut off after the time limit while bytes wait for it: the body ends and the connection is reset', async () => {
    const body = endless();
    const { raw, ends } = await reading(50, body);
    await settled(() => ends.length > 0);
    expect(ends).toEqual(['client_gone']);
    expect(body.destroyed).toBe(true);
    raw.socket.resume();
    expect((await raw.closed).reset).toBe(true);
  });

  // The system's buffers take some megabytes of it.
  const large = Buffer.alloc(32 * 1_048_576);

  test('is cut off as well when nothing of the response is left to be read of the upstream', async () => {
    const { raw, ends } = await reading(50, large);
    await settled(() => ends.length > 0);
    expect(ends).toEqual(['client_gone']);
    raw.socket.resume();
    expect((await raw.closed).reset).toBe(true);
  });

  test('is only slow while it takes a little of it within each limit, also of a response that was handed over as a whole', async () => {
    // Long enough for a machine that stands still for a moment.
    const { raw, ends } = await reading(5_000, large);
    // In all longer than the limit. The system hands its buffers on by the megabyte.
    for (let taken = 0; taken < large.length; taken = raw.socket.bytesRead) {
      await new Promise((resolve) => setTimeout(resolve, 250));
      raw.socket.resume();
      await settled(() => raw.socket.bytesRead >= Math.min(taken + 1_048_576, large.length));
      raw.socket.pause();
    }
    raw.socket.resume();
    expect((await raw.responses(1))[0]?.body).toHaveLength(large.length);
    expect(ends).toEqual(['complete']);
  });

  test('is reset, too, when its response breaks while it is held back for long', async () => {
    const body = endless();
    const { raw, ends } = await reading(60_000, body);
    await settled(() => body.isPaused());
    await new Promise((resolve) => setTimeout(resolve, 1_050));
    body.destroy(new Error('the limit of the exchange'));
    await settled(() => ends.length > 0);
    expect(ends).toEqual(['upstream_cut']);
    raw.socket.resume();
    expect((await raw.closed).reset).toBe(true);
  });

  test('is not cut off for a whole response that waits behind another one on its connection', async () => {
    const first = later<void>();
    const second = Buffer.alloc(200_000);
    const { client, calls } = await startDataServer(async () => {
      if (calls.length > 1) return outcomeOf({ body: second, maxUnreadMs: 50 });
      await first.promise;
      return outcomeOf();
    });
    const raw = await client();
    await raw.send(get + get);
    await settled(() => calls.length === 2);
    await new Promise((resolve) => setTimeout(resolve, 200));
    first.resolve();
    expect((await raw.responses(2))[1]?.body).toHaveLength(second.length);
  });

  test('is not cut off while no bytes wait for it', async () => {
    const body = new PassThrough();
    const { raw, ends } = await reading(20, body);
    body.write('first');
    await new Promise((resolve) => setTimeout(resolve, 80));
    expect(ends).toEqual([]);
    body.end('last');
    raw.socket.resume();
    expect((await raw.responses(1))[0]?.body.toString()).toBe('firstlast');
    await settled(() => ends.length > 0);
    expect(ends).toEqual(['complete']);
  });
});

describe('a response whose upstream body breaks', () => {
  const parts = 'abcdefgh';
  const cuts = Array.from({ length: parts.length }, (_, at) => at);

  test.each(cuts)('after %d bytes never ends cleanly when it is chunked', async (at) => {
    const body = new PassThrough();
    const { ends, start } = streaming(body);
    const { client, bugs } = await start();
    const raw = await client();
    await raw.send(get);
    for (const byte of parts.slice(0, at)) body.write(byte);
    await raw.until((text) => text.includes('\r\n\r\n'));
    body.destroy(new Error('reset'));
    const { bytes } = await raw.closed;
    expect(readResponses(bytes, [], true).responses).toHaveLength(0);
    expect(ends).toEqual(['upstream_cut']);
    expect(bugs).toEqual([]);
  });

  test.each(cuts)('after %d bytes never ends cleanly when it has a length', async (at) => {
    const body = new PassThrough();
    const { ends, start } = streaming(body, ['Content-Length', String(parts.length)]);
    const { client } = await start();
    const raw = await client();
    await raw.send(get);
    if (at > 0) body.write(parts.slice(0, at));
    await raw.until((text) => text.includes('\r\n\r\n'));
    // An end that comes too early is a cut as well.
    if (at % 2 === 0) body.end();
    else body.destroy();
    const { bytes } = await raw.closed;
    expect(readResponses(bytes, [], true).responses).toHaveLength(0);
    expect(ends).toEqual(['upstream_cut']);
  });

  test('is reset for a client of HTTP/1.0, for which the end of the connection is the end of the body', async () => {
    const body = new PassThrough();
    const { ends, start } = streaming(body);
    const { client } = await start();
    const raw = await client();
    await raw.send('GET /proxy?target=x HTTP/1.0\r\n\r\n');
    body.write('one');
    await raw.until((text) => text.includes('one'));
    body.destroy();
    expect((await raw.closed).reset).toBe(true);
    expect(ends).toEqual(['upstream_cut']);
  });

  test('is cut also when it has more bytes than it announced', async () => {
    const { ends, start } = streaming(Readable.from([Buffer.from('onetwo')]), ['Content-Length', '3']);
    const { client } = await start();
    const raw = await client();
    await raw.send(get + get);
    const { bytes } = await raw.closed;
    // No hex digits: any three of them may stand in the id of the request.
    expect(bytes.toString()).not.toContain('two');
    expect(ends[0]).toBe('upstream_cut');
  });

  test('is noticed although the body broke before it was read', async () => {
    const body = new PassThrough();
    body.on('error', () => {});
    body.destroy(new Error('reset'));
    const { ends, start } = streaming(body);
    const { client } = await start();
    const raw = await client();
    await raw.send(get);
    await raw.closed;
    expect(ends).toEqual(['upstream_cut']);
  });
});
