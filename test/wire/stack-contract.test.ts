/** What callers are promised of responses made by Sluice and of fields it adds, asked of the running gateway. */
import { afterEach, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { connectRaw } from '../support/raw-client.ts';
import type { RawResponse } from '../support/raw-client.ts';
import { answering } from '../support/raw-upstream.ts';
import type { Script } from '../support/raw-upstream.ts';
import { until } from '../support/until.ts';
import { faults, leftBehind, receivedBy, requestLines, startStack } from './stack-fixture.ts';
import type { Stack, StackOptions } from './stack-fixture.ts';

const ok =
  'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Request-Id: theirs\r\nX-RateLimit-Remaining-Requests: 9\r\n\r\nok';
const stacks: Stack[] = [];

async function opened(script: Script = answering(ok), options: StackOptions = {}): Promise<Stack> {
  const stack = await startStack(script, { timeouts: '{ headSeconds: 20 }', ...options });
  stacks.push(stack);
  return stack;
}

afterEach(async () => {
  for (const stack of stacks) expect(faults(stack)).toEqual([]);
  for (const stack of stacks.splice(0)) await stack.close();
});

const get = async (stack: Stack, path = stack.proxy('/x'), more = ''): Promise<RawResponse | undefined> =>
  (await stack.exchange(stack.head('GET', path, more))).responses.at(-1);

test('a response carries our id, what happened to the call, its ceiling and the upstream’s own fields', async () => {
  const response = await get(await opened(undefined, { kind: 'language-model' }));
  expect(response?.field('sluice-request-id')).toMatch(/^[0-9a-f]{32}$/);
  expect(response?.field('sluice-admission')).toMatch(/^waited=\d+, attempts=1, absorbed=0$/);
  expect(response?.field('ratelimit-policy')).toBe('"workspace";q=500;w=60');
  expect(response?.field('ratelimit')).toMatch(/^"workspace";r=499;t=\d+$/);
  expect(response?.field('x-request-id')).toBe('theirs');
  expect(response?.field('x-ratelimit-remaining-requests')).toBe('9');
  expect(response?.field('sluice-error')).toBeUndefined();
});

test('a call with any method is forwarded', async () => {
  const stack = await opened();
  const methods = ['PATCH', 'OPTIONS', 'PUT', 'DELETE', 'PROPFIND', 'QUERY'];
  for (const method of methods) {
    const { responses } = await stack.exchange(stack.head(method, stack.proxy('/m')));
    expect(responses.at(-1)?.status).toBe(200);
  }
  expect(requestLines(receivedBy(stack))).toEqual(methods.map((method) => `${method} /m HTTP/1.1`));
});

test.each([
  ['GET', '/nowhere', '', 404, 'not_found', 'invalid_request_error'],
  ['POST', '/activity', '', 405, 'method_not_allowed', 'invalid_request_error'],
  ['POST', '/via/up/x', 'Content-Length: 10485761\r\n', 413, 'body_too_large', 'invalid_request_error'],
  [
    'POST',
    '/via/up/x',
    'Upgrade: websocket\r\nConnection: upgrade\r\n',
    426,
    'upgrade_unsupported',
    'invalid_request_error',
  ],
])(
  'the refusal of %s %s is a problem document that SDKs can read, too',
  async (method, path, more, status, code, type) => {
    const stack = await opened();
    const { responses } = await stack.exchange(stack.head(method, path, more));
    const [response] = responses;
    expect(response?.status).toBe(status);
    expect(response?.field('content-type')).toBe('application/problem+json');
    expect(response?.field('x-should-retry')).toBe('false');
    expect(response?.field('upgrade')).toBe(status === 426 ? 'HTTP/1.1' : undefined);
    const requestId = response?.field('sluice-request-id');
    expect(JSON.parse(response?.body.toString() ?? '')).toMatchObject({
      status,
      code,
      requestId,
      title: expect.any(String),
      detail: expect.any(String),
      type: expect.any(String),
      error: { message: expect.any(String), type, code, param: null },
    });
  },
);

test('a call without an API key gets 401 with a challenge, also for the activity of its workspace', async () => {
  const stack = await opened();
  for (const path of [stack.proxy('/x'), '/activity']) {
    const { responses } = await stack.exchange(`GET ${path} HTTP/1.1\r\nHost: a\r\n\r\n`);
    expect(responses[0]?.status).toBe(401);
    expect(responses[0]?.field('www-authenticate')).toBe('Bearer');
  }
});

test('a full ceiling refuses at once, with the true time and a hint not to retry', async () => {
  const stack = await opened(undefined, {
    more: '    limits: { requestsPerMinute: 1 }',
    clock: fastClock(1),
  });
  const used = () => stack.metric('sluice_ceiling_used_ratio');
  expect(await used()).toBe(0);
  expect((await get(stack))?.status).toBe(200);
  // Of the minute, and nothing of 10,000 a day yet.
  expect(await used()).toBeCloseTo(1, 3);
  const response = await get(stack, stack.proxy('/x'), 'Prefer: wait=45\r\n');
  expect(response?.field('sluice-error')).toBe('wait_too_long');
  expect(Number(response?.field('retry-after'))).toBeGreaterThanOrEqual(60);
  expect(Number(response?.field('retry-after-ms'))).toBeGreaterThan(59_000);
  expect(response?.field('x-should-retry')).toBe('false');
  expect(response?.field('ratelimit')).toMatch(/^"workspace";r=0;t=\d+$/);
  expect(requestLines(receivedBy(stack))).toHaveLength(1);
});

test('a default ceiling that has yielded to what the upstream states is not told with a refusal either', async () => {
  const throttling =
    'HTTP/1.1 429 Slow\r\nX-RateLimit-Limit-Requests: 900\r\nRetry-After: 80\r\nContent-Length: 0\r\n\r\n';
  const stack = await opened(answering(throttling), { kind: 'language-model', clock: fastClock(1) });
  expect((await get(stack))?.field('ratelimit')).toMatch(/^"workspace";r=499;/);
  const refused = await get(stack);
  expect(['sluice-error', 'ratelimit', 'ratelimit-policy'].map((name) => refused?.field(name))).toEqual([
    'wait_too_long',
    undefined,
    undefined,
  ]);
});

test('a closed bucket refuses attempts, and they do not reach the upstream', async () => {
  const throttling = 'HTTP/1.1 429 Slow\r\nRetry-After: 80\r\nContent-Length: 0\r\n\r\n';
  const stack = await opened(answering(throttling), { clock: fastClock(1) });
  const first = await get(stack);
  expect([first?.status, first?.field('sluice-error'), first?.field('retry-after')]).toEqual([
    429,
    undefined,
    '80',
  ]);
  for (let n = 0; n < 5; n += 1) {
    const again = await get(stack);
    expect(again?.field('sluice-error')).toBe('wait_too_long');
    expect(Number(again?.field('retry-after'))).toBeGreaterThan(75);
  }
  expect(requestLines(receivedBy(stack))).toHaveLength(1);
});

const queueDepth = (stack: Stack): Promise<number> => stack.metric('sluice_queue_depth');

test('a full lane and an expired wait never suggest a retry at once', async () => {
  const stack = await opened(() => {}, { kind: 'commerce', more: '    limits: { maxQueued: 1 }' });
  const first = await connectRaw(stack.port);
  await first.send(stack.head('GET', stack.proxy('/1')));
  await until(() => receivedBy(stack) !== '');
  const second = await connectRaw(stack.port);
  await second.send(stack.head('GET', stack.proxy('/2'), 'Prefer: wait=300\r\n'));
  await until(async () => (await queueDepth(stack)) === 1);
  const full = await get(stack, stack.proxy('/3'));
  expect(full?.field('sluice-error')).toBe('queue_full');
  expect(Number(full?.field('retry-after-ms'))).toBeGreaterThanOrEqual(1_000);
  second.abort();
  await until(async () => (await queueDepth(stack)) === 0);
  const expired = await get(stack, stack.proxy('/4'), 'Prefer: wait=1\r\n');
  // On a slow machine the call in flight may have taken so long by now that the call behind it is refused at once.
  expect(['wait_expired', 'wait_too_long']).toContain(expired?.field('sluice-error'));
  // Either way it is the call in flight that held this one, not a ceiling.
  expect(JSON.parse(expired?.body.toString() ?? '{}')).toMatchObject({ heldBy: 'serialized' });
  expect(Number(expired?.field('retry-after-ms'))).toBeGreaterThanOrEqual(1_000);
  first.abort();
  expect(await leftBehind(stack)).toEqual({});
});

test('a revoked API key ends a waiting call with 401, without a restart', async () => {
  const stack = await opened(() => {}, { kind: 'commerce' });
  const first = await connectRaw(stack.port);
  await first.send(stack.head('GET', stack.proxy('/1')));
  await until(() => receivedBy(stack) !== '');
  const held = get(stack, stack.proxy('/2'), 'Prefer: wait=300\r\n');
  await until(async () => (await queueDepth(stack)) === 1);
  const { gateway } = stack;
  await gateway.reload(gateway.yaml.replace(/sha256:[0-9a-f]{64}/, `sha256:${'ab'.repeat(32)}`));
  expect((await held)?.status).toBe(401);
  first.abort();
});

test('a client brings its own credential where none is configured, and nothing else', async () => {
  const stack = await opened(undefined, { credential: null });
  const { key } = stack;
  const fields = `Sluice-Key: ${key}\r\nAuthorization: Bearer own\r\nCookie: c=d\r\n`;
  await stack.exchange(`GET /via/up/a HTTP/1.1\r\nHost: a\r\n${fields}\r\n`);
  await get(stack, stack.proxy('/b'), 'Sluice-Upstream-Authorization: Token own\r\nX-Api-Key: mine\r\n');
  const [one = '', two = ''] = receivedBy(stack).split(/(?=GET \/b )/);
  expect(one).toMatch(/\r\nauthorization: Bearer own\r\n/);
  expect(one).toMatch(/\r\ncookie: c=d\r\n/);
  expect(two).toMatch(/\r\nauthorization: Token own\r\n/);
  expect(two).toMatch(/\r\nx-api-key: mine\r\n/);
  expect(one + two).not.toContain(key);
});

test('a silent event stream gets comments between its events and within none, if that is configured', async () => {
  let allowed = 0;
  const script: Script = async (connection) => {
    await connection.requests(1);
    connection.send(
      'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n',
    );
    for (const [at, part] of ['data: 1\n\n', 'data: ', '2\n\n'].entries()) {
      await until(() => allowed > at);
      connection.send(`${part.length.toString(16)}\r\n${part}\r\n`);
    }
    await until(() => allowed > 3);
    connection.send('0\r\n\r\n');
  };
  const stack = await opened(script, { more: '    keepAliveComments: 0.05' });
  const response = await fetch(`http://127.0.0.1:${stack.port}${stack.proxy('/x')}`, {
    headers: { authorization: `Bearer ${stack.key}` },
  });
  let text = '';
  const reading = (async () => {
    for await (const bytes of response.body ?? []) text += Buffer.from(bytes).toString();
  })();
  const comments = (): number => text.split(': waiting\n\n').length - 1;
  await until(() => comments() >= 2);
  allowed += 1;
  await until(() => text.includes('data: 1'));
  const before = comments();
  await until(() => comments() >= before + 2);
  allowed += 1;
  await until(() => text.endsWith('data: '));
  // Several silences long.
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(text.endsWith('data: ')).toBe(true);
  allowed += 1;
  await until(() => text.endsWith(': waiting\n\n'));
  allowed += 1;
  await reading;
  expect(text.replaceAll(': waiting\n\n', '')).toBe('data: 1\n\ndata: 2\n\n');
});
