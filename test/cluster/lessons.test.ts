/** What one replica learns from the responses of a provider, the others use for their next call: real gateways, one Redis. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import type { SharedEstimate } from '../../src/limiter/estimate-store.ts';
import type { Service } from '../../src/service.ts';
import { tally } from '../journey/world.ts';
import { serviceOf } from '../support/gateway.ts';
import { fleetConfig } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

let redis: RedisServer;
let listener: Redis;
/** What replicas say to one another of charges. */
let heard: SharedEstimate[] = [];
beforeAll(async () => {
  redis = await startRedis();
  listener = new Redis(redis.port);
  listener.on('pmessage', (_pattern: string, _channel: string, text: string) => {
    const [, said = '[]'] = /^\S+ estimates (.*)$/.exec(text) ?? [];
    heard.push(...(JSON.parse(said) as SharedEstimate[]));
  });
  await listener.psubscribe('sluice:replicas:*');
});
beforeEach(() => {
  heard = [];
});
const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});
afterAll(async () => {
  listener.disconnect();
  await redis.stop();
});

interface Fleet {
  /** Three replicas; the last one knows of the others from its first call on. */
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

/** Resolves when the other replicas have been sent such an estimate. */
const isSaid = (holds: (estimate: SharedEstimate) => boolean): Promise<void> =>
  until(() => heard.some(holds));

test('twelve calls leave side by side at a replica that has heard how little calls like them produce', async () => {
  const held: ServerResponse[] = [];
  let isHolding = false;
  const finish = (response: ServerResponse): void => {
    const usage = { prompt_tokens: 5, completion_tokens: 5, total_tokens: 10 };
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ choices: [{ message: { content: 'hi' } }], usage }));
  };
  const fleet = await startFleet(1, 'tokensPerMinute: 30000', (_request, response) => {
    if (isHolding) held.push(response);
    else finish(response);
  });
  const path = '/v1/chat/completions';
  const body = { model: 'm', max_tokens: 5_000, messages: [{ role: 'user', content: 'hello' }] };
  for (let n = 0; n < 40; n += 1) expect(await fleet.ask(2, path, body, 'wait=60')).toBe(200);
  await isSaid(
    (said) => said.kind === 'model' && (said.output?.mean ?? 50) + (said.output?.deviation ?? 0) < 50,
  );
  // Taken to produce what they allow, six of them at once would use up the minute, and the others could not wait.
  isHolding = true;
  let over = 0;
  const calls = Array.from({ length: 12 }, async () => {
    const status = await fleet.ask(0, path, body);
    over += 1;
    return { status };
  });
  await until(() => held.length + over >= calls.length);
  held.forEach(finish);
  expect(tally(await Promise.all(calls))).toEqual({ 200: 12 });
});

test('a prompt that is found not to lie in the cache is expected to be counted whole by all replicas', async () => {
  const asked: string[] = [];
  const fleet = await startFleet(2, '', (request, response) => {
    asked.push(String(request.url));
    response.setHeader('content-type', 'application/json');
    response.setHeader('anthropic-ratelimit-input-tokens-limit', '50000');
    response.setHeader('anthropic-ratelimit-input-tokens-remaining', '10000');
    const reset = new Date(Date.now() + 48_000).toISOString();
    response.setHeader('anthropic-ratelimit-input-tokens-reset', reset);
    const usage = {
      input_tokens: 40_000,
      cache_creation_input_tokens: 0,
      cache_read_input_tokens: 0,
      output_tokens: 5,
    };
    response.end(JSON.stringify({ content: [{ type: 'text', text: 'hi' }], usage }));
  });
  const path = '/v1/messages';
  const body = {
    model: 'claude-sonnet-5',
    max_tokens: 100,
    system: [{ type: 'text', text: 'x'.repeat(160_000), cache_control: { type: 'ephemeral' } }],
    messages: [{ role: 'user', content: 'hello' }],
  };
  expect(await fleet.ask(2, path, body)).toBe(200);
  await isSaid((said) => said.kind === 'prompt' && said.kept === 0);
  // Taken to lie in the cache, as it is marked, it would be sent, and refused upstream.
  expect([await fleet.ask(0, path, body), await fleet.ask(1, path, body)]).toEqual([429, 429]);
  expect(asked).toHaveLength(1);
});

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
    until(() => fleet.replicas[2]?.gateway.buckets().some(({ snapshot }) => snapshot[what] > 0) === true);
  await isSeen('closedMs');
  // The next call of that replica reaches Redis behind the closing: once it waits there, the others can know the closing.
  const third = ask(2);
  await isSeen('waiting');
  expect(await Promise.all([ask(0), ask(1), third])).toEqual([200, 200, 200]);
  expect(arrivals).toHaveLength(4);
  expect(Math.min(...arrivals.slice(1)) - refusedAt).toBeGreaterThanOrEqual(2_000);
});
