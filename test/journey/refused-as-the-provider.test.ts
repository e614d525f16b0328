/** A breaker answers with the type and the code of the provider's own error, on every replica, and with nothing else of it. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

const secret = 'free text of the upstream';
const refusals = new Map<string, { status: number; body: unknown }>();
const upstream = createServer((request, response) => {
  request.resume();
  const { status, body } = refusals.get(request.headers.authorization ?? '') ?? { status: 200, body: {} };
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
});

let redis: RedisServer;
const replicas: Service[] = [];
const { key, hash } = createKey();
beforeAll(async () => {
  redis = await startRedis();
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const upstreams = `  model: { kind: language-model, origins: ["${origin}"], allowPrivateAddresses: true }\nredis: { url: "${redis.url}", commandTimeoutMs: 2000 }`;
  const yaml = gatewayYaml({ upstreams, workspaces: { acme: '' } }, { acme: hash });
  replicas.push(await serviceOf(yaml), await serviceOf(yaml));
});
afterAll(async () => {
  for (const replica of replicas) await replica.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
  await redis.stop();
});

async function ask(replica: Service | undefined, credential: string) {
  const response = await fetch(
    `http://127.0.0.1:${replica?.dataAddress.port}/via/model/v1/chat/completions`,
    {
      method: 'POST',
      headers: { 'sluice-key': key, authorization: credential, 'content-type': 'application/json' },
      body: '{"model":"m"}',
    },
  );
  const text = await response.text();
  return { status: response.status, by: response.headers.get('sluice-error'), text };
}

const openai = (type: string | null, code: unknown) => ({
  error: { message: secret, type, code, param: null },
});
test.each([
  [
    'OpenAI',
    429,
    openai('insufficient_quota', 'insufficient_quota'),
    'insufficient_quota',
    'insufficient_quota',
  ],
  [
    'OpenAI, a hard limit',
    429,
    openai('insufficient_quota', 'billing_hard_limit_reached'),
    'insufficient_quota',
    'billing_hard_limit_reached',
  ],
  [
    'OpenAI, an inactive account',
    429,
    openai('billing_not_active', 'billing_not_active'),
    'billing_not_active',
    'billing_not_active',
  ],
  [
    'Anthropic',
    402,
    { type: 'error', error: { type: 'billing_error', message: secret } },
    'billing_error',
    null,
  ],
  [
    'DeepSeek',
    402,
    openai('unknown_error', 'invalid_request_error'),
    'unknown_error',
    'invalid_request_error',
  ],
  [
    'OpenRouter',
    402,
    { error: { message: 'Insufficient credits', code: 402 } },
    'invalid_request_error',
    402,
  ],
  [
    'Google, a spent day',
    429,
    {
      error: {
        code: 429,
        message: secret,
        status: 'RESOURCE_EXHAUSTED',
        details: [{ violations: [{ quotaId: 'RequestsPerDayPerProject' }] }],
      },
    },
    'RESOURCE_EXHAUSTED',
    429,
  ],
  [
    'inside a 200',
    200,
    openai('insufficient_quota', 'insufficient_quota'),
    'insufficient_quota',
    'insufficient_quota',
  ],
  [
    'unknown words',
    402,
    openai(`${secret} as type`, `${secret} as code`),
    'invalid_request_error',
    'upstream_refused',
  ],
  ['words of objects', 402, openai('constructor', '__proto__'), 'invalid_request_error', 'upstream_refused'],
])('%s', async (name, status, body, type, code) => {
  const credential = `Bearer ${name}`;
  const text = JSON.stringify(body).replaceAll(secret, `insufficient credits, ${secret}`);
  refusals.set(credential, { status, body: JSON.parse(text) });
  const [one, other] = replicas;
  expect(await ask(one, credential)).toEqual({ status, by: null, text });
  await until(async () => {
    const { by } = await ask(other, credential);
    return by === 'upstream_refused';
  });
  for (const replica of [one, other]) {
    const reply = await ask(replica, credential);
    expect(reply.by).toBe('upstream_refused');
    expect(JSON.parse(reply.text)).toMatchObject({
      code: 'upstream_refused',
      detail: expect.stringMatching(/ One call asks it again in (?:59|60) s; /),
      error: { type, code, param: null },
    });
    expect(reply.text).not.toContain(secret);
  }
});
