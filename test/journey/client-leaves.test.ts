import { once } from 'node:events';
import { request } from 'node:http';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startWorld, type World, type WorldOptions } from './world.ts';
import { until } from '../support/until.ts';

let world: World;
const begin = async (options: WorldOptions = {}): Promise<World> => (world = await startWorld(options));
afterEach(async () => {
  const metrics = await (await fetch(`${world.gateway.adminUrl}/metrics`)).text();
  expect(/^sluice_dispatched_after_client_gone_total\S* (\d+)/m.exec(metrics)?.[1] ?? '0').toBe('0');
  await world.close();
});

describe('a call whose client leaves', () => {
  test('while it waits costs nothing upstream, and the next call takes its position', async () => {
    const { orders, shop, settled, occupy } = await begin();
    await orders(0);
    const release = await occupy();
    const leaving = new AbortController();
    const left = Array.from({ length: 20 }, (_, at) => orders(100 + at, { signal: leaving.signal }));
    const ended = Promise.allSettled(left);
    await settled(20);
    const last = orders(2);
    await settled(21);
    leaving.abort();
    expect((await ended).filter(({ status }) => status === 'rejected')).toHaveLength(20);
    await settled(1);
    await release();
    expect((await last).status).toBe(200);
    expect(shop.log.map(({ nonce }) => nonce)).toEqual(['0', 'occupied', '2']);
    await settled(0, 0);
  });

  test('keeps no slot of the ceiling when it was not sent', async () => {
    const { chat, model, settled } = await begin({
      workspaces: { acme: '    requestsPerMinute: { openai: 3 }\n    requestsPerDay: { openai: 100 }\n' },
    });
    await chat(0);
    const rateLimited = { error: { message: 'slow', type: 'requests', code: 'rate_limit_exceeded' } };
    model.fault({ kind: 'answer', status: 429, headers: { 'retry-after-ms': '2000' }, body: rateLimited });
    const first = chat(1);
    await until(() => model.log.length === 2);
    await settled(1, 0);
    const leaving = new AbortController();
    const left = Array.from({ length: 10 }, (_, at) => chat(100 + at, { signal: leaving.signal }));
    const ended = Promise.allSettled(left);
    // There are three slots, and the throttled attempt took one: some of the ten calls are refused at once, the others wait.
    await new Promise((resolve) => setTimeout(resolve, 100));
    leaving.abort();
    await ended;
    expect((await first).status).toBe(200);
    expect(model.log.map(({ nonce }) => nonce)).toEqual(['0', '1', '1']);
  });

  test('in flight is ended upstream, and its lane goes on', async () => {
    const { orders, shop, settled } = await begin();
    await orders(0);
    // Behind a call that went on, the next one would be refused for its wait.
    shop.fault({ kind: 'slow', ms: 200_000 });
    const leaving = new AbortController();
    const gone = orders(1, { signal: leaving.signal }).catch(() => 'gone');
    await until(() => shop.log.length === 2);
    const next = orders(2);
    await settled(1, 1);
    leaving.abort();
    expect(await gone).toBe('gone');
    const reply = await next;
    expect(reply.status).toBe(200);
    expect(shop.log[1]).toMatchObject({ aborted: true });
    expect(shop.log).toHaveLength(3);
  });

  test('in the middle of a stream is ended upstream', async () => {
    const { gateway, model, settled } = await begin({
      model: { latency: { baseMs: 0, perTokenMs: 50, jitter: 0 }, replyTokens: 1000 },
    });
    const call = request(`${gateway.url}/via/openai/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${gateway.keys['acme'] ?? ''}`, 'content-type': 'application/json' },
    });
    call.on('error', () => {});
    call.end(JSON.stringify({ model: 'gpt-4o', stream: true, messages: [{ role: 'user', content: 'hi' }] }));
    const [response] = await once(call, 'response');
    await once(response, 'data');
    call.destroy();
    await until(() => model.log[0]?.endedT !== null);
    expect(model.log[0]).toMatchObject({ aborted: true, status: 200 });
    await settled(0, 0);
  });

  test('at any moment of the journey leaves no lease behind', async () => {
    const { orders, shop, settled } = await begin({ shop: { latency: { minMs: 5, maxMs: 15 } } });
    await orders(0);
    await Promise.allSettled(
      Array.from({ length: 30 }, async (_, at) => {
        await new Promise((resolve) => setTimeout(resolve, at * 3));
        return orders(1 + at, { signal: AbortSignal.timeout(1 + ((at * 7) % 40)) });
      }),
    );
    await settled(0, 0);
    expect((await orders(99)).status).toBe(200);
    // The next call may leave a moment before the shop notices the closed connection of the last one.
    expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
  });
});
