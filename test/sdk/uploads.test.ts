/** Official clients that send much: a file in parts, to an address that a response names, and a picture inside a message. */
import { execFile } from 'node:child_process';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterEach, expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { startGateway, type TestGateway } from '../support/gateway.ts';

const mebibyte = 1_048_576;

let upstream: Server;
let gateway: TestGateway;
afterEach(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

interface Received {
  readonly path: string;
  readonly credential: string;
  readonly body: Buffer;
}

/** A model behind a gateway; `respond` gets the upstream's own address. */
async function start(
  credential: string,
  respond: (received: Received, request: IncomingMessage, response: ServerResponse, origin: string) => void,
): Promise<readonly Received[]> {
  const log: Received[] = [];
  upstream = createServer((request, response) => {
    void buffer(request).then((body) => {
      const { url: path = '', headers } = request;
      const received = { path, credential: String(headers[credential] ?? ''), body };
      log.push(received);
      const { port } = upstream.address() as AddressInfo;
      respond(received, request, response, `http://127.0.0.1:${port}`);
    });
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  gateway = await startGateway({
    upstreams: `  model: { kind: language-model, origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, credential: { header: ${credential}, value: upstream-secret }, limits: { tokensPerMinute: 30000 } }`,
  });
  return log;
}

const key = (): string => gateway.keys['acme'] ?? '';

test('@google/genai uploads a file in parts through the gateway, with its credential', async () => {
  const size = 9 * mebibyte;
  let left = size;
  const log = await start('x-goog-api-key', ({ body }, request, response, origin) => {
    const command = request.headers['x-goog-upload-command'];
    const json = { 'content-type': 'application/json' };
    if (command === 'start') {
      const url = `${origin}/upload/v1beta/files?upload_id=u1&upload_protocol=resumable`;
      return void response.writeHead(200, { ...json, 'x-goog-upload-url': url }).end('{}');
    }
    left -= body.length;
    const isDone = left === 0 && String(command).includes('finalize');
    response.writeHead(200, { ...json, 'x-goog-upload-status': isDone ? 'final' : 'active' });
    response.end(isDone ? '{"file":{"name":"files/f1","state":"ACTIVE"}}' : '{}');
  });
  const path = fileURLToPath(new URL('gemini-upload-client.mjs', import.meta.url));
  const env = {
    ...process.env,
    SLUICE_KEY: key(),
    SLUICE_URL: `${gateway.url}/via/model`,
    SIZE: String(size),
  };
  const { stdout } = await promisify(execFile)(process.execPath, [path], { env });
  expect(JSON.parse(stdout)).toMatchObject({ name: 'files/f1' });
  expect(left).toBe(0);
  expect(new Set(log.map(({ credential }) => credential))).toEqual(new Set(['upstream-secret']));
  expect(log.length).toBeGreaterThanOrEqual(3);
  for (const { path: target } of log) expect(target).not.toContain(key());
});

test('the openai client sends a picture of 4 MiB, which takes its tokens and not those of its text', async () => {
  const picture = Buffer.alloc(4 * mebibyte, 7).toString('base64');
  const log = await start('authorization', (_received, _request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(
      '{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"A picture."},"finish_reason":"stop"}],"usage":{"prompt_tokens":800,"completion_tokens":3,"total_tokens":803}}',
    );
  });
  const client = new OpenAI({ apiKey: key(), baseURL: `${gateway.url}/via/model/v1`, maxRetries: 0 });
  const ask = () =>
    client.chat.completions
      .create({
        model: 'gpt-5',
        max_completion_tokens: 100,
        messages: [
          {
            role: 'user',
            content: [
              { type: 'text', text: 'What is this?' },
              { type: 'image_url', image_url: { url: `data:image/png;base64,${picture}` } },
            ],
          },
        ],
      })
      .withResponse();
  // As text each of them would be a million tokens, of 30,000 a minute.
  for (const { data, response } of [await ask(), await ask()]) {
    expect(data.choices[0]?.message.content).toBe('A picture.');
    expect(response.headers.get('sluice-admission')).toContain('attempts=1');
  }
  expect(log).toHaveLength(2);
  for (const { body, credential } of log) {
    expect(body.includes(picture)).toBe(true);
    expect(credential).toBe('upstream-secret');
  }
});
