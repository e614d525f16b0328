/**
 * Clients that leave, at every stage of a call, and clients that are slow: nothing of theirs is left behind, no
 * upstream call is begun for somebody who is gone, and nobody else waits for them.
 */
import { afterEach, expect, test } from '@jest/globals';
import { connect } from 'node:net';
import { connectRaw } from '../support/raw-client.ts';
import { answering } from '../support/raw-upstream.ts';
import type { Script } from '../support/raw-upstream.ts';
import { until } from '../support/until.ts';
import { faults, leftBehind, receivedBy, requestLines, startStack, nextIteration } from './stack-fixture.ts';
import type { Stack, StackOptions } from './stack-fixture.ts';

const stacks: Stack[] = [];
const patient = '{ connectSeconds: 5, headSeconds: 30, idleSeconds: 30, totalSeconds: 60 }';
const ok = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok';

async function opened(script: Script, options: StackOptions = {}): Promise<Stack> {
  const stack = await startStack(script, { timeouts: patient, ...options });
  stacks.push(stack);
  return stack;
}

afterEach(async () => {
  for (const stack of stacks.splice(0)) await stack.close();
});

async function expectClean(stack: Stack): Promise<void> {
  expect(await leftBehind(stack)).toEqual({});
  expect(faults(stack)).toEqual([]);
  expect(await stack.metric('sluice_dispatched_after_client_gone_total')).toBe(0);
}

/** Resolves when a condition on the other side holds. */
const leave = {
  reset: (client: Awaited<ReturnType<typeof connectRaw>>) => client.abort(),
  close: (client: Awaited<ReturnType<typeof connectRaw>>) => client.socket.destroy(),
  'half-close': (client: Awaited<ReturnType<typeof connectRaw>>) => client.halfClose(),
};
const ways = Object.keys(leave) as (keyof typeof leave)[];

test.each(ways)(
  'a client that leaves by %s in the middle of the head or the body causes no upstream call',
  async (way) => {
    const stack = await opened(answering(ok));
    const head = stack.head('POST', stack.proxy('/x'), 'Content-Length: 10\r\n');
    for (const cut of [1, 20, head.length - 1, head.length, head.length + 5]) {
      const client = await connectRaw(stack.port);
      await client.send(`${head}0123456789`.slice(0, cut));
      if (cut > head.length) await until(async () => (await stack.metric('sluice_queue_bytes')) > 0);
      leave[way](client);
      await client.closed.then(() => {});
    }
    await expectClean(stack);
    expect(receivedBy(stack)).toBe('');
  },
);

test.each(ways)(
  'a waiting client that leaves by %s uses no unit or slot, and the calls behind it move up',
  async (way) => {
    const gate = Promise.withResolvers<void>();
    const stack = await opened(
      async (connection) => {
        for (let count = 1; ; count += 1) {
          await connection.requests(count);
          if (connection.socket.destroyed) return;
          await gate.promise;
          connection.send(ok);
        }
      },
      { kind: 'commerce' },
    );
    const clients = await Promise.all(
      Array.from({ length: 6 }, async (_, n) => {
        const client = await connectRaw(stack.port);
        await client.send(stack.head('GET', stack.proxy(`/n/${n}`)));
        return client;
      }),
    );
    await until(async () => (await stack.metric('sluice_queue_depth')) === 5);
    const first = /\/n\/\d/.exec(receivedBy(stack))?.[0];
    const waiting = clients.filter((_, n) => `/n/${n}` !== first);
    const [gone, stays] = [waiting.slice(0, 3), waiting.slice(3)];
    for (const client of gone) leave[way](client);
    await until(async () => (await stack.metric('sluice_queue_depth')) === 2);
    gate.resolve();
    for (const client of stays) expect((await client.responses(1))[0]?.status).toBe(200);
    await expectClean(stack);
    expect(requestLines(receivedBy(stack))).toHaveLength(3);
    for (const client of clients) client.socket.destroy();
  },
);

test.each(ways)('a client that leaves by %s while the upstream works ends the upstream call', async (way) => {
  const stack = await opened(() => {});
  const client = await connectRaw(stack.port);
  await client.send(stack.head('GET', stack.proxy('/slow')));
  await until(() => requestLines(receivedBy(stack)).length === 1);
  leave[way](client);
  await stack.upstream.allClosed();
  await expectClean(stack);
  expect(requestLines(receivedBy(stack))).toHaveLength(1);
});

test('a call whose client left is not queued again, and its lane does not sleep for it', async () => {
  const stack = await opened(async (connection) => {
    await connection.requests(1);
    if (connection.received().includes('/next')) connection.send(ok);
  });
  const client = await connectRaw(stack.port);
  await client.send(stack.head('GET', stack.proxy('/slow')));
  await until(() => requestLines(receivedBy(stack)).length === 1);
  client.abort();
  await stack.upstream.allClosed();
  const { responses } = await stack.exchange(stack.head('GET', stack.proxy('/next')));
  const waited = /waited=(\d+)/.exec(responses[0]?.field('sluice-admission') ?? '')?.[1];
  expect(Number(waited)).toBeLessThan(400);
  await expectClean(stack);
});

test.each(ways)(
  'a client that leaves by %s in the middle of a response ends the upstream call',
  async (way) => {
    const stack = await opened(async (connection) => {
      await connection.requests(1);
      connection.send('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n');
    });
    const client = await connectRaw(stack.port);
    await client.send(stack.head('GET', stack.proxy('/stream')));
    await client.until((text) => text.includes('hello'));
    leave[way](client);
    await stack.upstream.allClosed();
    await expectClean(stack);
  },
);

test('a client that leaves while its throttled call sleeps takes the call out of its lane', async () => {
  const stack = await opened(answering('HTTP/1.1 429 Slow\r\nRetry-After: 20\r\nContent-Length: 0\r\n\r\n'));
  const client = await connectRaw(stack.port);
  await client.send(stack.head('GET', stack.proxy('/slow')));
  await until(async () => (await stack.metric('sluice_retries_absorbed_total')) === 1);
  client.abort();
  await expectClean(stack);
  expect(requestLines(receivedBy(stack))).toHaveLength(1);
});

test('one of two clients of a joined call may leave without harm, and the upstream call is finished for their repeat when both have left', async () => {
  const gate = Promise.withResolvers<void>();
  const secondGate = Promise.withResolvers<void>();
  const stack = await opened(async (connection) => {
    for (let count = 1; count <= 2; count += 1) {
      await connection.requests(count);
      await (connection.received().includes('/second') ? secondGate : gate).promise;
      connection.send(ok);
    }
  });
  const same = async (path: string) => {
    const client = await connectRaw(stack.port);
    await client.send(
      stack.head('POST', stack.proxy(path), `Idempotency-Key: "${path}"\r\nContent-Length: 0\r\n`),
    );
    return client;
  };
  const one = await same('/first');
  await until(() => requestLines(receivedBy(stack)).length === 1);
  const two = await same('/first');
  await until(() => stack.gateway.service.gateway.parts.pressure.buckets().length === 1);
  await new Promise((resolve) => setTimeout(resolve, 50));
  one.abort();
  await nextIteration();
  gate.resolve();
  expect((await two.responses(1))[0]?.status).toBe(200);
  two.socket.destroy();

  const three = await same('/second');
  const four = await same('/second');
  await until(() => requestLines(receivedBy(stack)).length === 2);
  await new Promise((resolve) => setTimeout(resolve, 50));
  three.abort();
  four.abort();
  await nextIteration();
  secondGate.resolve();
  await expectClean(stack);
  const five = await same('/second');
  const [replayed] = await five.responses(1);
  expect([replayed?.status, replayed?.field('sluice-replayed')]).toEqual([200, 'true']);
  five.socket.destroy();
  expect(requestLines(receivedBy(stack))).toHaveLength(2);
});

test('a slow reader occupies neither its serialized lane nor more than a bounded part of the response', async () => {
  const size = 20_000_000;
  const stack = await opened(
    async (connection) => {
      for (let count = 1; ; count += 1) {
        await connection.requests(count);
        if (connection.socket.destroyed) return;
        const large = count === 1 && connection.received().includes('/large');
        connection.send(`HTTP/1.1 200 OK\r\nContent-Length: ${large ? 500_000 : 2}\r\n\r\n`);
        connection.socket.write(large ? Buffer.alloc(500_000) : 'ok');
      }
    },
    { kind: 'commerce' },
  );
  const slow = connect({ port: stack.port, host: '127.0.0.1' });
  slow.on('error', () => {});
  slow.write(stack.head('GET', stack.proxy('/large')));
  slow.pause();
  await until(() => receivedBy(stack).includes('/large'));
  const { responses } = await stack.exchange(stack.head('GET', stack.proxy('/small')));
  expect(responses[0]?.body.toString()).toBe('ok');
  slow.destroy();
  await expectClean(stack);

  const endless = await opened(async (connection) => {
    await connection.requests(1);
    connection.send(`HTTP/1.1 200 OK\r\nContent-Length: ${size}\r\n\r\n`);
    connection.socket.write(Buffer.alloc(size));
  });
  const lazy = connect({ port: endless.port, host: '127.0.0.1' });
  lazy.on('error', () => {});
  lazy.write(endless.head('GET', endless.proxy('/endless')));
  lazy.pause();
  await until(() => (endless.upstream.connections[0]?.socket.bytesWritten ?? 0) > 0);
  await new Promise((resolve) => setTimeout(resolve, 200));
  // What the system's socket buffers took besides; most of it still waits at the upstream.
  const waiting = endless.upstream.connections[0]?.socket.writableLength ?? 0;
  expect(waiting).toBeGreaterThan(size / 4);
  lazy.destroy();
  await endless.upstream.allClosed();
  await expectClean(endless);
});

test('clients that read nothing free the upstream’s connections for others', async () => {
  const stack = await opened(
    async (connection) => {
      for (let count = 1; ; count += 1) {
        await connection.requests(count);
        if (connection.socket.destroyed) return;
        if (!connection.received().includes('/large')) connection.send(ok);
        else {
          connection.send('HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n');
          connection.socket.write(Buffer.alloc(20_000_000));
        }
      }
    },
    {
      more: '    maxSockets: 2\n',
      timeouts: '{ connectSeconds: 5, headSeconds: 30, idleSeconds: 0.5, totalSeconds: 60 }',
    },
  );
  const readers = Array.from({ length: 2 }, () => {
    const reader = connect({ port: stack.port, host: '127.0.0.1' });
    reader.on('error', () => {});
    reader.write(stack.head('GET', stack.proxy('/large')));
    reader.pause();
    return reader;
  });
  await until(() => requestLines(receivedBy(stack)).length === 2);
  // Behind them in the pool: sent only when one of them is over.
  const { responses } = await stack.exchange(stack.head('GET', stack.proxy('/small')));
  expect(responses[0]?.body.toString()).toBe('ok');
  await expectClean(stack);
  for (const reader of readers) reader.destroy();
});

test('slow uploads hold bytes, but no position and no lease', async () => {
  const stack = await opened(answering(ok), { kind: 'commerce' });
  const uploads = await Promise.all(
    Array.from({ length: 20 }, async () => {
      const client = await connectRaw(stack.port);
      await client.send(`${stack.head('POST', stack.proxy('/upload'), 'Content-Length: 1000\r\n')}begun`);
      return client;
    }),
  );
  await until(async () => (await stack.metric('sluice_queue_bytes')) === 100);
  // Twenty heads, each of a request line and a few fields.
  expect(await stack.metric('sluice_head_bytes')).toBeGreaterThan(1_000);
  expect(await stack.metric('sluice_queue_depth')).toBe(0);
  expect(await stack.metric('sluice_in_flight')).toBe(0);
  const { responses } = await stack.exchange(stack.head('GET', stack.proxy('/quick')));
  expect(responses[0]?.status).toBe(200);
  for (const client of uploads) client.abort();
  await expectClean(stack);
  expect(requestLines(receivedBy(stack))).toHaveLength(1);
});

test('240 connections that are opened and dropped leave nothing behind, and the next call is served', async () => {
  const stack = await opened(answering(ok));
  const parts = [
    '',
    'G',
    stack.head('GET', stack.proxy('/x')).slice(0, 60),
    stack.head('GET', stack.proxy('/x')),
  ];
  for (let round = 0; round < 2; round += 1) {
    await Promise.all(
      Array.from({ length: 120 }, async (_, n) => {
        const client = await connectRaw(stack.port);
        await client.send(parts[n % parts.length] ?? '');
        if (n % 3 === 0) client.abort();
        else client.socket.destroy();
      }),
    );
  }
  await expectClean(stack);
  const { responses } = await stack.exchange(stack.head('GET', stack.proxy('/last')));
  expect(responses[0]?.status).toBe(200);
});
