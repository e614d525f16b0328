/** Clients that leave, at every stage of a call, and clients that are slow: nothing is left behind, and nobody waits for them. */
import { expect, test } from '@jest/globals';
import { connect, type Socket } from 'node:net';
import { connectRaw, type RawClient } from '../support/raw-client.ts';
import { answering, type Script } from '../support/raw-upstream.ts';
import { bytes, ok, saying } from '../support/scripts.ts';
import { until } from '../support/until.ts';
import { expectClean, receivedBy, requestLines, stacks, type Stack } from './stack-fixture.ts';

const opened = stacks({
  timeouts: '{ connectSeconds: 5, headSeconds: 30, idleSeconds: 30, totalSeconds: 60 }',
});

async function calling(stack: Stack, path: string, sent = stack.head('GET', stack.proxy(path))) {
  const client = await connectRaw(stack.port);
  await client.send(sent);
  return client;
}
const served = (stack: Stack): string[] => requestLines(receivedBy(stack));
const depth = (stack: Stack): Promise<number> => stack.metric('sluice_queue_depth');

const leaving = test.each<[string, (client: RawClient) => void]>([
  ['reset', (client) => client.abort()],
  ['close', (client) => client.socket.destroy()],
  ['half-close', (client) => client.halfClose()],
]);

leaving('a client that leaves by %s amid its head or body causes no upstream call', async (_, gone) => {
  const stack = await opened();
  const head = stack.head('POST', stack.proxy('/x'), 'Content-Length: 10\r\n');
  for (const cut of [1, 20, head.length - 1, head.length, head.length + 5]) {
    const client = await calling(stack, '/x', `${head}0123456789`.slice(0, cut));
    if (cut > head.length) await until(async () => (await stack.metric('sluice_queue_bytes')) > 0);
    gone(client);
    await client.closed;
  }
  await expectClean(stack);
  expect(receivedBy(stack)).toBe('');
});

leaving('a client that leaves by %s while its call waits takes it out of its lane', async (_, gone) => {
  const stack = await opened(answering(ok), { workspaces: { acme: '    requestsPerMinute: { up: 1 }\n' } });
  await stack.exchange(stack.head('GET', '/via/up/first'));
  const client = await calling(stack, '/waits');
  await until(async () => (await depth(stack)) === 1);
  gone(client);
  await expectClean(stack);
  expect(served(stack)).toHaveLength(1);
});

const begun = bytes('HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|');
leaving('a client that leaves by %s amid the upstream’s work or response ends that call', async (_, gone) => {
  for (const said of ['', begun]) {
    const stack = await opened(saying(said));
    const client = await calling(stack, '/slow');
    await until(() => served(stack).length === 1);
    if (said !== '') await client.until((text) => text.includes('hello'));
    gone(client);
    await stack.upstream.allClosed();
    await expectClean(stack);
    expect(served(stack)).toHaveLength(1);
  }
});

function unreading(stack: Stack, path = '/large'): Socket {
  const client = connect({ port: stack.port, host: '127.0.0.1' }).on('error', () => {});
  client.write(stack.head('GET', stack.proxy(path), 'Connection: close\r\n'));
  return client.pause();
}
/** Responds to `/large` with so many bytes, and with `ok` to all else. */
const large =
  (size: number): Script =>
  async ({ requests, send, socket }) => {
    for (let count = 1; ; count += 1) {
      const isLarge = (await requests(count)).includes('/large');
      if (socket.destroyed) return;
      if (!isLarge) send(ok);
      else {
        send(bytes(`HTTP/1.1 200 OK|Content-Length: ${size}||`));
        socket.write(Buffer.alloc(size));
      }
    }
  };

test('a slow reader does not occupy its serialized lane', async () => {
  const stack = await opened(large(500_000), { kind: 'commerce' });
  const slow = unreading(stack);
  await until(() => receivedBy(stack).includes('/large'));
  const { responses } = await stack.exchange(stack.head('GET', '/via/up/small'));
  expect(responses[0]?.status).toBe(200);
  slow.destroy();
});

test('clients that read nothing free the upstream’s connections for others', async () => {
  const timeouts = '{ connectSeconds: 5, headSeconds: 30, idleSeconds: 0.5, totalSeconds: 60 }';
  const stack = await opened(large(20_000_000), { more: '    maxSockets: 2\n', timeouts });
  const readers = [unreading(stack), unreading(stack)];
  await until(() => served(stack).length === 2);
  // Behind them in the pool: sent only when one of them is over.
  const { responses } = await stack.exchange(stack.head('GET', stack.proxy('/small')));
  expect(responses[0]?.body.toString()).toBe('ok');
  await expectClean(stack);
  for (const reader of readers) reader.destroy();
});

test('slow uploads hold bytes, but no position and no lease', async () => {
  const stack = await opened(answering(ok), { kind: 'commerce' });
  const head = stack.head('POST', stack.proxy('/upload'), 'Content-Length: 1000\r\n');
  const uploads = await Promise.all(Array.from({ length: 20 }, () => calling(stack, '', `${head}begun`)));
  await until(async () => (await stack.metric('sluice_queue_bytes')) === 100);
  // Twenty heads, each of a request line and a few fields.
  expect(await stack.metric('sluice_head_bytes')).toBeGreaterThan(1_000);
  expect([await depth(stack), await stack.metric('sluice_in_flight')]).toEqual([0, 0]);
  const { responses } = await stack.exchange(stack.head('GET', stack.proxy('/quick')));
  expect(responses[0]?.status).toBe(200);
  for (const client of uploads) client.abort();
  await expectClean(stack);
  expect(served(stack)).toHaveLength(1);
});
