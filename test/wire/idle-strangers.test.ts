/** Connections of clients that have shown no valid key cannot keep out those of clients that have one. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { connectRaw, type RawClient } from '../support/raw-client.ts';
import { bytes } from '../support/scripts.ts';
import { until } from '../support/until.ts';
import { stacks, type Stack } from './stack-fixture.ts';

const bound = 20;
const wrong = `Authorization: Bearer slc_x_${'a'.repeat(43)}`;
const unfinished = bytes(`GET /via/up/x HTTP/1.1|Host: h|${`X-Pad: ${'a'.repeat(1_000)}|`.repeat(14)}`);

const clients: RawClient[] = [];
const leave = (): void => {
  for (const { socket } of clients.splice(0)) socket.destroy();
};
afterEach(leave);
const opened = stacks();
const started = (server = `  maxConnections: ${bound}\n`): Promise<Stack> => opened(undefined, { server });

async function enter({ port }: Stack, sent = ''): Promise<RawClient> {
  const client = await connectRaw(port);
  // What becomes of a connection of a stranger is asked for where it matters.
  client.socket.on('error', () => {});
  client.closed.catch(() => {});
  clients.push(client);
  if (sent !== '') await client.send(sent);
  return client;
}
async function crowd(stack: Stack, count: number, sent = ''): Promise<void> {
  for (let at = 0; at < count; at += 1) await enter(stack, sent);
}
/** Makes one more call with the key on a connection, which has had so many; its status. */
async function call(stack: Stack, client: RawClient, earlier = 0): Promise<number | undefined> {
  await client.send(stack.head('GET', '/via/up/x'));
  return (await client.responses(earlier + 1)).at(-1)?.status;
}
const newcomer = async (stack: Stack) => call(stack, await enter(stack));

describe('with all connections taken by clients that', () => {
  const post = 'POST /via/up/x HTTP/1.1|Host: h|Content-Length: 9999|';
  test.each([
    ['say nothing', '', false],
    ['do not finish their head', unfinished, false],
    ['send an empty line', '|', false],
    ['had a call with a wrong key', `GET /via/up/x HTTP/1.1|Host: h|${wrong}||`, true],
    ['had a call without a key', 'GET /activity HTTP/1.1|Host: h||', true],
    ['had a call without a key, and do not end its body', `${post}|a`, true],
    ['ask whether to send a body, with a wrong key', `${post}${wrong}|Expect: 100-continue||`, true],
    ['asked for what does not exist', 'GET /nowhere HTTP/1.1|Host: h||', true],
  ])('%s, a client with a key is served', async (_what, sent, isAnswered) => {
    const stack = await started();
    const own = await enter(stack);
    expect(await call(stack, own)).toBe(200);
    for (let at = 0; at < 3 * bound; at += 1) {
      const stranger = await enter(stack, bytes(sent));
      if (isAnswered) await stranger.responses(1).catch(() => null);
    }
    for (const _fresh of [1, 2, 3]) expect(await newcomer(stack)).toBe(200);
    // The connection that had a valid call is still there, though it has been idle for longer than all others.
    expect(await call(stack, own, 1)).toBe(200);
    expect(await stack.metric('sluice_connections')).toBeLessThanOrEqual(bound);
  });
});

test('a connection counts as known after any call with a valid key, also one that is refused', async () => {
  const stack = await started();
  const refused = await enter(stack, stack.head('GET', '/via/nobody/x'));
  expect((await refused.responses(1))[0]?.status).toBe(403);
  await crowd(stack, 2 * bound);
  expect(await call(stack, refused, 1)).toBe(200);
});

test('of idle strangers the one that has been idle longest goes first', async () => {
  const stack = await started('  maxConnections: 3\n');
  const strangers = [await enter(stack), await enter(stack), await enter(stack)] as const;
  // Its idle time begins anew with the end of its call.
  await strangers[0].send(bytes('GET /nowhere HTTP/1.1|Host: h||'));
  expect((await strangers[0].responses(1))[0]?.status).toBe(404);
  const gone: number[] = [];
  for (const [at, { closed }] of strangers.entries()) void closed.then(() => gone.push(at));
  for (const expected of [[1], [1, 2], [1, 2, 0]]) {
    expect(await newcomer(stack)).toBe(200);
    await until(() => gone.length === expected.length);
    expect(gone).toEqual(expected);
  }
  expect(await newcomer(stack)).toBe(503);
});

describe('heads that are not complete', () => {
  const held = (stack: Stack): Promise<number> => stack.metric('sluice_head_bytes');

  test('are counted as what they hold, and no more once they are gone', async () => {
    const stack = await started('');
    await crowd(stack, 10, unfinished);
    await until(async () => (await held(stack)) === 10 * unfinished.length);
    leave();
    await until(async () => (await held(stack)) === 0);
  });

  test('of a kept connection count from the end of its last call', async () => {
    const stack = await started('');
    const client = await enter(stack);
    expect(await call(stack, client)).toBe(200);
    const beginning = 'GET /via/up/y HTTP/1.1\r\n';
    await client.send(beginning);
    await until(async () => (await held(stack)) === beginning.length);
  });

  test('give way to calls where together they would hold more than may be held', async () => {
    const stack = await started('  maxHeldBytes: 200000\n  maxBodyBytes: 1000\n');
    await crowd(stack, 40, unfinished);
    await until(async () => (await held(stack)) === 40 * unfinished.length);
    expect(await newcomer(stack)).toBe(200);
    await until(async () => (await held(stack)) <= 200_000);
  });
});
