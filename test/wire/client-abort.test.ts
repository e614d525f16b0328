/** A client that leaves, at every stage of its call. */
import { describe, expect, test } from '@jest/globals';
import { PassThrough, Readable } from 'node:stream';
import type { ResponseEnd, Call, Outcome } from '../../src/call.ts';
import { held, later, outcomeOf, settled, startDataServer } from '../ingress/data-server-fixture.ts';
import type { RawClient } from '../support/raw-client.ts';

const get = 'GET /proxy?target=x HTTP/1.1\r\nHost: a\r\n\r\n';
const leave: readonly (readonly [string, (raw: RawClient) => void])[] = [
  ['closes', (raw) => raw.socket.destroy()],
  ['resets', (raw) => raw.abort()],
  ['half-closes', (raw) => raw.halfClose()],
];

/** Settles as a journey does that waits with the call's signal. */
const untilGone = (call: Call): Promise<never> =>
  new Promise((_resolve, reject) => {
    call.clientGone.addEventListener('abort', () => reject(call.clientGone.reason as Error));
  });

describe.each(leave)('a client that %s', (_name, go) => {
  test('while it sends the head leaves nothing behind', async () => {
    const { client, data, calls, bugs } = await startDataServer();
    const raw = await client();
    await raw.send(get.slice(0, 30));
    go(raw);
    await settled(() => data.stats().connections === 0);
    expect(calls).toHaveLength(0);
    expect(bugs).toEqual([]);
  });

  test('while it sends the body aborts its call', async () => {
    const { client, data, calls, bugs } = await startDataServer(async (call) => {
      await call.readBody('w');
      throw new Error('a cut body was taken for whole');
    });
    const raw = await client();
    await raw.send('POST /proxy HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc');
    await settled(() => data.stats().heldBytes === 3);
    go(raw);
    await settled(() => data.stats().openCalls === 0 && held(data) === 0);
    expect(calls[0]?.clientGone.aborted).toBe(true);
    expect(bugs).toEqual([]);
  });

  test('while its call waits aborts the call and gets no response', async () => {
    const { client, data, calls, bugs } = await startDataServer(untilGone);
    const raw = await client();
    await raw.send(get);
    await settled(() => calls.length === 1);
    go(raw);
    await settled(() => data.stats().openCalls === 0 && data.stats().connections === 0);
    expect(calls[0]?.clientGone.aborted).toBe(true);
    expect((await raw.closed).bytes).toHaveLength(0);
    expect(bugs).toEqual([]);
  });

  test('before an outcome that comes too late ends the body of the outcome and its call, once', async () => {
    const hold = later<Outcome>();
    const ends: ResponseEnd[] = [];
    const { client, calls } = await startDataServer(() => hold.promise);
    const raw = await client();
    await raw.send(get);
    await settled(() => calls.length === 1);
    go(raw);
    await settled(() => calls[0]?.clientGone.aborted === true);
    const body = new PassThrough();
    hold.resolve(outcomeOf({ body, onEnd: (how) => ends.push(how) }));
    await settled(() => ends.length > 0);
    expect(ends).toEqual(['client_gone']);
    expect(body.destroyed).toBe(true);
  });

  test('while it receives the response ends the upstream body, too', async () => {
    const body = new PassThrough();
    const ends: ResponseEnd[] = [];
    const { client, calls, bugs } = await startDataServer(() =>
      Promise.resolve(outcomeOf({ body, onEnd: (how) => ends.push(how) })),
    );
    const raw = await client();
    await raw.send(get);
    body.write('first');
    await raw.until((text) => text.includes('first'));
    go(raw);
    await settled(() => ends.length > 0);
    expect(ends).toEqual(['client_gone']);
    expect(body.destroyed).toBe(true);
    expect(calls[0]?.clientGone.aborted).toBe(true);
    expect(bugs).toEqual([]);
  });
});

test('a refusal for a client that left is not written to any socket', async () => {
  const { client, calls, bugs, data } = await startDataServer(async (call) => {
    await untilGone(call).catch(() => {});
    throw new Error('thrown in the wake of the client');
  });
  const raw = await client();
  await raw.send(get);
  await settled(() => calls.length === 1);
  raw.abort();
  await settled(() => data.stats().openCalls === 0);
  expect(bugs).toHaveLength(1);
});

test('a call whose whole response was sent is not aborted when its client leaves', async () => {
  const ends: ResponseEnd[] = [];
  const { client, calls, data } = await startDataServer(() =>
    Promise.resolve(outcomeOf({ onEnd: (how) => ends.push(how) })),
  );
  const raw = await client();
  await raw.send(get);
  await raw.responses(1);
  await settled(() => ends.length === 1);
  raw.abort();
  await settled(() => data.stats().connections === 0);
  expect(ends).toEqual(['complete']);
  expect(calls[0]?.clientGone.aborted).toBe(false);
});

test('all calls of a connection are aborted when the connection is lost', async () => {
  const { client, calls, data } = await startDataServer(untilGone);
  const raw = await client();
  await raw.send(get.repeat(5));
  await settled(() => calls.length === 5);
  raw.abort();
  await settled(() => data.stats().openCalls === 0);
  expect(calls.map((call) => call.clientGone.aborted)).toEqual(Array.from({ length: 5 }, () => true));
});

test('a client that half-closes and does not read its response counts as gone, although bytes for it still wait', async () => {
  const body = new Readable({
    read() {
      this.push(Buffer.alloc(64 * 1_024));
    },
  });
  const ends: ResponseEnd[] = [];
  const { client } = await startDataServer(() =>
    Promise.resolve(outcomeOf({ body, onEnd: (how) => ends.push(how) })),
  );
  const raw = await client();
  raw.socket.pause();
  await raw.send(get);
  // Full: the upstream body is not read any more.
  await settled(() => body.readableFlowing === false);
  raw.halfClose();
  await settled(() => ends.length > 0);
  expect(ends).toEqual(['client_gone']);
  expect(body.destroyed).toBe(true);
});
