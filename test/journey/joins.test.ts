import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { highCeilings, startWorld, tally, type Sending, type World } from './world.ts';
import { until } from '../support/until.ts';

let world: World;
beforeAll(async () => {
  world = await startWorld({
    model: { latency: { baseMs: 30, perTokenMs: 0, jitter: 0 } },
    workspaces: { acme: highCeilings, beta: highCeilings },
  });
});
beforeEach(() => {
  world.model.reset();
  world.shop.reset();
});
afterAll(() => world.close());

const keyed = (key: string, more: Sending = {}): Sending => ({
  ...more,
  headers: { 'idempotency-key': key, ...more.headers },
});
describe('calls with the same Idempotency-Key', () => {
  test('become one upstream call, and all of them get its response', async () => {
    const { chat, model } = world;
    const replies = await Promise.all([
      chat(1, keyed('k-1')),
      chat(1, keyed('"k-1"')),
      chat(1, keyed('k-1')),
    ]);
    expect(tally(replies)).toEqual({ 200: 3 });
    expect(new Set(replies.map(({ text }) => text)).size).toBe(1);
    expect(new Set(replies.map(({ headers }) => headers.get('sluice-request-id'))).size).toBe(3);
    expect(model.log).toHaveLength(1);
  });

  test('share a stream byte for byte', async () => {
    const { call, model } = world;
    model.configure({ latency: { baseMs: 60, perTokenMs: 1, jitter: 0 }, replyTokens: 50 });
    const json = { model: 'gpt-4o', stream: true, messages: [{ role: 'user', content: 'hi' }] };
    const path = '/via/openai/v1/chat/completions';
    const [one, two] = await Promise.all([
      call(path, keyed('k-2', { json })),
      call(path, keyed('k-2', { json })),
    ]);
    expect(one.text).toBe(two.text);
    expect(one.text).toContain('data: [DONE]');
    expect(model.log).toHaveLength(1);
  });

  test('and different bodies are refused with 422', async () => {
    const { chat, model } = world;
    const first = chat(1, keyed('k-3'));
    await until(() => model.log.length === 1);
    const other = await chat(2, keyed('k-3'));
    expect([other.status, other.headers.get('sluice-error')]).toEqual([422, 'idempotency_mismatch']);
    expect((await first).status).toBe(200);
    expect(model.log).toHaveLength(1);
  });

  test('share a stream also when the second comes amid the response to the first: both get all of it', async () => {
    const { gateway, model, call } = world;
    model.configure({ latency: { baseMs: 0, perTokenMs: 20, jitter: 0 }, replyTokens: 30 });
    const json = { model: 'gpt-4o', stream: true, messages: [{ role: 'user', content: 'hi' }] };
    const response = await fetch(`${gateway.url}/via/openai/v1/chat/completions`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${gateway.keys['acme'] ?? ''}`,
        'content-type': 'application/json',
        'idempotency-key': 'k-4',
      },
      body: JSON.stringify(json),
    });
    const reader = response.body?.getReader();
    const first = new TextDecoder().decode((await reader?.read())?.value);
    expect(first).toContain('data:');
    const late = call('/via/openai/v1/chat/completions', keyed('k-4', { json }));
    let text = first;
    for (let piece = await reader?.read(); piece?.done === false; piece = await reader?.read())
      text += new TextDecoder().decode(piece.value);
    expect(text).toContain('[DONE]');
    expect((await late).text).toBe(text);
    expect(model.log).toHaveLength(1);
  });

  test('are one upstream call when they come one after the other, and the second says that it was replayed', async () => {
    const { chat, model } = world;
    const first = await chat(1, keyed('k-5'));
    const second = await chat(1, keyed('k-5'));
    expect([second.status, second.text]).toEqual([200, first.text]);
    expect([first, second].map(({ headers }) => headers.get('sluice-replayed'))).toEqual([null, 'true']);
    expect(model.log).toHaveLength(1);
  });

  test('are independent when they belong to different workspaces', async () => {
    const { chat, model } = world;
    const both = [chat(1, keyed('k-6')), chat(1, keyed('k-6', { workspace: 'beta' }))];
    expect(tally(await Promise.all(both))).toEqual({ 200: 2 });
    expect(model.log).toHaveLength(2);
  });

  test('go on when their clients leave, and a later repeat gets the response', async () => {
    const { chat, model, settled } = world;
    model.configure({ latency: { baseMs: 150, perTokenMs: 0, jitter: 0 } });
    const leaving = new AbortController();
    const gone = chat(1, keyed('k-7', { signal: leaving.signal })).catch(() => 'gone');
    await until(() => model.log.length === 1);
    const stays = chat(1, keyed('k-7'));
    await new Promise((resolve) => setTimeout(resolve, 20));
    leaving.abort();
    expect(await gone).toBe('gone');
    expect((await stays).status).toBe(200);
    expect(model.log.map(({ aborted }) => aborted)).toEqual([false]);

    const everybody = new AbortController();
    const left = [1, 2].map(() => chat(2, keyed('k-8', { signal: everybody.signal })).catch(() => 'gone'));
    await until(() => model.log.length === 2);
    await new Promise((resolve) => setTimeout(resolve, 20));
    everybody.abort();
    expect(await Promise.all(left)).toEqual(['gone', 'gone']);
    await settled(0, 0);
    await until(() => model.log[1]?.endedT !== null);
    expect(model.log[1]).toMatchObject({ aborted: false });
    const again = await chat(2, keyed('k-8'));
    expect([again.status, again.headers.get('sluice-replayed')]).toEqual([200, 'true']);
    expect(model.log).toHaveLength(2);
  });
});

describe('a resend by an SDK', () => {
  const attempt = (count: number): Sending => ({ headers: { 'x-stainless-retry-count': String(count) } });

  test('is a call of its own while the client of an identical call is still there', async () => {
    const { chat, model } = world;
    // The repeat comes while the first is under way, however slow this machine is.
    model.configure({ latency: { baseMs: 2_000, perTokenMs: 0, jitter: 0 } });
    const first = chat(1, attempt(0));
    await until(() => model.log.length === 1);
    const again = chat(1, attempt(1));
    expect(tally(await Promise.all([first, again]))).toEqual({ 200: 2 });
    expect(model.log).toHaveLength(2);
  });

  test('joins the identical call whose client leaves a moment after it came', async () => {
    const { chat, model } = world;
    model.configure({ latency: { baseMs: 2_000, perTokenMs: 0, jitter: 0 } });
    const leaving = new AbortController();
    const first = chat(1, { ...attempt(0), signal: leaving.signal }).catch(() => 'left');
    await until(() => model.log.length === 1);
    const again = chat(1, attempt(1));
    leaving.abort();
    expect(await first).toBe('left');
    expect((await again).status).toBe(200);
    expect(model.log).toHaveLength(1);
  });

  test('is a new call when no call waits, and so are two first attempts', async () => {
    const { chat, model } = world;
    expect((await chat(1, attempt(1))).status).toBe(200);
    await Promise.all([chat(2, attempt(0)), chat(2, attempt(0))]);
    expect(model.log).toHaveLength(3);
  });
});
