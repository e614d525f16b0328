/** Request bodies: bounded in every direction, read only when asked for, given back exactly once. */
import { describe, expect, test } from '@jest/globals';
import { once } from 'node:events';
import { Readable } from 'node:stream';
import { Refusal } from '../../src/errors.ts';
import type { Call } from '../../src/call.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { readResponses } from '../support/raw-client.ts';
import {
  held,
  later,
  outcomeOf,
  serverSettings,
  settled,
  startDataServer,
} from '../ingress/data-server-fixture.ts';

/** Whom the bytes count for: the workspace that a test names, otherwise one per call. */
function ownerOf(call: Call): string {
  const at = call.rawFields.indexOf('X-Owner');
  return at < 0 ? call.id : (call.rawFields[at + 1] ?? '');
}
async function echo(call: Call) {
  const { bytes, replayable } = await call.readBody(ownerOf(call));
  return outcomeOf({ body: bytes, fields: ['X-Replayable', String(replayable)] });
}
const upload = (...fields: string[]): string =>
  ['POST /proxy?target=x HTTP/1.1', 'Host: a', ...fields, '', ''].join('\r\n');
const withLength = (bytes: number): string => upload(`Content-Length: ${bytes}`);
const chunk = (bytes: number): string => `${bytes.toString(16)}\r\n${'x'.repeat(bytes)}\r\n`;
const { maxBodyBytes, maxReplayBytes } = serverSettings;

describe('the body of a request', () => {
  test.each([0, 1, maxReplayBytes, maxReplayBytes + 1, maxBodyBytes])(
    'of %d bytes arrives as sent',
    async (size) => {
      const { client } = await startDataServer(echo);
      const raw = await client();
      await raw.send(withLength(size) + 'x'.repeat(size) + upload('Transfer-Encoding: chunked'));
      if (size > 0) await raw.send(chunk(size));
      await raw.send('0\r\n\r\n');
      for (const response of await raw.responses(2)) {
        expect(response.body.toString()).toBe('x'.repeat(size));
        expect(response.field('x-replayable')).toBe(String(size <= maxReplayBytes));
      }
    },
  );

  test('arrives unchanged, whatever its bytes are', async () => {
    const { client } = await startDataServer(echo);
    const raw = await client();
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
    await raw.send(Buffer.concat([Buffer.from(withLength(256)), bytes]));
    expect((await raw.responses(1))[0]?.body).toEqual(bytes);
  });

  test('arrives whole when head and body come one byte at a time', async () => {
    const { client } = await startDataServer(echo);
    const raw = await client();
    for (const byte of withLength(5) + 'abcde') await raw.send(byte);
    expect((await raw.responses(1))[0]?.body.toString()).toBe('abcde');
  });

  test('arrives without its trailers', async () => {
    const { client, calls } = await startDataServer(echo);
    const raw = await client();
    await raw.send(upload('Transfer-Encoding: chunked') + '1\r\na\r\n0\r\nSluice-Key: k\r\n\r\n');
    expect((await raw.responses(1))[0]?.body.toString()).toBe('a');
    expect(calls[0]?.rawFields).not.toContain('Sluice-Key');
  });
});

describe('the bound of a body', () => {
  test('refuses a longer announced body before the body is sent', async () => {
    const { client } = await startDataServer(echo);
    const raw = await client();
    await raw.send(withLength(maxBodyBytes + 1));
    const [response] = await raw.responses(1);
    expect([response?.status, response?.field('sluice-error')]).toEqual([413, 'body_too_large']);
    expect(response?.field('connection')).toBe('close');
    await raw.closed;
  });

  test('refuses a longer unannounced body where it passes the bound', async () => {
    const { client, data } = await startDataServer(echo);
    const raw = await client();
    await raw.send(upload('Transfer-Encoding: chunked') + chunk(maxBodyBytes));
    await settled(() => data.stats().heldBytes === maxBodyBytes);
    expect(raw.received()).toHaveLength(0);
    await raw.send(chunk(1));
    const [response] = await raw.responses(1);
    expect([response?.status, response?.field('connection')]).toEqual([413, 'close']);
    await raw.closed;
    await settled(() => held(data) === 0);
  });

  test('lets a client that goes on sending read the refusal, without a reset', async () => {
    const { client } = await startDataServer(echo, { lingerMs: 5_000 });
    const raw = await client();
    const size = 30_000_000;
    await raw.send(withLength(size));
    await raw.send('x'.repeat(size));
    const { bytes, reset } = await raw.closed;
    expect(bytes.toString()).toMatch(/^HTTP\/1\.1 413 /);
    expect(reset).toBe(false);
  });

  test('gives no second response to what follows the refused body', async () => {
    const { client, data } = await startDataServer(echo, { lingerMs: 5_000 });
    const raw = await client();
    await raw.send(upload('Transfer-Encoding: chunked') + chunk(maxBodyBytes) + chunk(1));
    await raw.responses(1);
    const noticed = once(data.server, 'clientError');
    await raw.send('zz\r\n');
    await noticed;
    const { responses, rest } = readResponses((await raw.closed).bytes);
    expect(responses.map(({ status }) => status)).toEqual([413]);
    expect(rest).toHaveLength(0);
  });

  test('ends the connection without serving further requests on it', async () => {
    const { client, calls } = await startDataServer(echo, { lingerMs: 5_000 });
    const raw = await client();
    await raw.send(withLength(maxBodyBytes + 1));
    await raw.responses(1);
    await raw.send('x'.repeat(maxBodyBytes + 1) + withLength(1) + 'y');
    const { bytes } = await raw.closed;
    expect(bytes.toString().match(/HTTP\/1\.1/g)).toHaveLength(1);
    expect(calls).toHaveLength(1);
  });
});

describe('the bound of all bodies in a process', () => {
  test('counts bodies while calls wait, refuses with overloaded, and frees their bytes', async () => {
    const hold = later<void>();
    const { client, data } = await startDataServer(async (call) => {
      const outcome = await echo(call);
      await hold.promise;
      return outcome;
    });
    const [first, second, third, fourth] = await Promise.all([client(), client(), client(), client()]);
    await first.send(withLength(10_000) + 'x'.repeat(10_000));
    await second.send(withLength(10_000) + 'x'.repeat(10_000));
    await settled(() => data.stats().heldBytes === 20_000);
    // Announced: refused before a byte is read.
    await third.send(withLength(5_001));
    // Not announced: refused when it no longer fits.
    await fourth.send(upload('Transfer-Encoding: chunked') + chunk(5_001));
    for (const raw of [third, fourth]) {
      const [response] = await raw.responses(1);
      expect([response?.status, response?.field('sluice-error')]).toEqual([503, 'overloaded']);
      // Longer than a second where the machine has let nothing end for longer.
      expect(response?.field('retry-after')).toMatch(/^[1-9]\d*$/);
    }
    expect(data.stats().heldBytes).toBe(20_000);
    hold.resolve();
    await first.responses(1);
    await second.responses(1);
    await settled(() => held(data) === 0);
  });

  test('lets one workspace use half of it, so that other workspaces go on', async () => {
    const hold = later<void>();
    const { client, data } = await startDataServer(async (call) => {
      const outcome = await echo(call);
      await hold.promise;
      return outcome;
    });
    const as = (owner: string, bytes: number): string =>
      upload(`X-Owner: ${owner}`, `Content-Length: ${bytes}`) + 'x'.repeat(bytes);
    const [first, announced, unannounced, other] = await Promise.all([
      client(),
      client(),
      client(),
      client(),
    ]);
    await first.send(as('greedy', 10_000));
    await settled(() => data.stats().heldBytes === 10_000);
    await announced.send(as('greedy', 2_501));
    await unannounced.send(upload('X-Owner: greedy', 'Transfer-Encoding: chunked') + chunk(2_501));
    for (const raw of [announced, unannounced]) {
      const [response] = await raw.responses(1);
      expect([response?.status, response?.field('sluice-error')]).toEqual([503, 'overloaded']);
    }
    await other.send(as('modest', 10_000));
    await settled(() => data.stats().heldBytes === 20_000);
    hold.resolve();
    expect((await first.responses(1))[0]?.status).toBe(200);
    expect((await other.responses(1))[0]?.status).toBe(200);
    // What was given back may be held again.
    await first.send(as('greedy', 10_000));
    expect((await first.responses(2))[1]?.status).toBe(200);
  });

  test('frees the bytes of an aborted upload', async () => {
    const { client, data, calls, bugs } = await startDataServer(echo);
    const raw = await client();
    await raw.send(withLength(9_000) + 'x'.repeat(4_000));
    await settled(() => data.stats().heldBytes === 4_000);
    raw.abort();
    await settled(() => held(data) === 0);
    expect(calls[0]?.clientGone.aborted).toBe(true);
    expect(bugs).toEqual([]);
  });
});

describe('a body that the call does not read', () => {
  test('is not received, and the connection ends with the response', async () => {
    const { client, data } = await startDataServer(() => Promise.reject(new Refusal('unauthenticated')));
    const raw = await client();
    await raw.send(withLength(9_000) + 'x'.repeat(4_000));
    const [response] = await raw.responses(1);
    expect([response?.status, response?.field('connection')]).toEqual([401, 'close']);
    expect(data.stats().heldBytes).toBe(0);
    await raw.closed;
  });

  test.each(['stream', 'bytes'])('ends the connection also after a whole response of %s', async (kind) => {
    const { client } = await startDataServer(() =>
      Promise.resolve(outcomeOf(kind === 'bytes' ? {} : { body: Readable.from([Buffer.from('fine')]) })),
    );
    const raw = await client();
    await raw.send(withLength(9_000));
    const [response] = await raw.responses(1);
    expect([response?.body.toString(), response?.field('connection')]).toEqual(['fine', 'close']);
    await raw.closed;
  });
});

describe('Expect: 100-continue', () => {
  const asking = upload('Content-Length: 3', 'Expect: 100-continue');

  test('is responded to with 100 only when the body is read', async () => {
    const admitted = later<void>();
    const { client, calls } = await startDataServer(async (call) => {
      await admitted.promise;
      return echo(call);
    });
    const raw = await client();
    await raw.send(asking);
    await settled(() => calls.length === 1);
    expect(raw.received()).toHaveLength(0);
    admitted.resolve();
    expect(await raw.until((text) => text.endsWith('\r\n\r\n'))).toBe('HTTP/1.1 100 Continue\r\n\r\n');
    await raw.send('abc');
    const responses = await raw.responses(2);
    expect(responses.map(({ status, body }) => [status, body.toString()])).toEqual([
      [100, ''],
      [200, 'abc'],
    ]);
  });

  test.each([
    ['a refused caller', () => Promise.reject(new Refusal('unauthenticated')), asking, 401],
    ['a body that is too long', echo, asking.replace('3', '99999'), 413],
    ['a wrong route', echo, asking.replace('/proxy', '/other'), 404],
  ])('gets no 100 for %s', async (_name, handle, bytes, status) => {
    const { client } = await startDataServer(handle);
    const raw = await client();
    await raw.send(bytes);
    const { bytes: received } = await raw.closed;
    expect(received.toString()).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
    expect(received.toString()).toMatch(/connection: close/i);
  });

  test('on a request without a body gets no 100 either', async () => {
    const { client } = await startDataServer(echo);
    const raw = await client();
    await raw.send('GET /proxy?target=x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n');
    const { bytes } = await raw.closed;
    expect(bytes.toString()).toMatch(/^HTTP\/1\.1 200 /);
  });

  test('keeps the connection when the 100 was sent', async () => {
    const { client } = await startDataServer(echo);
    const raw = await client();
    await raw.send(asking);
    await raw.responses(1);
    await raw.send('abc');
    expect((await raw.responses(2))[1]?.field('connection')).toBe('keep-alive');
    await raw.send(withLength(1) + 'd');
    expect((await raw.responses(3))[2]?.body.toString()).toBe('d');
  });

  test.each([
    ['unread although it is all there', asking + 'abc'],
    ['of a request without one', 'GET /proxy HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n'],
  ])('with a body %s ends the connection, so that nothing behind it is served', async (_name, bytes) => {
    const { client, calls } = await startDataServer(() => Promise.resolve(outcomeOf()));
    const raw = await client();
    await raw.send(bytes + withLength(0));
    const { bytes: received } = await raw.closed;
    expect(received.toString().match(/HTTP\/1\.1/g)).toHaveLength(1);
    expect(received.toString()).toMatch(/connection: close/i);
    expect(calls).toHaveLength(1);
  });

  test('ends the connection with a request behind it that did not wait, instead of leaving that request open', async () => {
    const admitted = later<void>();
    const { client, calls, data } = await startDataServer(async (call) => {
      await admitted.promise;
      return echo(call);
    });
    const raw = await client();
    const requests = new Promise<void>((resolve) => data.server.on('request', () => resolve()));
    await raw.send(asking + 'abc' + withLength(0));
    await requests;
    admitted.resolve();
    const { responses } = readResponses((await raw.closed).bytes);
    expect(responses.map(({ status }) => status)).toEqual([200]);
    expect(responses[0]?.field('connection')).toBe('close');
    expect(calls).toHaveLength(1);
  });

  test('is ignored for HTTP/1.0', async () => {
    const { client } = await startDataServer(echo);
    const raw = await client();
    await raw.send('POST /proxy HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc');
    expect((await raw.closed).bytes.toString()).toMatch(/^HTTP\/1\.1 200 [^]*abc$/);
  });
});

test('a body may take as long as it moves, and is given up when it hardly does', async () => {
  const clock = new FakeClock();
  const pass = (ms: number) => clock.run(clock.monotonic() + ms);
  const settings = { ...serverSettings, maxBodyBytes: 1_000_000, maxHeldBytes: 2_000_000 };
  const { client, data } = await startDataServer(echo, { clock, settings });
  const raw = await client();
  const part = 'x'.repeat(31 * 1024);
  await raw.send(withLength(5 * part.length + 2));
  await settled(() => clock.timers > 0);
  for (let sent = 1; sent <= 5; sent += 1) {
    await raw.send(part);
    await settled(() => data.stats().heldBytes === sent * part.length);
    await pass(30_000);
  }
  await raw.send('x');
  await settled(() => data.stats().heldBytes === 5 * part.length + 1);
  expect(raw.received()).toHaveLength(0);
  await pass(30_000);
  const [response] = await raw.responses(1);
  expect([response?.status, response?.field('sluice-error')]).toEqual([408, 'request_invalid']);
});
