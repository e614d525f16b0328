import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

/** An upstream whose first response is an event stream that turns into a throttle after its head said success. */
function throttlingStream(): {
  readonly arrivals: number[];
  readonly server: ReturnType<typeof createServer>;
} {
  const arrivals: number[] = [];
  const server = createServer((request, response) => {
    arrivals.push(performance.now());
    request.resume();
    if (arrivals.length > 1) {
      response.end('{}');
      return;
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: {"choices":[{"delta":{"content":"a"}}]}\n\n');
    const message =
      'Rate limit reached for gpt-5.1 in organization org-A on tokens per min (TPM): Limit 30000, Used 22999, Requested 7351. Please try again in 700ms.';
    const failed = {
      type: 'response.failed',
      response: { error: { code: 'rate_limit_exceeded', message } },
    };
    response.end(`event: response.failed\ndata: ${JSON.stringify(failed)}\n\n`);
  });
  return { arrivals, server };
}

describe('a 200 event stream that ends in a throttling error', () => {
  let gateway: TestGateway | null = null;
  let close = async (): Promise<void> => {};

  afterEach(async () => {
    await gateway?.close();
    await close();
  });

  test.each([
    ['', ''],
    [' where one call is in flight at a time', ', limits: { maxInFlight: 1 }'],
  ])(
    'reaches its client whole, and delays the next call until the time that it states%s',
    async (_, limits) => {
      const { arrivals, server } = throttlingStream();
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
      close = () => new Promise((resolve) => server.close(() => resolve()));
      const { port } = server.address() as AddressInfo;
      gateway = await startGateway({
        upstreams: `  model: { kind: language-model, origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true${limits} }`,
      });
      const call = () =>
        fetch(`${gateway?.url}/via/model/v1/responses`, {
          method: 'POST',
          headers: { 'sluice-key': gateway?.keys['acme'] ?? '', 'content-type': 'application/json' },
          body: JSON.stringify({ model: 'gpt-5.1', input: 'hello', stream: true }),
        });

      const first = await call();
      expect(await first.text()).toContain('response.failed');
      const second = await call();

      expect(second.status).toBe(200);
      await second.text();
      const [a = 0, b = 0] = arrivals;
      expect(b - a).toBeGreaterThanOrEqual(700);
    },
  );

  test('makes similar calls reserve as many tokens as the error says that this call requested', async () => {
    const held: ServerResponse[] = [];
    let sent = 0;
    const server = createServer((request, response) => {
      request.resume();
      sent += 1;
      if (sent > 1) return void held.push(response);
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const message =
        'Rate limit reached for gpt-5.1 in organization org-A on tokens per min (TPM): Limit 20000, Used 7473, Requested 12528. Please try again in 3ms.';
      const failed = {
        type: 'response.failed',
        response: { error: { code: 'rate_limit_exceeded', message } },
      };
      response.write('data: {"choices":[{"delta":{"content":"a"}}]}\n\n');
      response.end(`event: response.failed\ndata: ${JSON.stringify(failed)}\n\n`);
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    close = () => new Promise((resolve) => server.close(() => resolve()));
    const { port } = server.address() as AddressInfo;
    gateway = await startGateway({
      upstreams: `  model: { kind: language-model, origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, limits: { tokensPerMinute: 20000 } }`,
    });
    const call = async (wait: number) => {
      const reply = await fetch(`${gateway?.url}/via/model/v1/responses`, {
        method: 'POST',
        headers: {
          'sluice-key': gateway?.keys['acme'] ?? '',
          'content-type': 'application/json',
          prefer: `wait=${wait}`,
        },
        body: JSON.stringify({ model: 'gpt-5.1', input: 'hello', stream: true }),
      });
      return { status: reply.status, text: await reply.text(), error: reply.headers.get('sluice-error') };
    };
    expect((await call(60)).text).toContain('response.failed');
    const second = call(60);
    await until(() => held.length === 1);
    // By its bytes it costs 5 tokens; two such calls as the upstream counts them fit into more than a minute's limit only.
    const third = await call(1);
    expect([third.status, third.error, sent]).toEqual([429, 'wait_too_long', 2]);
    held[0]?.writeHead(200, { 'content-type': 'text/event-stream' }).end();
    expect((await second).status).toBe(200);
  });
});
