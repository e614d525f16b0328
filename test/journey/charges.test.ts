/** The charge of a call when the responses of the upstream state no levels: the units that `usage` states. */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

type Answering = (response: ServerResponse, tokens: number) => void;

const usageOf = (tokens: number) => ({
  prompt_tokens: 3,
  completion_tokens: tokens - 3,
  total_tokens: tokens,
});

/** A body in one piece with its length stated. */
const whole: Answering = (response, tokens) => {
  const body = JSON.stringify({ choices: [{ message: { content: 'hi' } }], usage: usageOf(tokens) });
  response.setHeader('content-type', 'application/json');
  response.setHeader('content-length', body.length);
  response.end(body);
};

/** A body in pieces, longer than what is read at once. */
const inPieces: Answering = (response, tokens) => {
  response.setHeader('content-type', 'application/json; charset=utf-8');
  response.write(`{"choices":[{"message":{"content":"${'x'.repeat(100_000)}"}}],`);
  setImmediate(() => response.end(`"usage":${JSON.stringify(usageOf(tokens))}}`));
};

const streamed: Answering = (response, tokens) => {
  response.setHeader('content-type', 'text/event-stream');
  response.write('data: {"choices":[{"delta":{"content":"hi"}}],"usage":null}\n\n');
  response.write(`data: ${JSON.stringify({ choices: [], usage: usageOf(tokens) })}\n\n`);
  response.end('data: [DONE]\n\n');
};

/** Events too long to be read one by one; the end of the stream still states the usage. */
const longEvents: Answering = (response, tokens) => {
  response.setHeader('content-type', 'text/event-stream');
  response.write(`event: response.created\ndata: {"instructions":"${'x'.repeat(200_000)}"}\n\n`);
  const { prompt_tokens: input_tokens, completion_tokens: output_tokens } = usageOf(tokens);
  const usage = { input_tokens, output_tokens, total_tokens: tokens };
  const completed = { type: 'response.completed', response: { instructions: 'x'.repeat(200_000), usage } };
  response.end(`event: response.completed\ndata: ${JSON.stringify(completed)}\n\n`);
};

/** Bedrock's stream of a model in its own form: frames with documents in base64. The head states the input alone. */
const ofBedrock: Answering = (response, tokens) => {
  const metrics = { inputTokenCount: 3, outputTokenCount: tokens - 3 };
  const parts = [{ type: 'message_start', message: { usage: { input_tokens: 3, output_tokens: 1 } } }];
  const last = { type: 'message_stop', 'amazon-bedrock-invocationMetrics': metrics };
  response.setHeader('content-type', 'application/vnd.amazon.eventstream');
  response.setHeader('x-amzn-bedrock-input-token-count', '3');
  for (const part of [...parts, last])
    response.write(
      `\u0000\u0000:event-type{"bytes":"${Buffer.from(JSON.stringify(part)).toString('base64')}","p":"abc"}`,
    );
  response.end();
};

describe.each([
  ['a call with a response in one piece', whole],
  ['a call with a stream of Bedrock', ofBedrock],
  ['a call with a response in pieces', inPieces],
  ['a call with a stream', streamed],
  ['a call with a stream of long events', longEvents],
])('%s without reported levels', (_name, answering) => {
  let gateway: TestGateway | null = null;
  let close = async (): Promise<void> => {};

  afterEach(async () => {
    await gateway?.close();
    await close();
  });

  /** Sends a call with a very short wait and reads its response; `tokens` is its actual use. */
  async function start(tokens: number): Promise<(json: object) => Promise<Response>> {
    const server = createServer((request, response) => {
      request.resume().on('end', () => answering(response, tokens));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    close = () => new Promise((resolve) => server.close(() => resolve()));
    const { port } = server.address() as AddressInfo;
    gateway = await startGateway({
      upstreams: `  model: { kind: language-model, origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, limits: { tokensPerMinute: 30000 } }`,
    });
    const { url, keys } = gateway;
    return async (json) => {
      const response = await fetch(`${url}/via/model/v1/chat/completions`, {
        method: 'POST',
        headers: {
          'sluice-key': keys['acme'] ?? '',
          'content-type': 'application/json',
          prefer: 'wait=2',
        },
        body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hello' }], ...json }),
      });
      await response.arrayBuffer();
      return response;
    };
  }

  test('gives back what max_tokens reserved too much, so that the sixth call of a minute leaves at once', async () => {
    const call = await start(10);
    for (let sent = 0; sent < 8; sent += 1) expect((await call({ max_tokens: 5_000 })).status).toBe(200);
  });

  test('is charged the tokens that it used, so that the next call of 20,000 tokens has to wait', async () => {
    const call = await start(20_000);
    const responses: Response[] = [];
    for (let sent = 0; sent < 4; sent += 1) responses.push(await call({}));
    expect(responses.map(({ status }) => status)).toEqual([200, 429, 429, 429]);
    // 20,000 tokens are used, of which 500 drain in a second, and the next call is expected to use at least as many.
    const seconds = Number(responses[1]?.headers.get('retry-after'));
    expect(seconds).toBeGreaterThan(10);
    expect(seconds).toBeLessThanOrEqual(42);
  });
});
