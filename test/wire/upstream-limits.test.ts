import { afterEach, describe, expect, test } from '@jest/globals';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { answering, type Script } from '../support/raw-upstream.ts';
import { bytes, ending, ok, saying } from '../support/scripts.ts';
import { failure, sendingWorld, text, type SendingWorld } from '../support/sending.ts';
import { until } from '../support/until.ts';

const half = bytes('HTTP/1.1 200 OK|content-length: 10||half ');
const timeouts = { connectMs: 1000, headMs: 2000, idleMs: 4000, totalMs: 60_000 };

const clocks: ManualClock[] = [];
async function world(script: Script): Promise<SendingWorld & { clock: ManualClock }> {
  const clock = manualClock();
  clocks.push(clock);
  return { ...(await sendingWorld(script, clock)), clock };
}
afterEach(() => {
  for (const clock of clocks.splice(0)) expect(clock.waiting).toBe(0);
});

const pulse = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 20));
const received = ({ upstream }: SendingWorld): string =>
  upstream.connections.map((connection) => connection.received()).join('');

/** Holds that a promise is pending until so many milliseconds have passed. */
async function expectOpenFor(ms: number, clock: ManualClock, promise: Promise<unknown>): Promise<void> {
  let isDone = false;
  const done = (): unknown => (isDone = true);
  promise.then(done, done);
  await pulse();
  clock.advance(ms - 1);
  await pulse();
  expect(isDone).toBe(false);
  clock.advance(1);
}

describe('a time limit of the transport', () => {
  test('ends a call without a connection at the connect limit, as never sent', async () => {
    const opened = await world(() => {});
    opened.agents.forOrigin(opened.upstream.origin).maxSockets = 1;
    const aborter = new AbortController();
    const first = failure(opened.send({ timeouts: { ...timeouts, headMs: 50_000 }, signal: aborter.signal }));
    await until(() => received(opened).includes('\r\n\r\n'));
    const second = failure(opened.send({ timeouts }));
    await expectOpenFor(1000, opened.clock, Promise.race([first, second]));
    expect(await second).toMatchObject({ kind: 'timeout', phase: 'connect', neverSent: true });
    aborter.abort();
    expect(await first).toMatchObject({ kind: 'aborted' });
    await pulse();
    // Node's pool may still connect for the request that gave up, but writes nothing of it.
    expect(received(opened).match(/GET/g)).toHaveLength(1);
  });

  test.each([
    ['before the head', ''],
    ['in the middle of the head', bytes('HTTP/1.1 200 OK|x: ')],
    ['after an interim response', bytes('HTTP/1.1 103 Early||')],
  ])('ends a call with silence %s at the head limit', async (_, begun) => {
    const opened = await world(saying(begun));
    let sent = false;
    const sending = opened.send({ timeouts, onSent: () => (sent = true) });
    const failed = failure(sending);
    await until(() => sent);
    await expectOpenFor(2000, opened.clock, failed);
    expect(await failed).toMatchObject({ kind: 'timeout', phase: 'sent', neverSent: false });
    await opened.upstream.allClosed();
  });

  test('cuts a silent body between one and one and a quarter of the idle limit', async () => {
    const opened = await world(saying(half));
    const reading = failure(text((await opened.send({ timeouts })).body));
    await expectOpenFor(4000, opened.clock, reading);
    opened.clock.advance(1000);
    expect(await reading).toMatchObject({ kind: 'timeout', phase: 'body' });
    await opened.upstream.allClosed();
  });

  test.each([
    ['is cut at the limit of the whole exchange', 60_000, 19],
    ['is never cut where no such limit is configured', null, 49],
  ])('for a body that keeps moving: it %s', async (_, totalMs, pieces) => {
    const opened = await world(saying(bytes('HTTP/1.1 200 OK|content-length: 50||')));
    const { body } = await opened.send({ timeouts: { ...timeouts, totalMs } });
    let seen = 0;
    body.on('data', (chunk: Buffer) => (seen += chunk.length));
    const over = new Promise((resolve) => body.on('error', resolve).on('end', resolve));
    const move = async (): Promise<void> => {
      const before = seen;
      opened.upstream.connections[0]?.send('x');
      await until(() => seen > before);
    };
    for (let sent = 0; sent < pieces; sent += 1) {
      await move();
      opened.clock.advance(3000);
      expect(body.destroyed).toBe(false);
    }
    await move();
    opened.clock.advance(3000);
    if (totalMs === null) expect(await over).toBeUndefined();
    else expect(await over).toMatchObject({ kind: 'timeout', phase: 'body' });
    await (totalMs === null ? undefined : opened.upstream.allClosed());
  });

  test('does not take a slow reader for a silent upstream', async () => {
    const opened = await world(saying(half + '56789'));
    const { body } = await opened.send({ timeouts });
    await until(() => body.readableLength === 10);
    opened.clock.advance(50_000);
    expect(await text(body)).toBe('half 56789');
  });
});

describe('an abort', () => {
  test.each(['before', 'in the same tick as'])('%s the start sends nothing', async (when) => {
    const opened = await world(answering(ok));
    const aborter = new AbortController();
    if (when === 'before') aborter.abort();
    const sending = failure(opened.send({ signal: aborter.signal }));
    aborter.abort();
    expect(await sending).toMatchObject({ kind: 'aborted', neverSent: true });
    await pulse();
    expect([received(opened), opened.upstream.open()]).toEqual(['', 0]);
    if (when === 'before') expect(opened.upstream.connections).toHaveLength(0);
  });

  test.each([
    ['while the request is with the upstream', '', 'sent'],
    ['in the middle of the head', bytes('HTTP/1.1 200 OK|x'), 'sent'],
    ['in the response body', half, 'body'],
  ])('%s cuts it with an error and closes the connection', async (_, begun, phase) => {
    const opened = await world(saying(begun));
    const aborter = new AbortController();
    const failed = failure(opened.send({ signal: aborter.signal }).then(({ body }) => text(body)));
    await until(() => received(opened).includes('\r\n\r\n'));
    await pulse();
    aborter.abort();
    expect(await failed).toMatchObject({ kind: 'aborted', phase, neverSent: false });
    await opened.upstream.allClosed();
  });

  test('by the reader, who destroys the body, closes the connection', async () => {
    const opened = await world(saying(half));
    (await opened.send()).body.destroy();
    await opened.upstream.allClosed();
    expect(opened.clock.waiting).toBe(0);
  });

  test('of the whole transport closes all connections', async () => {
    const opened = await world(() => {});
    const sending = [failure(opened.send()), failure(opened.send())];
    await until(() => opened.upstream.open() === 2);
    opened.transport.close();
    for (const one of sending) expect(await one).toMatchObject({ kind: 'aborted' });
    await opened.upstream.allClosed();
  });
});

describe('a kept connection that the upstream closes under the next request', () => {
  /** Serves one request per connection, then resets at the second with no more than this of a response. */
  const fickle =
    (partial = ''): Script =>
    async ({ requests, send, socket }) => {
      await requests(1);
      send(ok);
      await requests(2);
      socket.write(partial, () => setTimeout(() => socket.resetAndDestroy(), partial === '' ? 0 : 5));
    };

  test('makes the call fail as stale, written once', async () => {
    const opened = await world(fickle());
    await text((await opened.send()).body);
    await pulse();
    let sent = 0;
    const stale = { kind: 'reset', phase: 'sent', neverSent: false, stale: true };
    const again = opened.send({ onSent: () => sent++, pathAndQuery: '/again' });
    expect(await failure(again)).toMatchObject(stale);
    expect([sent, received(opened).match(/\/again/g)?.length]).toEqual([1, 1]);
    expect(await text((await opened.send()).body)).toBe('ok');
    expect(opened.upstream.connections).toHaveLength(2);
  });

  test.each([
    ['a response had begun', fickle('HTTP/1.1 2'), true],
    ['the connection was new', ending('', 'reset'), false],
  ])('is not stale when %s', async (_, script, isKept) => {
    const opened = await world(script);
    if (isKept) await text((await opened.send()).body);
    expect(await failure(opened.send())).toMatchObject({ kind: 'reset', phase: 'sent', stale: false });
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('is known to be connected for a call that waited for a socket', async () => {
    const opened = await world(answering(ok));
    opened.agents.forOrigin(opened.upstream.origin).maxSockets = 1;
    let sent = 0;
    const send = async (): Promise<string> =>
      text((await opened.send({ timeouts, onSent: () => sent++ })).body);
    expect(await Promise.all([send(), send(), send()])).toEqual(['ok', 'ok', 'ok']);
    expect([sent, opened.upstream.connections.length]).toEqual([3, 1]);
    expect(opened.clock.waiting).toBe(0);
  });
});
