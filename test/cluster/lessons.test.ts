/** What one replica learns from the responses of a provider, the others use for their next call: real gateways, one Redis. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import type { Service } from '../../src/service.ts';
import { serviceOf } from '../support/gateway.ts';
import { fleetConfig } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});
afterAll(async () => {
  await redis.stop();
});

interface Fleet {
  /** Three replicas. */
  readonly replicas: readonly Service[];
  /** One call, which waits for a second unless `prefer` says otherwise; its status. */
  ask(replica: number, path: string, body: object, prefer?: string): Promise<number>;
}

/** Three replicas in front of a provider that answers like this. */
async function startFleet(
  database: number,
  modelLimits: string,
  respond: (request: IncomingMessage, response: ServerResponse) => void,
): Promise<Fleet> {
  const provider = createServer((request, response) => {
    request.resume().on('end', () => respond(request, response));
  });
  await new Promise<void>((resolve) => provider.listen(0, '127.0.0.1', resolve));
  open.push(() => new Promise((resolve) => provider.close(resolve)));
  const config = fleetConfig({
    redis: `url: "${redis.url}/${database}", commandTimeoutMs: 2000`,
    modelUrl: `http://127.0.0.1:${(provider.address() as AddressInfo).port}`,
    modelLimits,
    workspace: '    requestsPerMinute: { openai: 100000 }\n    requestsPerDay: { openai: 1000000 }',
  });
  const replicas: Service[] = [];
  for (let n = 0; n < 3; n += 1) {
    const service = await serviceOf(config.yaml());
    open.push(() => service.close());
    replicas.push(service);
  }
  return {
    replicas,
    async ask(replica, path, body, prefer = 'wait=1') {
      const response = await fetch(
        `http://127.0.0.1:${replicas[replica]?.dataAddress.port}/via/openai${path}`,
        {
          method: 'POST',
          headers: {
            authorization: `Bearer ${config.keys['acme']}`,
            'content-type': 'application/json',
            prefer,
          },
          body: JSON.stringify(body),
        },
      );
      await response.arrayBuffer();
      return response.status;
    },
  };
}

test('an error behind the content of a stream keeps every replica from sending until the time that it states', async () => {
  const arrivals: number[] = [];
  let refusedAt = Infinity;
  const fleet = await startFleet(3, '', (_request, response) => {
    arrivals.push(performance.now());
    response.setHeader('content-type', 'text/event-stream');
    response.write('data: {"choices":[{"delta":{"content":"a"}}]}\n\n');
    if (arrivals.length > 1) return void response.end('data: [DONE]\n\n');
    const message =
      'Rate limit reached for m in organization org-A on requests per min (RPM): Limit 60, Used 60, Requested 1. Please try again in 2s.';
    const error = { type: 'requests', code: 'rate_limit_exceeded', message };
    refusedAt = performance.now();
    response.end(`data: ${JSON.stringify({ error })}\n\n`);
  });
  const ask = (replica: number): Promise<number> =>
    fleet.ask(replica, '/v1/chat/completions', { model: 'm', stream: true, messages: [] }, 'wait=30');
  expect(await ask(2)).toBe(200);
  const isSeen = (what: 'closedMs' | 'waiting'): Promise<void> =>
    until(
      () =>
        fleet.replicas[2]?.gateway.parts.pressure.buckets().some(({ snapshot }) => snapshot[what] > 0) ===
        true,
    );
  await isSeen('closedMs');
  // The next call of that replica reaches Redis behind the closing: once it waits there, the others can know the closing.
  const third = ask(2);
  await isSeen('waiting');
  expect(await Promise.all([ask(0), ask(1), third])).toEqual([200, 200, 200]);
  expect(arrivals).toHaveLength(4);
  expect(Math.min(...arrivals.slice(1)) - refusedAt).toBeGreaterThanOrEqual(2_000);
});
