import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';

const model = createLanguageModelSimulator({ latency: { baseMs: 0, perTokenMs: 0, jitter: 0 } });
const shop = createCommerceSimulator({ latency: { minMs: 0, maxMs: 0 } });
const urls = { model: '', shop: '' };

beforeAll(async () => {
  urls.model = (await model.listen()).url;
  urls.shop = (await shop.listen()).url;
});
beforeEach(() => {
  model.reset();
  shop.reset();
});
afterAll(async () => {
  expect([...model.state().failures, ...shop.state().failures]).toEqual([]);
  await model.close();
  await shop.close();
});

async function post(url: string, body: object): Promise<Response> {
  const headers = { authorization: 'Bearer sk-sim', 'x-shopify-access-token': 'shpat_sim' };
  return await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
}

const chat = async (stream = false): Promise<Response> =>
  await post(`${urls.model}/v1/chat/completions`, { model: 'gpt-4o', messages: [], stream });
const rest = async (): Promise<Response> =>
  await post(`${urls.shop}/admin/api/2026-10/products.json`, { product: { title: 'Cup' } });
const graphql = async (): Promise<Response> =>
  await post(`${urls.shop}/admin/api/2026-10/graphql.json`, { query: 'mutation { a { b } }' });

describe.each([
  { kind: '500', status: 500 },
  { kind: '502-html', status: 502 },
  { kind: '503', status: 503 },
] as const)('the simulated fault $kind', ({ kind, status }) => {
  test('happens once, after the work was charged and done', async () => {
    model.fault({ kind });
    shop.fault({ kind, times: 2 });
    const calls = [chat, chat, rest, graphql, rest];
    const statuses = [];
    for (const call of calls) statuses.push((await call()).status);
    expect(statuses).toEqual([status, 200, status, status, 201]);
    expect(model.log[0]).toMatchObject({ fault: kind, executed: true, usedAfter: { rpm: 1 } });
    expect(shop.log.map(({ executed }) => executed)).toEqual([true, true, true]);
  });
});

test.each([true, false])(
  'the simulated fault reset-mid-stream sends a part and cuts (streamed: %s)',
  async (stream) => {
    model.fault({ kind: 'reset-mid-stream', afterChunks: 2 });
    const response = await chat(stream);
    expect(response.status).toBe(200);
    await expect(response.text()).rejects.toThrow();
    expect(model.log[0]).toMatchObject({ fault: 'reset-mid-stream', executed: true });
  },
);

test('the simulated fault answer replays any sample uncharged, for the matching call', async () => {
  const headers = { 'retry-after': '2.0', 'x-shopid': '1' };
  shop.fault({ kind: 'answer', status: 429, headers, body: { errors: 'x' }, match: { path: 'graphql' } });
  expect((await rest()).status).toBe(201);
  const replayed = await graphql();
  expect([replayed.status, replayed.headers.get('retry-after')]).toEqual([429, '2.0']);
  expect(await replayed.json()).toEqual({ errors: 'x' });
  expect(shop.log[1]).toMatchObject({ decision: 'fault', executed: false });
});

test('the simulated fault internal is a 200 with an error, and duplicate-call-limit a comma-joined field', async () => {
  shop.fault({ kind: 'internal' });
  expect(await (await graphql()).json()).toMatchObject({
    errors: [{ extensions: { code: 'INTERNAL_SERVER_ERROR' } }],
  });
  shop.fault({ kind: 'duplicate-call-limit' });
  expect((await rest()).headers.get('x-shopify-shop-api-call-limit')).toBe('1/40, 1/40');
});
