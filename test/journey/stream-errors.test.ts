/** An error inside a 200 stream: before the first content it is absorbed like any refusal, behind it the stream passes as it is. */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

const event = (data: unknown, name?: string): string =>
  `${name === undefined ? '' : `event: ${name}\n`}data: ${JSON.stringify(data)}\n\n`;
const limited =
  'Rate limit reached for m in organization org-A on tokens per min (TPM): Limit 30000, Used 22999, Requested 7002. Please try again in 20ms.';

const role = event({
  choices: [{ index: 0, delta: { role: 'assistant', content: '' }, finish_reason: null }],
});
const content = event({ choices: [{ index: 0, delta: { content: 'hi' }, finish_reason: null }] });
const start = event({ type: 'message_start', message: { usage: { input_tokens: 3 } } }, 'message_start');
const created = event({ type: 'response.created', response: { error: null } }, 'response.created');
const chatError = event({ error: { type: 'tokens', code: 'rate_limit_exceeded', message: limited } });

let gateway: TestGateway | null = null;
let close = async (): Promise<void> => {};
afterEach(async () => {
  await gateway?.close();
  await close();
});

/** The first response is the given stream, all others are content. Returns what a call brings, and how often it was sent. */
async function send(
  first: (response: ServerResponse) => void,
): Promise<{ text: string; sent: number; status: number }> {
  let sent = 0;
  const server = createServer((request, response) => {
    request.resume();
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    sent += 1;
    if (sent === 1) first(response);
    else response.end(role + content);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(() => resolve()));
  };
  const { port } = server.address() as AddressInfo;
  gateway = await startGateway({
    upstreams: `  model: { kind: language-model, origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true }`,
  });
  const response = await fetch(`${gateway.url}/via/model/v1/chat/completions`, {
    method: 'POST',
    headers: { 'sluice-key': gateway.keys['acme'] ?? '', 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hello' }], stream: true }),
  });
  return { status: response.status, text: await response.text(), sent };
}

describe('an error inside a 200 stream', () => {
  test.each([
    ['at its very start', [chatError]],
    ['behind the empty role of a chat', [role, chatError]],
    [
      'behind the beginning of a message',
      [start, event({ type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }, 'error')],
    ],
    [
      'behind the beginning of a response',
      [
        created,
        event(
          { type: 'response.failed', response: { error: { code: 'rate_limit_exceeded', message: limited } } },
          'response.failed',
        ),
      ],
    ],
    [
      'as a bare event of the Responses API',
      [
        created,
        event({ type: 'error', code: 'rate_limit_exceeded', message: limited, param: null }, 'error'),
      ],
    ],
    [
      'without data:, as Gemini writes it',
      [
        JSON.stringify({
          error: {
            code: 429,
            message: 'Resource exhausted',
            status: 'RESOURCE_EXHAUSTED',
            details: [{ retryDelay: '0.02s' }],
          },
        }),
      ],
    ],
  ])('that is %s is absorbed, and the client sees only the next response', async (_name, parts) => {
    const { status, text, sent } = await send((response) => response.end(parts.join('')));
    expect({ status, text, sent }).toEqual({ status: 200, text: role + content, sent: 2 });
  });

  test('after content is passed on unchanged', async () => {
    const { text, sent } = await send((response) => response.end(role + content + chatError));
    expect({ text, sent }).toEqual({ text: role + content + chatError, sent: 1 });
  });

  test('that is permanent is passed on unchanged', async () => {
    const spent = event({
      error: { type: 'insufficient_quota', code: 'insufficient_quota', message: 'no money' },
    });
    const { text, sent } = await send((response) => response.end(role + spent));
    expect({ text, sent }).toEqual({ text: role + spent, sent: 1 });
  });

  test('that is not about a limit is passed on unchanged', async () => {
    const broken = event({ error: { type: 'server_error', message: 'boom' } });
    const { text, sent } = await send((response) => response.end(broken));
    expect({ text, sent }).toEqual({ text: broken, sent: 1 });
  });
});

test('a stream without content is held back only for a moment, and its end is passed on', async () => {
  const { text, sent } = await send((response) => response.end(role));
  expect({ text, sent }).toEqual({ text: role, sent: 1 });
});

test('a stream that stays silent behind its first event is passed on meanwhile', async () => {
  const asked = Promise.withResolvers<() => void>();
  const answered = send((response) => {
    response.write(role);
    asked.resolve(() => void response.end(content));
  });
  const finish = await asked.promise;
  await new Promise((resolve) => setTimeout(resolve, 600));
  finish();
  expect((await answered).text).toBe(role + content);
});

test('a stream that breaks before its first content breaks for its client, too', async () => {
  await expect(
    send((response) => {
      response.write(role);
      setTimeout(() => response.destroy(), 20);
    }),
  ).rejects.toThrow();
});
