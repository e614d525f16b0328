/** Request bodies: bounded in every direction, read only when asked for, given back exactly once. */
import { describe, expect, test } from '@jest/globals';
import { once } from 'node:events';
import { Readable } from 'node:stream';
import type { Call, Outcome } from '../../src/call.ts';
import { Refusal } from '../../src/errors.ts';
import { held, outcomeOf, serverSettings, settled } from '../ingress/data-server-fixture.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { allOf, answer, echo, get, inShort, served, upload } from './served.ts';

const withLength = (bytes: number, ...more: string[]): string => upload(`Content-Length: ${bytes}`, ...more);
const inChunks = (...more: string[]): string => upload('Transfer-Encoding: chunked', ...more);
const chunk = (bytes: number): string => `${bytes.toString(16)}\r\n${'x'.repeat(bytes)}\r\n`;
const { maxBodyBytes, maxReplayBytes } = serverSettings;
const unauthenticated = (): Promise<never> => Promise.reject(new Refusal('unauthenticated'));

/** Calls that are held before they read their bodies, or before they end. */
async function holding(before: 'reading' | 'the end') {
  const { promise, resolve: release } = Promise.withResolvers<void>();
  const server = await served(async (call) => {
    if (before === 'reading') await promise;
    const outcome = await echo(call);
    await promise;
    return outcome;
  });
  return { ...server, release };
}

describe('the body of a request', () => {
  const sizes = [0, 1, maxReplayBytes, maxReplayBytes + 1, maxBodyBytes];
  test.each(sizes)(
    'of %d bytes of every value arrives as sent, with a length and in a chunk',
    async (size) => {
      const { raw } = await served(echo);
      const body = Buffer.from(Array.from({ length: size }, (_, at) => at % 256));
      await raw.send(Buffer.concat([Buffer.from(withLength(size)), body, Buffer.from(inChunks())]));
      if (size > 0) await raw.send(Buffer.concat([Buffer.from(`${size.toString(16)}\r\n`), body]));
      await raw.send(size > 0 ? '\r\n0\r\n\r\n' : '0\r\n\r\n');
      for (const response of await raw.responses(2)) {
        expect(response.body).toEqual(body);
        expect(response.field('x-replayable')).toBe(String(size <= maxReplayBytes));
      }
    },
  );

  test('arrives without its trailers', async () => {
    const { raw, calls } = await served(echo);
    await raw.send(inChunks() + '1\r\na\r\n0\r\nSluice-Key: k\r\n\r\n');
    expect((await raw.responses(1))[0]?.body.toString()).toBe('a');
    expect(calls[0]?.rawFields).not.toContain('Sluice-Key');
  });

  test('may take as long as it moves, and is given up when it hardly does', async () => {
    const clock = new FakeClock();
    const pass = (ms: number) => clock.run(clock.monotonic() + ms);
    const settings = { ...serverSettings, maxBodyBytes: 1_000_000, maxHeldBytes: 2_000_000 };
    const { raw, data } = await served(echo, { clock, settings });
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
    expect(await answer(raw)).toBe('408 request_invalid close');
  });
});

describe('the bound of a body', () => {
  test('refuses a longer unannounced body where it passes the bound', async () => {
    const { raw, data } = await served(echo);
    await raw.send(inChunks() + chunk(maxBodyBytes));
    await settled(() => data.stats().heldBytes === maxBodyBytes);
    expect(raw.received()).toHaveLength(0);
    await raw.send(chunk(1));
    expect((await allOf(raw)).map(inShort)).toEqual(['413 body_too_large close']);
    await settled(() => held(data) === 0);
  });

  test('lets a client that goes on sending read the refusal, without a reset', async () => {
    const { raw } = await served(echo, { lingerMs: 5_000 });
    await raw.send(withLength(30_000_000));
    await raw.send('x'.repeat(30_000_000));
    const { bytes, reset } = await raw.closed;
    expect([bytes.toString('latin1', 0, 13), reset]).toEqual(['HTTP/1.1 413 ', false]);
  });

  test.each([
    ['garbage', inChunks() + chunk(maxBodyBytes) + chunk(1), 'zz\r\n'],
    ['a request', withLength(maxBodyBytes + 1), 'x'.repeat(maxBodyBytes + 1) + withLength(1) + 'y'],
  ])('gives no second response to %s behind the refused body', async (what, refused, behind) => {
    const { raw, calls, data } = await served(echo, { lingerMs: 5_000 });
    await raw.send(refused);
    await raw.responses(1);
    const noticed = what === 'garbage' ? once(data.server, 'clientError') : null;
    await raw.send(behind);
    await noticed;
    expect((await allOf(raw)).map(({ status }) => status)).toEqual([413]);
    expect(calls).toHaveLength(1);
  });
});

const asking = upload('Content-Length: 3', 'Expect: 100-continue');
const part = 'x'.repeat(4_000);
const fine = (): Promise<Outcome> => Promise.resolve(outcomeOf());
const streamed = (): Promise<Outcome> =>
  Promise.resolve(outcomeOf({ body: Readable.from([Buffer.from('fine')]) }));
test.each<[string, (call: Call) => Promise<Outcome>, string, string]>([
  ['a body that is announced as too long', echo, withLength(maxBodyBytes + 1), '413 body_too_large'],
  ['a body that is not read for a response in one piece', fine, withLength(9_000), '200'],
  ['a body that is not read for a streamed response', streamed, withLength(9_000), '200'],
  [
    'a refused caller who has begun to send',
    unauthenticated,
    withLength(9_000) + part,
    '401 unauthenticated',
  ],
  ['a refused caller who asks whether to send', unauthenticated, asking, '401 unauthenticated'],
  ['one who asks for too much', echo, asking.replace('3', '99999'), '413 body_too_large'],
  ['one who asks at a wrong route', echo, asking.replace('/proxy', '/other'), '404 not_found'],
  ['one who asks without a body', echo, get('Expect: 100-continue'), '200'],
  ['one who asks without a body that is not read', fine, get('Expect: 100-continue'), '200'],
  ['one who does not wait for a body that is not read', fine, asking + 'abc', '200'],
])('%s gets one response and no 100, and nothing behind it is served', async (_, handle, bytes, expected) => {
  const { raw, calls, data } = await served(handle);
  await raw.send(bytes);
  await raw.send(withLength(0));
  expect((await allOf(raw)).map(inShort)).toEqual([`${expected} close`]);
  expect(calls.length).toBeLessThanOrEqual(1);
  expect(data.stats().heldBytes).toBe(0);
});

describe('the bound of all bodies in a process', () => {
  test.each([
    ['all of it', 'another', 5_001],
    ['half of it for one workspace', 'greedy', 2_501],
  ])('is %s: more is refused, and bytes that were freed may be held again', async (_, owner, excess) => {
    const { client, data, release } = await holding('the end');
    const [greedy, modest, announced, other] = await Promise.all([client(), client(), client(), client()]);
    const whole = (name: string): string => withLength(10_000, `X-Owner: ${name}`) + 'x'.repeat(10_000);
    await greedy.send(whole('greedy'));
    await modest.send(whole('modest'));
    await settled(() => data.stats().heldBytes === 20_000);
    // Announced, it is refused before a byte is read; not announced, when it no longer fits.
    await announced.send(withLength(excess, `X-Owner: ${owner}`));
    await other.send(inChunks(`X-Owner: ${owner}`) + chunk(excess));
    for (const raw of [announced, other]) {
      const [response] = await raw.responses(1);
      expect(inShort(response)).toBe('503 overloaded close');
      expect(response?.field('retry-after')).toMatch(/^[1-9]\d*$/);
    }
    expect(data.stats().heldBytes).toBe(20_000);
    release();
    for (const raw of [greedy, modest]) expect(await answer(raw)).toBe('200 keep-alive');
    await greedy.send(whole('greedy'));
    expect((await greedy.responses(2))[1]?.status).toBe(200);
    await settled(() => held(data) === 0);
  });

  test('frees the bytes of an aborted upload', async () => {
    const { raw, data, calls, bugs } = await served(echo);
    await raw.send(withLength(9_000) + 'x'.repeat(4_000));
    await settled(() => data.stats().heldBytes === 4_000);
    raw.abort();
    await settled(() => held(data) === 0);
    expect([calls[0]?.clientGone.aborted, bugs]).toEqual([true, []]);
  });
});

describe('Expect: 100-continue', () => {
  test('is responded to with 100 when the body is read, and the connection is kept', async () => {
    const { raw, calls, release } = await holding('reading');
    await raw.send(asking);
    await settled(() => calls.length === 1);
    expect(raw.received()).toHaveLength(0);
    release();
    expect(await raw.until((text) => text.endsWith('\r\n\r\n'))).toBe('HTTP/1.1 100 Continue\r\n\r\n');
    await raw.send('abc');
    await raw.responses(2);
    await raw.send(withLength(1) + 'd');
    const responses = await raw.responses(3);
    expect(responses.map((one) => `${inShort(one)} ${one.body.toString()}`)).toEqual([
      '100 ',
      '200 keep-alive abc',
      '200 keep-alive d',
    ]);
  });

  test('ends the connection with a request behind it that did not wait, instead of leaving that request open', async () => {
    const { raw, calls, data, release } = await holding('reading');
    const requested = once(data.server, 'request');
    await raw.send(asking + 'abc' + withLength(0));
    await requested;
    release();
    expect((await allOf(raw)).map(inShort)).toEqual(['200 close']);
    expect(calls).toHaveLength(1);
  });
});
