import { afterEach, describe, expect, test } from '@jest/globals';
import {
  createLanguageModelSimulator,
  type LanguageModelOptions,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { recordedFields, sample } from './samples.ts';

const instant = { baseMs: 0, perTokenMs: 0, jitter: 0 };
const running: LanguageModelSimulator[] = [];

async function start(options: LanguageModelOptions): Promise<{
  simulator: LanguageModelSimulator;
  clock: ManualClock;
  call: (body: object, path?: string, headers?: Record<string, string>) => Promise<Response>;
}> {
  const clock = manualClock();
  const simulator = createLanguageModelSimulator({ clock, latency: instant, ...options });
  running.push(simulator);
  const { url } = await simulator.listen();
  const call = async (body: object, path = '/v1/chat/completions', headers = {}): Promise<Response> =>
    await fetch(url + path, {
      method: 'POST',
      headers: { authorization: 'Bearer sk-sim', 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    });
  return { simulator, clock, call };
}

afterEach(async () => {
  for (const simulator of running.splice(0)) {
    expect(simulator.state().failures).toEqual([]);
    await simulator.close();
  }
});

/** A chat call that the limiter estimates at `tokens` (4 characters each, 3 on top). */
function chat(tokens: number, model = 'gpt-4o', more: object = {}): object {
  return { model, messages: [{ role: 'user', content: 'x'.repeat((tokens - 3) * 4) }], ...more };
}

function fieldsLike(response: Response, id: string, prefix = 'x-ratelimit-'): Record<string, string | null> {
  const names = Object.keys(recordedFields(id, prefix));
  return Object.fromEntries(names.map((name) => [name, response.headers.get(name)]));
}

const org = (name: string): NonNullable<LanguageModelOptions['orgs']> => ({
  [name]: { projects: { proj_J: { keys: ['sk-sim', 'sk-sim-2'] } } },
});

describe('the simulated language model responds as the recorded service did:', () => {
  test('the first call of 60 tokens leaves 199 requests of the day and 39,940 tokens of the minute (sample U01)', async () => {
    const { call } = await start({ models: { m: { rpd: 200, tpm: 40_000 } } });
    const response = await call(chat(60, 'm'));
    expect(fieldsLike(response, 'U01')).toEqual(recordedFields('U01', 'x-ratelimit-'));
    expect(response.status).toBe(200);
  });

  test('a call with a picture above the tokens per minute is refused for 534 ms, and its request is charged (sample U02)', async () => {
    const { call, simulator } = await start({ orgs: org('org-x') });
    simulator.consume(29_446, { dimension: 'tpm' });
    const content = [
      { type: 'text', text: 'x'.repeat(53 * 4) },
      { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } },
    ];
    const response = await call({ model: 'gpt-4o', messages: [{ role: 'user', content }] });
    expect(response.status).toBe(429);
    // The live headers were computed a fraction of a millisecond after the decision; here both are one instant.
    const sameInstant = { 'x-ratelimit-reset-tokens': '58.892s' };
    expect(fieldsLike(response, 'U02')).toEqual({ ...recordedFields('U02', 'x-ratelimit-'), ...sameInstant });
    expect(fieldsLike(response, 'U02', 'retry-after')).toEqual(recordedFields('U02', 'retry-after'));
    expect(response.headers.get('openai-organization')).toBeNull();
    expect(await response.json()).toEqual(sample('U02').body);
  });

  test('after two calls the fields and their usage-based twins state the tokens of both (sample U03)', async () => {
    const { call, clock, simulator } = await start({
      models: { m: { rpd: 200, tpm: 40_000 } },
      usageBasedTwin: true,
    });
    await call(chat(60, 'm'));
    clock.advance(171_666);
    simulator.consume(60, { dimension: 'tpm' });
    const response = await call(chat(60, 'm'));
    expect(fieldsLike(response, 'U03')).toEqual(recordedFields('U03', 'x-ratelimit-'));
  });

  test('a reset that is over at once is stated as 0s, beside organisation and project (sample U04)', async () => {
    const { call } = await start({
      models: { m: { rpm: 15_000, tpm: 40_000_000 } },
      orgs: { 'nr-test-org': { projects: { proj_id: { keys: ['sk-sim'] } } } },
    });
    const response = await call(chat(21, 'm'));
    expect(fieldsLike(response, 'U04')).toEqual(recordedFields('U04', 'x-ratelimit-'));
    expect(fieldsLike(response, 'U04', 'openai-')).toEqual(recordedFields('U04', 'openai-'));
  });

  test('a refusal by the lower limit of a project names the project (sample U07)', async () => {
    const limits = { 'gpt-4o-mini': { tpm: 50_000 } };
    const { call, simulator } = await start({
      orgs: { 'org-l': { projects: { proj_J: { keys: ['sk-sim'], limits } } } },
    });
    simulator.consume(47_949, { dimension: 'tpm', model: 'gpt-4o-mini', project: 'proj_J' });
    const response = await call(chat(3006, 'gpt-4o-mini'));
    expect(response.headers.get('x-ratelimit-limit-project-tokens')).toBe('50000');
    expect(await response.json()).toEqual(sample('U07').body);
  });

  test('a stream that was begun ends in response.failed with the message of a refusal (sample U08)', async () => {
    const { call, simulator } = await start({
      orgs: org('org-AAA'),
      models: { 'gpt-5.1': { tpm: 30_000 } },
    });
    simulator.consume(22_999 - 12_528, { dimension: 'tpm', model: 'gpt-5.1' });
    simulator.fault({ kind: 'stream-error', afterChunks: 2 });
    const body = { model: 'gpt-5.1', stream: true, input: 'x'.repeat((12_528 - 3) * 4) };
    const text = await (await call(body, '/v1/responses')).text();
    const recorded = (sample('U08').body as unknown as { response: { error: { message: string } } }).response;
    expect(text).toContain(`"message":"${recorded.error.message}"`);
  });

  test('when the 200 requests of a day are used, the next one is 7m12s away (sample U09)', async () => {
    const { call, simulator } = await start({ models: { 'gpt-4o': { rpd: 200 } }, orgs: org('org-x') });
    simulator.consume(200, { dimension: 'rpd' });
    const response = await call(chat(10));
    expect(response.headers.get('retry-after')).toBe('432');
    expect(await response.json()).toEqual(sample('U09').body);
  });

  test('a call larger than the bucket is refused without Retry-After, and its request is charged (sample U10)', async () => {
    const { call, simulator } = await start({ orgs: org('org-x') });
    const response = await call(chat(34_307));
    expect(response.status).toBe(429);
    expect(response.headers.get('retry-after')).toBeNull();
    expect(await response.json()).toEqual(sample('U10').body);
    expect(simulator.state().buckets['org-x|gpt-4o|rpm']?.used).toBe(1);
  });

  test('a refusal of Groq names the model in backticks and the tokens of the day (sample U17)', async () => {
    const { call, simulator } = await start({
      dialect: 'groq',
      orgs: org('org_x'),
      models: { 'llama-3.1-8b-instant': { tpd: 500_000 } },
    });
    simulator.consume(499_731, { dimension: 'tpd' });
    const response = await call(chat(664, 'llama-3.1-8b-instant'), '/openai/v1/chat/completions');
    expect(response.headers.get('retry-after')).toBe('69');
    expect(response.headers.get('retry-after-ms')).toBeNull();
    expect(await response.json()).toEqual(sample('U17').body);
  });

  test('Groq answers 413 to a call larger than its input tokens per minute (sample U18)', async () => {
    const models = { 'qwen/qwen3.8-27b': { itpm: 7000 } };
    const { call } = await start({ dialect: 'groq', orgs: org('org_x'), models });
    const response = await call(chat(8278, 'qwen/qwen3.8-27b'), '/openai/v1/chat/completions');
    expect(response.status).toBe(413);
    expect(await response.json()).toEqual(sample('U18').body);
  });

  test('an overload asks to slow down, and a used-up quota states no limit and no time (samples U12, U11)', async () => {
    const { call, simulator } = await start({ overload: 'slow_down' });
    expect(await (await call(chat(5))).json()).toEqual(sample('U12').body);
    simulator.configure({ overload: null, quotaState: { 'org-sim': 'insufficient_quota' } });
    const quota = await call(chat(5));
    expect(await quota.json()).toEqual(sample('U11').body);
    expect([...quota.headers.keys()].filter((name) => /ratelimit|retry/.test(name))).toEqual([]);
  });

  test.each([
    ['states what is left as -1', 'U21', 'headers-minus-one'],
    ['refuses with Retry-After: 0', 'U19', 'retry-after-zero'],
  ] as const)('Azure %s (sample %s)', async (_, id, kind) => {
    const { call, simulator } = await start({});
    simulator.fault({ kind });
    expect(Object.fromEntries((await call(chat(5))).headers)).toMatchObject(sample(id).headers);
  });

  test('a refusal may come six seconds late, with the fields of its end (sample U06)', async () => {
    const { call, simulator, clock } = await start({});
    simulator.fault({ kind: 'late-429', ms: 5977 });
    const late = call(chat(5));
    while (clock.waiting === 0) await new Promise((resolve) => setImmediate(resolve));
    clock.advance(5977);
    expect(Object.fromEntries((await late).headers)).toMatchObject(sample('U06').headers);
    expect(await (await late).json()).toEqual(sample('U06').body);
  });
});

describe('the other dialects of the simulated language model', () => {
  test('Azure counts tokens in a fixed minute, answers bare seconds and asks in words to wait', async () => {
    const { call, clock } = await start({ dialect: 'azure', models: { dep: { rpm: 60, tpm: 5000 } } });
    clock.advance(16_000);
    const key = { 'api-key': 'sk-sim' };
    const path = '/openai/deployments/dep/chat/completions?api-version=2025-01-01-preview';
    const first = await call(chat(5000, ''), path, key);
    expect(Object.fromEntries(first.headers)).toMatchObject({
      'x-ratelimit-limit-requests': '10',
      'x-ratelimit-renewalperiod-requests': '10',
      'x-ratelimit-reset-requests': '4',
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-reset-tokens': '44',
      'x-ratelimit-renewalperiod-tokens': '60',
    });
    const second = await call(chat(5, ''), path, key);
    expect(Object.fromEntries(second.headers)).toMatchObject({
      'retry-after': '44',
      'retry-after-ms': '44000',
      'x-ratelimit-type': 'Tokens',
    });
    const recorded = (sample('U22').body as unknown as { error: string }).error;
    expect(await second.json()).toEqual({ error: { code: '429', message: recorded } });
  });

  test('Anthropic states absolute resets, rounds tokens and charges output while it is produced', async () => {
    const { call, clock, simulator } = await start({
      dialect: 'anthropic',
      models: { c: { rpm: 50, itpm: 30_000, otpm: 10 } },
    });
    const body = { ...chat(1500, 'c'), max_tokens: 100 };
    const first = await call(body, '/v1/messages', { 'x-api-key': 'sk-sim' });
    expect(Object.fromEntries(first.headers)).toMatchObject({
      'anthropic-ratelimit-requests-remaining': '49',
      'anthropic-ratelimit-requests-reset': '2026-01-01T00:00:02Z',
      'anthropic-ratelimit-input-tokens-remaining': '29000',
      'anthropic-ratelimit-output-tokens-reset': '2026-01-01T00:00:00Z',
    });
    const second = await call(body, '/v1/messages');
    expect(second.status).toBe(429);
    expect(Object.fromEntries(second.headers)).toMatchObject({
      'retry-after': '42',
      'x-should-retry': 'true',
    });
    clock.advance(42_000);
    expect((await call(body, '/v1/messages')).status).toBe(200);
    simulator.configure({ quotaState: { 'org-sim': 'enforced_spend_limit_reached' } });
    const capped = await call(body, '/v1/messages');
    expect(capped.headers.get('retry-after')).toBeNull();
    expect(await capped.json()).toMatchObject({
      error: { type: 'rate_limit_error', details: { error_code: 'enforced_spend_limit_reached' } },
    });
    simulator.configure({ quotaState: {}, overload: 'server_is_overloaded' });
    expect((await call(body, '/v1/messages')).status).toBe(529);
  });
});
