/** Real clients that give up and ask again: one upstream call each, and the client has its response. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { startGateway, type TestGateway } from '../support/gateway.ts';

/** Longer than the clients' time-outs. Milliseconds. */
const upstreamMs = 3_000;
let gateway: TestGateway;
const seen: string[] = [];
const upstream = createServer((request, response) => {
  seen.push(`${request.method ?? ''} ${request.url ?? ''}`);
  const isOrder = request.url?.includes('orders') === true;
  const responseBody = isOrder
    ? { order: { id: 7 } }
    : { object: 'chat.completion', choices: [{ message: { role: 'assistant', content: 'late' } }] };
  request.resume();
  setTimeout(() => {
    response.writeHead(isOrder ? 201 : 200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(responseBody));
  }, upstreamMs);
});

beforeAll(async () => {
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const of = (name: string, kind: string, more = ''): string =>
    `  ${name}:\n    kind: ${kind}\n    origins: ["${origin}"]\n    allowPrivateAddresses: true\n    credential: token\n${more}`;
  gateway = await startGateway({
    upstreams:
      of('openai', 'language-model') +
      of('shop', 'commerce') +
      of('hooks', 'generic', '    idempotencyFields: [x-shopify-webhook-id]\n'),
    workspaces: { team: '' },
  });
});
afterAll(async () => {
  await gateway.close();
  upstream.close();
  upstream.closeAllConnections();
});

const key = (): string => gateway.keys['team'] ?? '';
const times = (path: string): number => seen.filter((line) => line.includes(path)).length;

test.concurrent(
  'openai with a time-out of 2 s and 5 retries makes one upstream call and gets its response',
  async () => {
    const client = new OpenAI({
      apiKey: key(),
      baseURL: `${gateway.url}/via/openai/v1`,
      timeout: 2_000,
      maxRetries: 5,
    });
    const messages = [{ role: 'user' as const, content: 'hi' }];
    const response = await client.chat.completions.create({ model: 'gpt-4o', messages });
    expect(response.choices[0]?.message.content).toBe('late');
    expect(times('/chat/completions')).toBe(1);
  },
);

test.concurrent('a sender of webhooks that replays each order five times, some at once', async () => {
  const deliver = async (id: number): Promise<number> => {
    const response = await fetch(`${gateway.url}/via/hooks/worker`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key()}`, 'x-shopify-webhook-id': `hook-${id}` },
      body: `order ${id}`,
    });
    await response.text();
    return response.status;
  };
  const orders = [1, 2, 3];
  const first = await Promise.all(orders.flatMap((id) => [deliver(id), deliver(id), deliver(id)]));
  const later = await Promise.all(orders.flatMap((id) => [deliver(id), deliver(id)]));
  expect(new Set([...first, ...later])).toEqual(new Set([200]));
  expect(times('/worker')).toBe(3);
});
