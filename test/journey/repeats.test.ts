import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';
import { startWorld, type World } from './world.ts';

const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});

type Handler = (request: IncomingMessage, response: ServerResponse, count: number) => void;

interface Upstream {
  readonly gateway: TestGateway;
  /** Requests that arrived. */
  readonly count: () => number;
  /** How many of them were broken off by us. */
  readonly aborted: () => number;
  readonly send: (body: string, headers?: Record<string, string>, more?: RequestInit) => Promise<Response>;
}

async function upstream(handler: Handler, more = '', server = ''): Promise<Upstream> {
  let [count, aborted] = [0, 0];
  const http = createServer((request, response) => {
    count += 1;
    response.on('close', () => (aborted += response.writableFinished ? 0 : 1));
    request.resume().on('end', () => handler(request, response, count));
  });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  open.push(
    () =>
      new Promise((resolve) => {
        http.close(resolve);
        http.closeAllConnections();
      }),
  );
  const { port } = http.address() as AddressInfo;
  const gateway = await startGateway({
    upstreams: `  api:\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n    credential: Bearer x\n${more}`,
    workspaces: { team: '' },
    server,
  });
  open.push(() => gateway.close());
  const send: Upstream['send'] = (body, headers = {}, init = {}) =>
    fetch(`${gateway.url}/via/api/orders`, {
      method: 'POST',
      body,
      headers: { authorization: `Bearer ${gateway.keys['team'] ?? ''}`, ...headers },
      ...init,
    });
  return { gateway, count: () => count, aborted: () => aborted, send };
}

const keyed = (key: string): Record<string, string> => ({ 'idempotency-key': key });
const codeOf = (response: Response): string | null => response.headers.get('sluice-error');

describe('a response that was kept', () => {
  test('is given to the same request with its status, fields and bytes, and counted', async () => {
    const { send, count, gateway } = await upstream((_request, response) => {
      response.writeHead(201, { 'x-order': '7', 'content-type': 'application/json' });
      response.end(Buffer.from([0, 1, 254, 255]));
    });
    await (await send('a', keyed('one'))).arrayBuffer();
    const again = await send('a', keyed('one'));
    expect([again.status, again.headers.get('x-order'), again.headers.get('sluice-replayed')]).toEqual([
      201,
      '7',
      'true',
    ]);
    expect([...new Uint8Array(await again.arrayBuffer())]).toEqual([0, 1, 254, 255]);
    expect(count()).toBe(1);
    const metrics = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
    expect(metrics).toContain('sluice_idempotent_replays_total{upstream="api"} 1');
  });

  test('is refused to another request with 422', async () => {
    const { send, count } = await upstream((_request, response) => response.end('fine'));
    await (await send('a', keyed('one'))).text();
    const other = await send('b', keyed('one'));
    expect([other.status, codeOf(other)]).toEqual([422, 'idempotency_mismatch']);
    expect(count()).toBe(1);
  });

  test.each([300, 304, 400, 401, 403, 404, 408, 409, 410, 412, 422, 423, 425, 500, 501, 503])(
    'was none with the status %d: the upstream is asked again',
    async (status) => {
      const { send, count } = await upstream((_request, response, at) => {
        if (at === 1) response.writeHead(status);
        response.end(status === 304 && at === 1 ? '' : 'body');
      });
      await (await send('a', keyed('one'))).text();
      const asked = count();
      const again = await send('a', keyed('one'));
      expect([again.headers.get('sluice-replayed'), again.status]).toEqual([null, 200]);
      expect(count()).toBe(asked + 1);
    },
  );

  test('was none that is throttled for longer than the wait', async () => {
    const { send, count } = await upstream((_request, response, at) => {
      if (at === 1) response.writeHead(429, { 'retry-after': '3600' });
      response.end('body');
    }, '    limits: { maxWaitSeconds: 1 }\n');
    expect((await send('a', keyed('one'))).status).toBe(429);
    const again = await send('a', keyed('one'));
    expect(again.headers.get('sluice-replayed')).toBeNull();
    expect(count()).toBe(1);
  });

  test('was none that broke off', async () => {
    const { send, count } = await upstream((_request, response, at) => {
      if (at > 1) return void response.end('whole');
      response.writeHead(200, { 'content-length': '10' });
      response.write('half');
      setTimeout(() => response.destroy(), 50);
    });
    await expect(send('a', keyed('one')).then((response) => response.text())).rejects.toThrow();
    expect(await (await send('a', keyed('one'))).text()).toBe('whole');
    expect(count()).toBe(2);
  });

  test('is not larger than idempotency.maxBytes: a repeat of a larger one is a conflict and runs nothing', async () => {
    const { send, count } = await upstream((_request, response) => response.end('x'.repeat(2 * 1024 * 1024)));
    expect((await (await send('a', keyed('one'))).text()).length).toBe(2 * 1024 * 1024);
    const again = await send('a', keyed('one'));
    expect([again.status, codeOf(again), again.headers.get('x-should-retry')]).toEqual([
      409,
      'idempotency_conflict',
      'false',
    ]);
    expect(count()).toBe(1);
  });

  test.each([
    ['that comes whole', 'x'.repeat(5_000)],
    ['that comes in pieces', null],
  ])('is not larger than a lower idempotency.maxBytes, also one %s', async (_name, whole) => {
    const api = await upstream((_request, response) => {
      if (whole !== null) return void response.end(whole);
      response.write('x'.repeat(2_500));
      setTimeout(() => response.end('x'.repeat(2_500)), 50);
    });
    await api.gateway.reload(`${api.gateway.yaml}\nidempotency: { maxBytes: 4000 }`);
    expect((await (await api.send('a', keyed('one'))).text()).length).toBe(5_000);
    const again = await api.send('a', keyed('one'));
    expect([again.status, codeOf(again)]).toEqual([409, 'idempotency_conflict']);
    expect(api.count()).toBe(1);
  });

  test('is found by a field that the upstream names, such as the id of a webhook', async () => {
    const more = '    idempotencyFields: [X-Shopify-Webhook-Id]\n';
    const { send, count } = await upstream((_request, response, at) => response.end(`response ${at}`), more);
    const webhook = { 'x-shopify-webhook-id': 'b54557e4' };
    const responses = [];
    for (let at = 0; at < 5; at += 1) responses.push(await (await send('order', webhook)).text());
    expect(new Set(responses)).toEqual(new Set(['response 1']));
    expect(await (await send('order', { 'x-shopify-webhook-id': 'c0ffee' })).text()).toBe('response 2');
    expect(count()).toBe(2);
  });
});

describe('a client that leaves a call that has been sent', () => {
  /** Sends, waits until the upstream has it, and hangs up. */
  async function leave({ send, count }: Upstream, headers: Record<string, string>): Promise<void> {
    const leaving = new AbortController();
    const before = count();
    const left = send('a', headers, { signal: leaving.signal }).catch(() => 'left');
    await until(() => count() > before);
    leaving.abort();
    expect(await left).toBe('left');
  }

  /** An upstream that answers when the test says so. */
  async function slow() {
    const responses: (() => void)[] = [];
    const given = await upstream((_request, response, at) => {
      responses.push(() => response.end(`response ${at}`));
    });
    return { ...given, respond: () => responses.splice(0).forEach((each) => each()) };
  }

  test('and that carries a key does not end it: its repeat joins, a later one gets what was kept', async () => {
    const given = await slow();
    await leave(given, keyed('one'));
    const joined = given.send('a', keyed('one'));
    await new Promise((resolve) => setTimeout(resolve, 30));
    given.respond();
    expect(await (await joined).text()).toBe('response 1');
    const later = await given.send('a', keyed('one'));
    expect([await later.text(), later.headers.get('sluice-replayed')]).toEqual(['response 1', 'true']);
    expect([given.count(), given.aborted()]).toEqual([1, 0]);
  });

  test('and is an SDK gets its response with the repeat, also when it has come meanwhile', async () => {
    const given = await slow();
    const attempt = (count: number) => ({ 'x-stainless-retry-count': String(count) });
    await leave(given, attempt(0));
    given.respond();
    await until(() => given.gateway.service.gateway.parts.repeats.memory().keptBytes > 0);
    expect(await (await given.send('a', attempt(1))).text()).toBe('response 1');
    // It was one repeat; the next equal call is a call of its own, also one that says that it is a repeat.
    for (const count of [2, 3]) {
      const next = given.send('a', attempt(1));
      await until(() => given.count() === count);
      given.respond();
      expect(await (await next).text()).toBe(`response ${count}`);
    }
    expect(given.aborted()).toBe(0);
  });

  test('amid its response, and is an SDK, gets all of it with the repeat, from the first byte', async () => {
    const responses: ServerResponse[] = [];
    const given = await upstream((_request, response) => {
      responses.push(response);
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write('data: first\n\n');
    });
    const leaving = new AbortController();
    const first = await given.send('a', { 'x-stainless-retry-count': '0' }, { signal: leaving.signal });
    await first.body?.getReader().read();
    leaving.abort();
    const repeat = await given.send('a', { 'x-stainless-retry-count': '1' });
    responses[0]?.end('data: last\n\n');
    expect(await repeat.text()).toBe('data: first\n\ndata: last\n\n');
    expect([given.count(), given.aborted()]).toEqual([1, 0]);
  });

  test('amid its response, and whose repeat could not have its beginning any more, ends it', async () => {
    const given = await upstream((_request, response) => response.write('x'.repeat(5_000)));
    await given.gateway.reload(`${given.gateway.yaml}\nidempotency: { maxBytes: 4000 }`);
    const leaving = new AbortController();
    const first = await given.send('a', { 'x-stainless-retry-count': '0' }, { signal: leaving.signal });
    await first.body?.getReader().read();
    leaving.abort();
    await until(() => given.aborted() === 1);
  });

  test('and whose repeat nobody expects ends it', async () => {
    const given = await slow();
    await leave(given, {});
    await until(() => given.aborted() === 1);
  });
});

test('the repeat of a call that was left while it waited gets its position back', async () => {
  const world: World = await startWorld();
  open.push(() => world.close());
  const { orders, shop, settled, occupy } = world;
  await orders(0);
  const release = await occupy();
  const leaving = new AbortController();
  const left = orders(1, { headers: keyed('first'), signal: leaving.signal }).catch(() => 'left');
  await settled(1);
  const second = orders(2);
  await settled(2);
  leaving.abort();
  expect(await left).toBe('left');
  await settled(1);
  const repeat = orders(1, { headers: keyed('first') });
  await settled(2);
  await release();
  expect([(await second).status, (await repeat).status]).toEqual([200, 200]);
  expect(shop.log.map(({ nonce }) => nonce)).toEqual(['0', 'occupied', '1', '2']);
});

test('a process that ends finishes a call whose client has left', async () => {
  let answered = false;
  const given = await upstream(
    (_request, response) =>
      void setTimeout(() => {
        response.end('done');
        answered = response.writableFinished || response.writableEnded;
      }, 300),
    '',
    '  drainSeconds: 5\n  drainDelaySeconds: 0\n',
  );
  const leaving = new AbortController();
  const left = given.send('a', keyed('one'), { signal: leaving.signal }).catch(() => 'left');
  await until(() => given.count() === 1);
  leaving.abort();
  await left;
  await given.gateway.service.drain();
  expect([answered, given.aborted()]).toEqual([true, 0]);
});
