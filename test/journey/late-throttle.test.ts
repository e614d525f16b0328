import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

/** An upstream whose first answer is an event stream that turns into a throttle after its head said success. */
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
      'Rate limit reached for gpt-5.1 in organization org-A on tokens per min (TPM): Limit 30000, Used 22999, Requested 12528. Please try again in 700ms.';
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

  test('reaches its client whole, and delays the next call until the time that it states', async () => {
    const { arrivals, server } = throttlingStream();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    close = () => new Promise((resolve) => server.close(() => resolve()));
    const { port } = server.address() as AddressInfo;
    gateway = await startGateway({
      upstreams: `  model: { kind: language-model, origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true }`,
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
  });
});
