import { afterEach, describe, expect, test } from '@jest/globals';
import { peek } from '../../src/dispatch/inspect.ts';
import { bodyError } from '../../src/dispatch/transport-error.ts';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { answering } from '../support/raw-upstream.ts';
import type { Script } from '../support/raw-upstream.ts';
import { failure, sendingWorlds, text } from '../support/sending.ts';
import type { SendingWorld } from '../support/sending.ts';
import { until } from '../support/until.ts';

const ok = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';
const head = 'HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n';
const limits = { connectMs: 1000, headMs: 2000, idleMs: 4000, totalMs: 60_000 };

const open = sendingWorlds();
const clocks: ManualClock[] = [];
async function world(script: Script): Promise<{ opened: SendingWorld; clock: ManualClock }> {
  const clock = manualClock();
  clocks.push(clock);
  return { opened: await open(script, clock), clock };
}
afterEach(() => {
  for (const clock of clocks.splice(0)) expect(clock.waiting).toBe(0);
});

/** Waits for a condition of the sockets; gives up before the test does, so that a failure does not go on polling. */
const pulse = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 20));

/** Follows a promise without waiting for it. */
function watch(promise: Promise<unknown>): { done: boolean; error: unknown } {
  const state: { done: boolean; error: unknown } = { done: false, error: null };
  promise.then(
    () => (state.done = true),
    (error: unknown) => {
      state.done = true;
      state.error = error;
    },
  );
  return state;
}

describe('a time limit of the transport', () => {
  test('ends a call without a connection at the connect limit, as never sent', async () => {
    const { opened, clock } = await world(async (connection) => {
      await connection.requests(1);
    });
    opened.agents.forOrigin(opened.upstream.origin).maxSockets = 1;
    const aborter = new AbortController();
    const first = watch(opened.send({ timeouts: { ...limits, headMs: 50_000 }, signal: aborter.signal }));
    await until(() => opened.upstream.connections[0]?.received().includes('\r\n\r\n') === true);
    const second = failure(opened.send({ timeouts: limits }));
    await pulse();
    clock.advance(999);
    await pulse();
    expect(first.done).toBe(false);
    clock.advance(1);
    expect(await second).toMatchObject({ kind: 'timeout', phase: 'connect', neverSent: true });
    expect(first.done).toBe(false);
    aborter.abort();
    await until(() => first.done);
    await pulse();
    // Node's pool may still connect for the request that gave up, but writes nothing of it.
    const received = opened.upstream.connections.map((connection) => connection.received()).join('');
    expect(received.match(/GET/g)).toHaveLength(1);
  });

  test.each([
    ['before the head', ''],
    ['in the middle of the head', 'HTTP/1.1 200 OK\r\nx: '],
    ['after an interim response', 'HTTP/1.1 103 Early\r\n\r\n'],
  ])('ends a call with silence %s at the head limit', async (_, bytes) => {
    const { opened, clock } = await world(async (connection) => {
      await connection.requests(1);
      connection.send(bytes);
    });
    let sent = false;
    const sending = opened.send({ timeouts: limits, onSent: () => (sent = true) });
    const state = watch(sending);
    await until(() => sent);
    await pulse();
    clock.advance(1999);
    await pulse();
    expect(state.done).toBe(false);
    clock.advance(1);
    expect(await failure(sending)).toMatchObject({ kind: 'timeout', phase: 'sent', neverSent: false });
    await opened.upstream.allClosed();
  });

  test('cuts a silent body between one and one and a quarter of the idle limit', async () => {
    const { opened, clock } = await world(async (connection) => {
      await connection.requests(1);
      connection.send(`${head}half `);
    });
    const { body } = await opened.send({ timeouts: limits });
    const reading = text(body);
    const state = watch(reading);
    await pulse();
    clock.advance(3999);
    await pulse();
    expect(state.done).toBe(false);
    clock.advance(1001);
    expect(await failure(reading)).toMatchObject({ kind: 'timeout', phase: 'body' });
    await opened.upstream.allClosed();
  });

  test('cuts a body that keeps moving at the limit of the whole exchange', async () => {
    const { opened, clock } = await world(async (connection) => {
      await connection.requests(1);
      connection.send('HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n');
    });
    const { body } = await opened.send({ timeouts: limits });
    let seen = 0;
    body.on('data', (chunk: Buffer) => (seen += chunk.length));
    const cut = new Promise((resolve) => body.on('error', resolve));
    for (let ms = 0; ms < 57_000; ms += 3000) {
      opened.upstream.connections[0]?.send('x');
      await until(() => seen === ms / 3000 + 1);
      clock.advance(3000);
      expect(body.destroyed).toBe(false);
    }
    opened.upstream.connections[0]?.send('x');
    await until(() => seen === 20);
    clock.advance(3000);
    expect(await cut).toMatchObject({ kind: 'timeout', phase: 'body' });
    await opened.upstream.allClosed();
  });

  test('cuts no body that keeps moving where no limit of the whole exchange is configured', async () => {
    const { opened, clock } = await world(async (connection) => {
      await connection.requests(1);
      connection.send('HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n');
    });
    const { body } = await opened.send({ timeouts: { ...limits, totalMs: null } });
    let seen = 0;
    body.on('data', (chunk: Buffer) => (seen += chunk.length));
    const end = new Promise((resolve) => body.on('end', resolve));
    for (let sent = 1; sent <= 50; sent += 1) {
      clock.advance(3000);
      opened.upstream.connections[0]?.send('x');
      await until(() => seen === sent);
    }
    await end;
  });

  test('does not take a slow reader for a silent upstream', async () => {
    const { opened, clock } = await world(async (connection) => {
      await connection.requests(1);
      connection.send(`${head}0123456789`);
    });
    const { body } = await opened.send({ timeouts: limits });
    await until(() => body.readableLength === 10);
    clock.advance(50_000);
    expect(await text(body)).toBe('0123456789');
  });
});

describe('an abort', () => {
  test('before the start sends nothing', async () => {
    const { opened } = await world(answering(ok));
    const signal = AbortSignal.abort();
    expect(await failure(opened.send({ signal }))).toMatchObject({ kind: 'aborted', neverSent: true });
    expect(opened.upstream.connections).toHaveLength(0);
  });

  test('in the same tick as the start sends nothing', async () => {
    const { opened } = await world(answering(ok));
    const aborter = new AbortController();
    const sending = opened.send({ signal: aborter.signal });
    aborter.abort();
    expect(await failure(sending)).toMatchObject({ kind: 'aborted', neverSent: true });
    await pulse();
    expect(opened.upstream.connections.map((connection) => connection.received()).join('')).toBe('');
    expect(opened.upstream.open()).toBe(0);
  });

  test.each([
    ['while the request is with the upstream', ''],
    ['in the middle of the head', 'HTTP/1.1 200 OK\r\nx'],
  ])('%s closes the connection', async (_, bytes) => {
    const { opened } = await world(async (connection) => {
      await connection.requests(1);
      connection.send(bytes);
    });
    const aborter = new AbortController();
    const sending = opened.send({ signal: aborter.signal });
    await until(() => opened.upstream.connections[0]?.received().includes('\r\n\r\n') === true);
    await pulse();
    aborter.abort();
    expect(await failure(sending)).toMatchObject({ kind: 'aborted', phase: 'sent', neverSent: false });
    await opened.upstream.allClosed();
  });

  test('while the request body is being sent closes the connection', async () => {
    const { opened } = await world((connection) => void connection.socket.pause());
    const aborter = new AbortController();
    const body = Buffer.alloc(16 * 1024 * 1024);
    const fields = { host: 'x', 'content-length': String(body.length) };
    const sending = opened.send({ method: 'POST', fields, body, signal: aborter.signal });
    await until(() => opened.upstream.open() === 1);
    aborter.abort();
    expect(await failure(sending)).toMatchObject({ kind: 'aborted' });
    opened.upstream.connections[0]?.socket.resume();
    await opened.upstream.allClosed();
  });

  test('in the response body cuts it with an error and closes the connection', async () => {
    const { opened } = await world(async (connection) => {
      await connection.requests(1);
      connection.send(`${head}half `);
    });
    const aborter = new AbortController();
    const { body } = await opened.send({ signal: aborter.signal });
    const reading = text(body);
    await pulse();
    aborter.abort();
    expect(await failure(reading)).toMatchObject({ kind: 'aborted', phase: 'body' });
    await opened.upstream.allClosed();
  });

  test('by the reader, who destroys the body, closes the connection', async () => {
    const { opened, clock } = await world(async (connection) => {
      await connection.requests(1);
      connection.send(`${head}half `);
    });
    const { body } = await opened.send();
    body.destroy();
    await opened.upstream.allClosed();
    expect(clock.waiting).toBe(0);
  });

  test('of the whole transport closes all connections', async () => {
    const { opened } = await world(async (connection) => {
      await connection.requests(1);
    });
    const sending = [opened.send(), opened.send()];
    await until(() => opened.upstream.open() === 2);
    opened.transport.close();
    for (const one of sending) expect(await failure(one)).toMatchObject({ kind: 'aborted' });
    await opened.upstream.allClosed();
  });
});

describe('a kept connection that the upstream closes under the next request', () => {
  /** Serves one request per connection, then resets at the second without a byte of response. */
  const fickle =
    (partial = ''): Script =>
    async (connection) => {
      await connection.requests(1);
      connection.send(ok);
      await connection.requests(2);
      connection.socket.write(partial, () =>
        setTimeout(() => connection.socket.resetAndDestroy(), partial === '' ? 0 : 5),
      );
    };

  test('makes the call fail as stale, and the call was written once', async () => {
    const { opened } = await world(fickle());
    await text((await opened.send()).body);
    let sent = 0;
    const second = opened.send({ onSent: () => sent++, pathAndQuery: '/again' });
    expect(await failure(second)).toMatchObject({
      kind: 'reset',
      phase: 'sent',
      neverSent: false,
      reusedSocket: true,
      stale: true,
    });
    expect(sent).toBe(1);
    expect(opened.upstream.connections.map((one) => one.received().match(/\/again/g)?.length)).toEqual([1]);
  });

  test('closes its idle neighbours, too', async () => {
    const { opened } = await world(fickle());
    const bodies = await Promise.all([opened.send(), opened.send(), opened.send()]);
    await Promise.all(bodies.map(({ body }) => text(body)));
    await pulse();
    expect(await failure(opened.send())).toMatchObject({ stale: true });
    expect(await text((await opened.send()).body)).toBe('ok');
    expect(opened.upstream.connections).toHaveLength(4);
  });

  test('is not stale when a response had begun', async () => {
    const { opened } = await world(fickle('HTTP/1.1 2'));
    await text((await opened.send()).body);
    expect(await failure(opened.send())).toMatchObject({ kind: 'reset', phase: 'sent', stale: false });
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('differs from a new connection that is reset, which is not stale', async () => {
    const { opened } = await world(async (connection) => {
      await connection.requests(1);
      connection.socket.resetAndDestroy();
    });
    expect(await failure(opened.send())).toMatchObject({
      kind: 'reset',
      reusedSocket: false,
      stale: false,
    });
    expect(opened.upstream.connections).toHaveLength(1);
  });

  test('is known to be connected for a call that waited for a socket', async () => {
    const { opened, clock } = await world(answering(ok));
    opened.agents.forOrigin(opened.upstream.origin).maxSockets = 1;
    let sent = 0;
    const send = async (): Promise<string> =>
      text((await opened.send({ timeouts: limits, onSent: () => sent++ })).body);
    expect(await Promise.all([send(), send(), send()])).toEqual(['ok', 'ok', 'ok']);
    expect(sent).toBe(3);
    expect(clock.waiting).toBe(0);
    expect(opened.upstream.connections).toHaveLength(1);
  });
});

describe('a body that is read ahead', () => {
  test('delivers from its first byte what was read ahead', async () => {
    const long = 'abcdefghij'.repeat(20_000);
    const { opened, clock } = await world(
      answering(`HTTP/1.1 200 OK\r\ncontent-length: ${long.length}\r\n\r\n${long}`),
    );
    const peeked = await peek((await opened.send()).body, { maxBytes: 1000, maxMs: 1000 }, clock);
    expect(peeked.whole).toBe(false);
    expect(long.startsWith(peeked.bytes.toString())).toBe(true);
    expect(Buffer.isBuffer(peeked.body) ? '' : await text(peeked.body)).toBe(long);
  });

  test('delays no call until the end of a body that never ends', async () => {
    const { opened, clock } = await world(async (connection) => {
      await connection.requests(1);
      connection.send(`${head}half`);
    });
    const { body } = await opened.send();
    const peeking = peek(body, { maxBytes: 1000, maxMs: 250 }, clock);
    const state = watch(peeking);
    await pulse();
    clock.advance(249);
    await pulse();
    expect(state.done).toBe(false);
    clock.advance(1);
    expect(await peeking).toMatchObject({ whole: false });
    body.destroy();
    await opened.upstream.allClosed();
  });
});

describe('the transport, in the long run,', () => {
  test('keeps no listener and one connection after forty calls, and causes no warning', async () => {
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => void warnings.push(warning);
    process.on('warning', onWarning);
    const { opened, clock } = await world(async (connection) => {
      for (let count = 1; ; count++) {
        await connection.requests(count);
        connection.send(count % 2 === 0 ? ok : 'HTTP/1.1 429 x\r\ncontent-length: 4\r\n\r\nslow');
      }
    });
    const { signal } = new AbortController();
    const body = Buffer.from('body');
    const fields = { host: 'x', 'content-length': '4' };
    const counts: number[] = [];
    for (let call = 0; call < 40; call++) {
      expect(await text((await opened.send({ method: 'POST', fields, body, signal })).body)).toBe('slow');
      expect(await text((await opened.send({ method: 'POST', fields, body, signal })).body)).toBe('ok');
      await pulse();
      const [free] = Object.values(opened.agents.forOrigin(opened.upstream.origin).freeSockets);
      counts.push(free?.[0]?.eventNames().reduce((sum, name) => sum + (free[0]?.listenerCount(name) ?? 0), 0) ?? -1);
    }
    process.off('warning', onWarning);
    expect(new Set(counts).size).toBe(1);
    expect(warnings).toEqual([]);
    expect(clock.waiting).toBe(0);
    expect(opened.upstream.connections).toHaveLength(1);
    expect(opened.upstream.connections[0]?.received().match(/\r\n\r\nbody/g)).toHaveLength(80);
  });

  test('gives a typed error for a cut body, whoever cut it', () => {
    expect(bodyError(Object.assign(new Error('aborted'), { code: 'ECONNRESET' }))).toMatchObject({ kind: 'reset', phase: 'body' });
    expect(bodyError(undefined)).toMatchObject({ kind: 'reset', code: null });
  });
}); // prettier-ignore
