import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import type { QuotaState } from '../../simulators/language-model/options.ts';
import { startWorld, type Reply, type World } from './world.ts';

let world: World;
// Each test its own world: what is refused for good is remembered.
beforeEach(async () => {
  world = await startWorld({ model: { models: { 'gpt-4o': { rpm: 500, tpm: 1000 } } } });
});
afterEach(() => world.close());

/** The fields that show the client that the refusal is the upstream's own, and final. */
const finalWord = ({ status, headers }: Reply): unknown => ({
  status,
  shouldRetry: headers.get('x-should-retry'),
  error: headers.get('sluice-error'),
  attempts: /attempts=(\d+)/.exec(headers.get('sluice-admission') ?? '')?.[1],
});
const once = (status: number): unknown => ({ status, shouldRetry: 'false', error: null, attempts: '1' });

describe('a permanent refusal of a language-model API', () => {
  const quotas: readonly QuotaState[] = [
    'insufficient_quota',
    'credit_balance_exhausted',
    'organization_spend_limit_exceeded',
    'project_spend_limit_exceeded',
    'organization_usage_limit_exceeded',
  ];
  test.each(quotas)('is asked for once and passed on: %s', async (quota) => {
    const { chat, model } = world;
    model.configure({ quotaState: { 'org-sim': quota, proj_sim: quota } });
    const reply = await chat(1);
    expect(finalWord(reply)).toEqual(once(reply.status));
    expect([402, 403, 429]).toContain(reply.status);
    expect(reply.json).toHaveProperty('error.code');
    expect(model.log).toHaveLength(1);
  });

  test('is asked for once for a call larger than the whole limit', async () => {
    const { call, model } = world;
    const json = { model: 'gpt-4o', max_tokens: 5000, messages: [{ role: 'user', content: 'x' }] };
    const reply = await call('/via/openai/v1/chat/completions', { json });
    expect(finalWord(reply)).toEqual(once(429));
    expect(reply.json).toMatchObject({ error: { message: expect.stringContaining('Request too large') } });
    expect(model.log).toHaveLength(1);
  });

  test('is asked for once when the day is used up, and is passed on unchanged', async () => {
    const { chat, model } = world;
    const body = JSON.stringify({
      error: {
        message:
          'Rate limit reached for gpt-4o in organization org-x on requests per day (RPD): Limit 200, Used 200, Requested 1. Please try again in 7m12s.',
        type: 'requests',
        param: null,
        code: 'rate_limit_exceeded',
      },
    });
    const headers = { 'retry-after': '432', 'x-ratelimit-limit-requests': '200', 'x-request-id': 'req_1' };
    model.fault({ kind: 'answer', status: 429, headers, body });
    const reply = await chat(1);
    expect(finalWord(reply)).toEqual(once(429));
    expect(reply.text).toBe(body);
    expect(reply.headers.get('retry-after')).toBe('432');
    expect(reply.headers.get('x-request-id')).toBe('req_1');
    expect(model.log).toHaveLength(1);
  });
});

describe('a permanent refusal of a commerce API', () => {
  test.each([
    ['frozen', 402],
    ['locked', 423],
    ['security', 430],
  ] as const)('is asked for once and passed on: a %s store', async (state, status) => {
    const { orders, shop } = world;
    shop.configure({ stores: { 'acme.myshopify.com': { state, apps: { 'app-sim': ['shpat_sim'] } } } });
    expect(finalWord(await orders(1))).toEqual(once(status));
    expect(shop.log).toHaveLength(1);
  });

  test('is asked for once for a query over the largest cost, which is a 200 with an error in it', async () => {
    const { graphql, shop } = world;
    const reply = await graphql(
      '{ products(first: 100) { nodes { id variants(first: 100) { nodes { id } } } } }',
    );
    expect(finalWord(reply)).toEqual(once(200));
    expect(reply.json).toMatchObject({ errors: [{ extensions: { code: 'MAX_COST_EXCEEDED' } }] });
    expect(shop.log).toHaveLength(1);
  });
});

test('errors of the call itself are passed on unchanged and say nothing about retries', async () => {
  const { chat, model } = world;
  const reply = await chat(1, { model: 'no-such-model' });
  expect(finalWord(reply)).toEqual({ status: 404, shouldRetry: null, error: null, attempts: '1' });
  expect(reply.json).toHaveProperty('error.code', 'model_not_found');
  expect(model.log).toHaveLength(1);
});
