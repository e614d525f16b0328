/** A repeated request is one upstream call: while the first is under way, and from what was kept of it afterwards. */
import { request as httpRequest } from 'node:http';
import { afterEach, describe, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { until } from '../support/until.ts';
import { scripted, type Script, type Scripted, type ScriptedOptions } from './scripted.ts';
import { bucketsOf, closeAll, metric, type Sending } from './world.ts';

afterEach(closeAll);

const orders = '/via/api/orders';
const keyed = (key: string): Record<string, string> => ({ 'idempotency-key': key });
/** The n-th attempt of an SDK. */
const attempt = (n: number) => ({ 'x-stainless-retry-count': String(n) });
const heldBack: Script = () => undefined;

async function start(script: Script, more = '', options: ScriptedOptions = {}) {
  const front = await scripted(script, {
    upstreams: { api: `credential: "Bearer x", ${more}` },
    ...options,
  });
  const post = (headers: Record<string, string>, sending: Sending = {}) =>
    front.ask(orders, { body: 'a', headers, ...sending });
  return {
    ...front,
    post,
    /** Resolves when so many requests have joined the call of another one. */
    joined: (count: number) =>
      until(async () => (await metric(front.gateway, 'sluice_repeats_joined_total')) === count),
    /** Ends the response to the n-th call. */
    respond: (n = 1) => void front.arrivals[n - 1]?.response.end(`response ${n}`),
    /** Posts, and hangs up when the upstream has it. */
    async leave(headers: Record<string, string>) {
      const leaving = new AbortController();
      const left = post(headers, { signal: leaving.signal }).catch(() => 'left');
      await front.arrived(front.arrivals.length + 1);
      leaving.abort();
      expect(await left).toBe('left');
    },
  };
}

/** Posts, and hangs up with the first bytes of the response. */
async function leaveAmidResponse({ gateway }: Scripted, headers: Record<string, string>, body = 'a') {
  const leaving = new AbortController();
  const response = await fetch(gateway.url + orders, {
    method: 'POST',
    body,
    headers: { 'sluice-key': gateway.keys['acme'] ?? '', ...headers },
    signal: leaving.signal,
  });
  await response.body?.getReader().read();
  leaving.abort();
}

describe('a response that was kept', () => {
  test('is given to the same request with its status, fields and bytes, and counted', async () => {
    const { post, arrivals, gateway } = await start(({ response }) => {
      response.writeHead(201, { 'x-order': '7', 'content-type': 'application/json' });
      response.end(Buffer.from([0xc3, 0xa9, 0, 1]));
    });
    await post(keyed('one'));
    const { status, headers, text } = await post(keyed('one'));
    expect([status, headers.get('x-order'), headers.get('sluice-replayed')]).toEqual([201, '7', 'true']);
    expect([text, arrivals.length]).toEqual(['é\0\u0001', 1]);
    expect(await metric(gateway, 'sluice_idempotent_replays_total{upstream="api"}')).toBe(1);
  });

  test.each([300, 304, 400, 401, 403, 404, 408, 409, 410, 412, 422, 423, 425, 500, 501, 503])(
    'was none with the status %d: the upstream is asked again',
    async (status) => {
      const { post, arrivals } = await start(({ n }) => (n === 1 ? { status, body: '' } : {}));
      await post(keyed('one'));
      const asked = arrivals.length;
      const again = await post(keyed('one'));
      expect([again.headers.get('sluice-replayed'), again.status, arrivals.length]).toEqual([
        null,
        200,
        asked + 1,
      ]);
    },
  );

  test('was none that broke off', async () => {
    const { post, arrivals } = await start(({ n, response }) => {
      if (n > 1) return { body: 'whole' };
      response.writeHead(200, { 'content-length': '10' }).write('half');
      return void setTimeout(() => response.destroy(), 50);
    });
    await expect(post(keyed('one'))).rejects.toThrow();
    expect([(await post(keyed('one'))).text, arrivals.length]).toEqual(['whole', 2]);
  });

  test('is not larger than idempotency.maxBytes: a repeat of a larger one is a conflict and runs nothing', async () => {
    const { post, arrivals } = await start(
      ({ response }) => {
        response.write('x'.repeat(2_500));
        setTimeout(() => response.end('x'.repeat(2_500)), 50);
      },
      '',
      { sections: 'idempotency: { maxBytes: 4000 }' },
    );
    expect((await post(keyed('one'))).text).toHaveLength(5_000);
    const conflict = { status: 409, error: 'idempotency_conflict', shouldRetry: 'false' };
    expect(await post(keyed('one'))).toMatchObject(conflict);
    expect(arrivals).toHaveLength(1);
  });
});

test('requests with the same Idempotency-Key become one upstream call, and all of them get its response', async () => {
  const { post, joined, respond, arrivals } = await start(heldBack);
  const posts = ['k', '"k"', 'k'].map((key) => post(keyed(key)));
  await joined(2);
  respond();
  const replies = await Promise.all(posts);
  expect(replies.map(({ text }) => text)).toEqual(Array(3).fill('response 1'));
  expect(new Set(replies.map(({ headers }) => headers.get('sluice-request-id'))).size).toBe(3);
  expect(arrivals).toHaveLength(1);
});

test('a resend by an SDK joins the identical call whose client leaves a moment after it came', async () => {
  const { post, arrived, joined, respond } = await start(heldBack);
  const leaving = new AbortController();
  const first = post(attempt(0), { signal: leaving.signal }).catch(() => 'left');
  await arrived(1);
  const again = post(attempt(1));
  leaving.abort();
  expect(await first).toBe('left');
  await joined(1);
  respond();
  expect((await again).text).toBe('response 1');
});

describe('a client that leaves a call that has been sent', () => {
  test('and that carries a key does not end it: its repeat joins, a later one gets what was kept', async () => {
    const { leave, post, joined, respond, arrivals } = await start(heldBack);
    await leave(keyed('one'));
    const repeat = post(keyed('one'));
    await joined(1);
    respond();
    expect((await repeat).text).toBe('response 1');
    const later = await post(keyed('one'));
    expect([later.text, later.headers.get('sluice-replayed')]).toEqual(['response 1', 'true']);
    expect(arrivals.map(({ isCut }) => isCut)).toEqual([false]);
  });

  test('and is an SDK gets its response with the repeat, also when it has come meanwhile', async () => {
    const { leave, post, respond, arrived, arrivals, gateway } = await start(heldBack);
    await leave(attempt(0));
    respond();
    await until(() => gateway.service.gateway.parts.repeats.memory().keptBytes > 0);
    expect((await post(attempt(1))).text).toBe('response 1');
    // It was one repeat; the next equal call is a call of its own, also one that says that it is a repeat.
    for (const n of [2, 3]) {
      const next = post(attempt(1));
      await arrived(n);
      respond(n);
      expect((await next).text).toBe(`response ${n}`);
    }
    expect(arrivals.some(({ isCut }) => isCut)).toBe(false);
  });

  test('amid its response, and whose repeat could not have its beginning any more, ends it', async () => {
    const sections = 'idempotency: { maxBytes: 4000 }';
    const api = await start(({ response }) => void response.write('x'.repeat(5_000)), '', { sections });
    await leaveAmidResponse(api, attempt(0));
    await until(() => api.arrivals[0]?.isCut === true);
  });

  test('has it finished by a process that ends', async () => {
    const server = '  drainSeconds: 5\n  drainDelaySeconds: 0\n';
    const { leave, gateway, arrivals } = await start(
      ({ response }) => void setTimeout(() => response.end(), 300),
      '',
      { server },
    );
    await leave(keyed('one'));
    await gateway.service.drain();
    expect(arrivals.map(({ isCut, response }) => [isCut, response.writableFinished])).toEqual([
      [false, true],
    ]);
  });

  test.each([
    ['with a key', (at: number) => keyed(`k${at}`)],
    ['of an SDK', (at: number) => ({ ...attempt(0), 'x-call': `${at}` })],
  ])('%s is held in memory within bounds, and counted in sluice_queue_bytes', async (_words, headersOf) => {
    const [bound, body] = [400 * 1_024, 'b'.repeat(10 * 1_024)];
    const api = await start(
      ({ response }) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' }).write('x'.repeat(100 * 1_024));
      },
      'limits: { requestsPerMinute: 1000 }',
      { sections: `idempotency: { maxWorkspaceBytes: ${bound} }` },
    );
    const gauge = (name: string): Promise<number> => metric(api.gateway, `${name} `);
    const responseBytes = (): number => {
      const { keptBytes, underWayBytes } = api.gateway.service.gateway.parts.repeats.memory();
      return keptBytes + underWayBytes;
    };
    for (let at = 0; at < 12; at += 1) await leaveAmidResponse(api, headersOf(at), body);
    // The calls that go on count as open, and the bodies of their requests as held.
    await until(async () => (await gauge('sluice_queue_bytes')) > 200 * 1_024);
    const openCalls = await gauge('sluice_open_calls');
    expect(openCalls).toBeGreaterThan(0);
    expect(responseBytes()).toBeLessThanOrEqual(bound);
    expect(await gauge('sluice_queue_bytes')).toBeGreaterThanOrEqual(openCalls * body.length);
    for (const { response } of api.arrivals) response.end();
    await until(async () => (await gauge('sluice_open_calls')) === 0);
    expect(responseBytes()).toBeLessThanOrEqual(bound);
  });
});

describe('clients that share a call, each with an API key of its own, of which one is revoked:', () => {
  /** Two keys of one workspace. One call is in flight at a time. */
  async function startWithKeys() {
    const api = await start(heldBack, 'limits: { maxInFlight: 1 }');
    const second = createKey();
    const first = {
      key: api.gateway.keys['acme'] ?? '',
      hash: /sha256:[0-9a-f]{64}/.exec(api.gateway.yaml)?.[0] ?? '',
    };
    const withKeys = (...keys: readonly { hash: string }[]): Promise<void> =>
      api.reload(/keys: \[.*\]/, `keys: [${keys.map(({ hash }) => `"${hash}"`).join(', ')}]`);
    await withKeys(first, second);
    const send = ({ key }: { key: string }, idempotencyKey: string) =>
      api.post(keyed(idempotencyKey), { key });
    return { ...api, first, second, withKeys, send };
  }

  test('that of the first one while their call waits', async () => {
    const { first, second, withKeys, send, respond, arrived, waiting, joined } = await startWithKeys();
    const busy = send(second, 'busy');
    await arrived(1);
    const revoked = send(first, 'shared');
    await waiting(1);
    const other = send(second, 'shared');
    await joined(1);
    await withKeys(second);
    expect((await revoked).status).toBe(401);
    respond(1);
    expect((await busy).text).toBe('response 1');
    await arrived(2);
    respond(2);
    expect((await other).text).toBe('response 2');
  });

  test('that of one which waits for the call of another', async () => {
    const { first, second, withKeys, send, respond, arrived, joined } = await startWithKeys();
    const stays = send(first, 'shared');
    await arrived(1);
    const revoked = send(second, 'shared');
    await joined(1);
    await withKeys(first);
    expect((await revoked).status).toBe(401);
    respond();
    expect((await stays).text).toBe('response 1');
  });

  test('that of one whose body still arrives, which gets no kept response', async () => {
    const { gateway, first, second, withKeys, send, respond, arrived, arrivals } = await startWithKeys();
    const kept = send(second, 'kept');
    await arrived(1);
    respond();
    await kept;
    const headers = {
      'sluice-key': first.key,
      'content-type': 'text/plain;charset=UTF-8',
      'content-length': 1,
    };
    const request = httpRequest(gateway.url + orders, {
      method: 'POST',
      headers: { ...headers, ...keyed('kept') },
    });
    const status = new Promise((resolve, reject) => {
      request.on('error', reject).on('response', (response) => resolve(response.resume().statusCode));
    });
    request.flushHeaders();
    await until(() => bucketsOf(gateway).length > 0);
    await withKeys(second);
    request.end('a');
    expect([await status, arrivals.length]).toEqual([401, 1]);
  });
});
