/** Connections of clients that have shown no valid key cannot keep out those of clients that have one. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { connectRaw, type RawClient } from '../support/raw-client.ts';
import { answering } from '../support/raw-upstream.ts';
import { faults, metricsPage, startStack, sumOf } from './stack-fixture.ts';
import type { Stack } from './stack-fixture.ts';

const bound = 20;
const wrongKey = `slc_x_${'a'.repeat(43)}`;
const unfinished = `GET /via/up/x HTTP/1.1\r\nHost: h\r\n${`X-Pad: ${'a'.repeat(1_000)}\r\n`.repeat(14)}`;

let stack: Stack | null = null;
const clients: RawClient[] = [];

afterEach(async () => {
  for (const { socket } of clients.splice(0)) socket.destroy();
  const ended = stack;
  stack = null;
  await ended?.close();
});

async function started(server: string): Promise<Stack> {
  stack = await startStack(answering('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'), { server });
  return stack;
}

async function opened(port: number): Promise<RawClient> {
  const client = await connectRaw(port);
  // What becomes of a connection of a stranger is asked for where it matters.
  client.socket.on('error', () => {});
  client.closed.catch(() => {});
  clients.push(client);
  return client;
}

async function until(what: () => Promise<boolean> | boolean): Promise<void> {
  while (!(await what())) await new Promise((resolve) => setTimeout(resolve, 10));
}

const statusOf = async (client: RawClient, count = 1): Promise<number | undefined> =>
  (await client.responses(count)).at(-1)?.status;

const strangers: readonly (readonly [string, string, boolean])[] = [
  ['say nothing', '', false],
  ['do not finish their head', unfinished, false],
  ['send an empty line', '\r\n', false],
  [
    'had a call with a wrong key',
    `GET /via/up/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer ${wrongKey}\r\n\r\n`,
    true,
  ],
  ['had a call without a key', 'GET /activity HTTP/1.1\r\nHost: h\r\n\r\n', true],
  [
    'had a call without a key, and do not end its body',
    'POST /via/up/x HTTP/1.1\r\nHost: h\r\nContent-Length: 9999\r\n\r\na',
    true,
  ],
  [
    'had a call with a wrong key, and ask whether to send its body',
    `POST /via/up/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer ${wrongKey}\r\nExpect: 100-continue\r\nContent-Length: 9999\r\n\r\n`,
    true,
  ],
  ['asked for what does not exist', 'GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n', true],
];

describe('with all connections taken by clients that', () => {
  test.each(strangers)('%s, a client with a key is served', async (_what, bytes, isAnswered) => {
    const { port, gateway, head, key } = await started(`  maxConnections: ${bound}\n`);
    const own = await opened(port);
    await own.send(head('GET', '/via/up/x'));
    expect(await statusOf(own)).toBe(200);

    for (let at = 0; at < 3 * bound; at += 1) {
      const stranger = await opened(port);
      await stranger.send(bytes);
      if (isAnswered) await stranger.responses(1).catch(() => null);
    }
    for (let at = 0; at < 3; at += 1) {
      const fresh = await opened(port);
      await fresh.send(head('GET', '/via/up/x'));
      expect(await statusOf(fresh)).toBe(200);
    }
    // The connection that had a valid call is still there, though it has been idle for longer than all others.
    await own.send(`GET /activity HTTP/1.1\r\nHost: h\r\nSluice-Key: ${key}\r\n\r\n`);
    expect(await statusOf(own, 2)).toBe(200);
    const open = sumOf(await metricsPage(gateway.adminUrl), 'sluice_connections');
    expect(open).toBeLessThanOrEqual(bound);
  });
});

test('a connection counts as known after any call with a valid key, also one that is refused', async () => {
  const { port, head } = await started(`  maxConnections: ${bound}\n`);
  const refused = await opened(port);
  await refused.send(head('GET', '/via/nobody/x'));
  expect(await statusOf(refused)).toBe(403);
  for (let at = 0; at < 2 * bound; at += 1) await opened(port);
  await refused.send(head('GET', '/via/up/x'));
  expect(await statusOf(refused, 2)).toBe(200);
});

test('of idle strangers the one that has been idle longest goes first', async () => {
  const { port, head } = await started('  maxConnections: 3\n');
  const [first, second, third] = [await opened(port), await opened(port), await opened(port)];
  // Its idle time begins anew with the end of its call.
  await first.send('GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n');
  expect(await statusOf(first)).toBe(404);
  const gone: string[] = [];
  void second.closed.then(() => gone.push('second'));
  void third.closed.then(() => gone.push('third'));
  void first.closed.then(() => gone.push('first'));
  for (const expected of [['second'], ['second', 'third'], ['second', 'third', 'first']]) {
    const known = await opened(port);
    await known.send(head('GET', '/via/up/x'));
    expect(await statusOf(known)).toBe(200);
    await until(() => gone.length === expected.length);
    expect(gone).toEqual(expected);
  }
  const late = await opened(port);
  await late.send(head('GET', '/via/up/x'));
  expect(await statusOf(late)).toBe(503);
});

describe('heads that are not complete', () => {
  test('are counted as what they hold, and no more once they are gone', async () => {
    const { port, gateway } = await started('');
    const headBytes = async (): Promise<number> =>
      sumOf(await metricsPage(gateway.adminUrl), 'sluice_head_bytes');
    for (let at = 0; at < 10; at += 1) await (await opened(port)).send(unfinished);
    await until(async () => (await headBytes()) === 10 * unfinished.length);
    for (const { socket } of clients.splice(0)) socket.destroy();
    await until(async () => (await headBytes()) === 0);
  });

  test('of a kept connection count from the end of its last call', async () => {
    const { port, gateway, head } = await started('');
    const client = await opened(port);
    await client.send(head('GET', '/via/up/x'));
    expect(await statusOf(client)).toBe(200);
    const beginning = 'GET /via/up/y HTTP/1.1\r\n';
    await client.send(beginning);
    await until(
      async () => sumOf(await metricsPage(gateway.adminUrl), 'sluice_head_bytes') === beginning.length,
    );
  });

  test('give way to calls where together they would hold more than may be held', async () => {
    const limit = 200_000;
    const held = await started(`  maxHeldBytes: ${limit}\n  maxBodyBytes: 1000\n`);
    const { port, gateway, head } = held;
    for (let at = 0; at < 40; at += 1) await (await opened(port)).send(unfinished);
    const headBytes = async (): Promise<number> =>
      sumOf(await metricsPage(gateway.adminUrl), 'sluice_head_bytes');
    await until(async () => (await headBytes()) === 40 * unfinished.length);
    const known = await opened(port);
    await known.send(head('GET', '/via/up/x'));
    expect(await statusOf(known)).toBe(200);
    await until(async () => (await headBytes()) <= limit);
    expect(faults(held)).toEqual([]);
  });
});
