/** Responses on their way to the client: at once, at the client's pace, whole or visibly broken. */
import { describe, expect, test } from '@jest/globals';
import { PassThrough, Readable } from 'node:stream';
import type { Outcome, ResponseEnd } from '../../src/call.ts';
import { outcomeOf, settled } from '../ingress/data-server-fixture.ts';
import { readResponses } from '../support/raw-client.ts';
import { allOf, get, served } from './served.ts';

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** A server that responds with this body to a client that has asked for it, and how its responses ended. */
async function streaming(body: Readable | Buffer, more: Partial<Outcome> = {}, request = get()) {
  const ends: ResponseEnd[] = [];
  const onEnd = (how: ResponseEnd): unknown => ends.push(how);
  const server = await served(() => Promise.resolve(outcomeOf({ body, onEnd, ...more })));
  // With a limit for what is not read: a client that does not read.
  if (more.maxUnreadMs !== undefined) server.raw.socket.pause();
  await server.raw.send(request);
  return { ...server, ends };
}

test('the head of a response is sent before the first byte of its body', async () => {
  const body = new PassThrough();
  const { raw, ends } = await streaming(body);
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

test('a slow client slows the upstream down and gets every byte', async () => {
  const piece = Buffer.alloc(64 * 1_024, 'x');
  const bytes = 400 * piece.length;
  let produced = 0;
  const body = new Readable({
    read() {
      this.push(produced < bytes ? piece : null);
      produced += piece.length;
    },
  });
  const more = { fields: ['Content-Length', String(bytes)], maxUnreadMs: 600_000 };
  const { raw, ends } = await streaming(body, more, get('Connection: close'));
  await settled(() => produced > 0 && body.isPaused());
  expect(produced).toBeLessThan(bytes);
  expect(ends).toEqual([]);
  raw.socket.resume();
  expect((await allOf(raw))[0]?.body).toHaveLength(bytes);
  await settled(() => ends.length === 1);
  expect(ends).toEqual(['complete']);
});

describe('a client that does not read its response', () => {
  const flood = (): Readable =>
    new Readable({
      read() {
        this.push(Buffer.alloc(64 * 1_024));
      },
    });
  // The system's buffers take some megabytes of it.
  const large = Buffer.alloc(32 * 1_048_576);

  test.each([
    ['of an upstream that goes on sending', flood()],
    ['that is there as a whole', large],
  ])('%s is cut off after the time limit: the body ends and the connection is reset', async (_what, body) => {
    const { raw, ends } = await streaming(body, { maxUnreadMs: 50 });
    await settled(() => ends.length > 0);
    expect(ends).toEqual(['client_gone']);
    if (body instanceof Readable) expect(body.destroyed).toBe(true);
    raw.socket.resume();
    expect((await raw.closed).reset).toBe(true);
  });

  test('is only slow while it takes a little of it within each limit, also of a response that was handed over as a whole', async () => {
    // Long enough for a machine that stands still for a moment.
    const { raw, ends } = await streaming(large, { maxUnreadMs: 5_000 });
    // In all longer than the limit. The system hands its buffers on by the megabyte.
    for (let taken = 0; taken < large.length; taken = raw.socket.bytesRead) {
      await pause(250);
      raw.socket.resume();
      await settled(() => raw.socket.bytesRead >= Math.min(taken + 1_048_576, large.length));
      raw.socket.pause();
    }
    raw.socket.resume();
    expect((await raw.responses(1))[0]?.body).toHaveLength(large.length);
    expect(ends).toEqual(['complete']);
  });

  test('is reset, too, when its response breaks while it is held back for long', async () => {
    const body = flood();
    const { raw, ends } = await streaming(body, { maxUnreadMs: 60_000 });
    await settled(() => body.isPaused());
    await pause(1_050);
    body.destroy(new Error('the limit of the exchange'));
    await settled(() => ends.length > 0);
    expect(ends).toEqual(['upstream_cut']);
    raw.socket.resume();
    expect((await raw.closed).reset).toBe(true);
  });

  test('is not cut off while no bytes wait for it', async () => {
    const body = new PassThrough();
    const { raw, ends } = await streaming(body, { maxUnreadMs: 20 });
    body.write('first');
    await pause(80);
    expect(ends).toEqual([]);
    body.end('last');
    raw.socket.resume();
    expect((await raw.responses(1))[0]?.body.toString()).toBe('firstlast');
  });
});

describe('a response whose upstream body breaks', () => {
  const parts = 'abcdefgh';
  const breaks = {
    'with an error': (body: PassThrough) => body.destroy(new Error('reset')),
    'by an early end': (body: PassThrough) => body.end(),
    'without a word': (body: PassThrough) => body.destroy(),
  };
  const cuts = Array.from(parts, (_, at) => at);

  test.each([
    ['chunked', 'with an error', []],
    ['counted', 'by an early end', ['Content-Length', String(parts.length)]],
    ['counted', 'without a word', ['Content-Length', String(parts.length)]],
  ] as const)('after any bytes of a %s body, %s, never ends cleanly', async (_kind, how, fields) => {
    for (const at of cuts) {
      const body = new PassThrough();
      const { raw, ends, bugs } = await streaming(body, { fields });
      for (const byte of parts.slice(0, at)) body.write(byte);
      await raw.until((text) => text.includes('\r\n\r\n'));
      breaks[how](body);
      const { bytes } = await raw.closed;
      expect([at, readResponses(bytes, [], true).responses.length]).toEqual([at, 0]);
      expect([ends, bugs]).toEqual([['upstream_cut'], []]);
    }
  });

  test('is reset for a client of HTTP/1.0, for which the end of the connection is the end of the body', async () => {
    const body = new PassThrough();
    const { raw, ends } = await streaming(body, {}, 'GET /proxy?target=x HTTP/1.0\r\n\r\n');
    body.write('one');
    await raw.until((text) => text.includes('one'));
    body.destroy();
    expect((await raw.closed).reset).toBe(true);
    expect(ends).toEqual(['upstream_cut']);
  });

  test('is cut also when it has more bytes than it announced', async () => {
    const body = Readable.from([Buffer.from('onetwo')]);
    const { raw, ends } = await streaming(body, { fields: ['Content-Length', '3'] }, get() + get());
    // No hex digits: any three of them may stand in the id of the request.
    expect((await raw.closed).bytes.toString()).not.toContain('two');
    expect(ends[0]).toBe('upstream_cut');
  });
});
