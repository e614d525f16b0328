import { afterEach, describe, expect, test } from '@jest/globals';
import {
  createLanguageModelSimulator,
  type LanguageModelOptions,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { sample } from '../support/recorded.ts';

/** The recorded fields whose names start like this. */
const recordedFields = (id: string, prefix: string): Record<string, string> =>
  Object.fromEntries(Object.entries(sample(id).fields).filter(([name]) => name.startsWith(prefix)));

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

const org = (name: string): NonNullable<LanguageModelOptions['orgs']> => ({
  [name]: { projects: { proj_J: { keys: ['sk-sim', 'sk-sim-2'] } } },
});
const groq = '/openai/v1/chat/completions';
const picture = [
  { type: 'text', text: 'x'.repeat(53 * 4) },
  { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } },
];

interface Recorded {
  readonly what: string;
  readonly options: LanguageModelOptions;
  /** Units that are used already. */
  readonly used?: Parameters<LanguageModelSimulator['consume']>;
  readonly body: object;
  readonly path?: string;
  readonly status?: number;
  /** The response has the recorded fields that begin so. */
  readonly fields?: readonly string[];
  readonly headers?: Readonly<Record<string, string | null>>;
  /** After the call. */
  readonly requestsUsed?: number;
}

const dayOf200 = { models: { m: { rpd: 200, tpm: 40_000 } } };
const qwen = 'qwen/qwen3.8-27b';
const llama = 'llama-3.1-8b-instant';
const projectOf = (limits: Record<string, { tpm: number }>) => ({
  'org-l': { projects: { proj_J: { keys: ['sk-sim'], limits } } },
});

/** By sample. A refusal has the recorded body. */
const recorded: Readonly<Record<string, Recorded>> = {
  U01: {
    what: 'the first call of 60 tokens leaves 199 requests of the day and 39,940 tokens of the minute',
    options: dayOf200,
    body: chat(60, 'm'),
    fields: ['x-ratelimit-'],
  },
  U02: {
    what: 'a call with a picture above the tokens per minute is refused for 534 ms',
    options: { orgs: org('org-x') },
    used: [29_446, { dimension: 'tpm' }],
    body: { model: 'gpt-4o', messages: [{ role: 'user', content: picture }] },
    status: 429,
    fields: ['x-ratelimit-', 'retry-after'],
    // The live headers were computed a fraction of a millisecond after the decision; here both are one instant.
    headers: { 'x-ratelimit-reset-tokens': '58.892s', 'openai-organization': null },
  },
  U04: {
    what: 'a reset that is over at once is stated as 0s, beside organisation and project',
    options: {
      models: { m: { rpm: 15_000, tpm: 40_000_000 } },
      orgs: { 'nr-test-org': { projects: { proj_id: { keys: ['sk-sim'] } } } },
    },
    body: chat(21, 'm'),
    fields: ['x-ratelimit-', 'openai-'],
  },
  U07: {
    what: 'a refusal by the lower limit of a project names the project',
    options: { orgs: projectOf({ 'gpt-4o-mini': { tpm: 50_000 } }) },
    used: [47_949, { dimension: 'tpm', model: 'gpt-4o-mini', project: 'proj_J' }],
    body: chat(3006, 'gpt-4o-mini'),
    status: 429,
    headers: { 'x-ratelimit-limit-project-tokens': '50000' },
  },
  U09: {
    what: 'when the 200 requests of a day are used, the next one is 7m12s away',
    options: { models: { 'gpt-4o': { rpd: 200 } }, orgs: org('org-x') },
    used: [200, { dimension: 'rpd' }],
    body: chat(10),
    status: 429,
    headers: { 'retry-after': '432' },
  },
  U10: {
    what: 'a call larger than the bucket is refused without Retry-After, and its request is charged',
    options: { orgs: org('org-x') },
    body: chat(34_307),
    status: 429,
    headers: { 'retry-after': null },
    requestsUsed: 1,
  },
  U17: {
    what: 'a refusal of Groq names the model in backticks and the tokens of the day',
    options: { dialect: 'groq', orgs: org('org_x'), models: { [llama]: { tpd: 500_000 } } },
    used: [499_731, { dimension: 'tpd' }],
    body: chat(664, llama),
    path: groq,
    status: 429,
    headers: { 'retry-after': '69', 'retry-after-ms': null },
  },
  U18: {
    what: 'Groq answers 413 to a call larger than its input tokens per minute',
    options: { dialect: 'groq', orgs: org('org_x'), models: { [qwen]: { itpm: 7000 } } },
    body: chat(8278, qwen),
    path: groq,
    status: 413,
  },
};

describe('the simulated language model responds as the recorded service did:', () => {
  test.each(Object.entries(recorded).map(([id, row]) => ({ id, ...row })))('$what ($id)', async (row) => {
    const { id, options, used, body, path, status = 200, fields = [], headers = {}, requestsUsed } = row;
    const { call, simulator } = await start(options);
    if (used !== undefined) simulator.consume(...used);
    const response = await call(body, path);
    expect(response.status).toBe(status);
    if (status !== 200) expect(await response.json()).toEqual(sample(id).body);
    const wanted = {
      ...Object.assign({}, ...fields.map((prefix) => recordedFields(id, prefix))),
      ...headers,
    };
    const names = Object.keys(wanted);
    expect(Object.fromEntries(names.map((name) => [name, response.headers.get(name)]))).toEqual(wanted);
    if (requestsUsed !== undefined)
      expect(simulator.state().buckets['org-x|gpt-4o|rpm']?.used).toBe(requestsUsed);
  });

  test('after two calls the fields and their usage-based twins state the tokens of both (U03)', async () => {
    const { call, clock, simulator } = await start({ ...dayOf200, usageBasedTwin: true });
    await call(chat(60, 'm'));
    clock.advance(171_666);
    simulator.consume(60, { dimension: 'tpm' });
    const { headers } = await call(chat(60, 'm'));
    expect(Object.fromEntries(headers)).toMatchObject(recordedFields('U03', 'x-ratelimit-'));
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
    expect(Object.fromEntries((await call(chat(5))).headers)).toMatchObject(sample(id).fields);
  });

  test('a refusal may come six seconds late, with the fields of its end (sample U06)', async () => {
    const { call, simulator, clock } = await start({});
    simulator.fault({ kind: 'late-429', ms: 5977 });
    const late = call(chat(5));
    while (clock.waiting === 0) await new Promise((resolve) => setImmediate(resolve));
    clock.advance(5977);
    expect(Object.fromEntries((await late).headers)).toMatchObject(sample('U06').fields);
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

test('a marked prompt is cached for five minutes from its last use, and is not counted when it is read', async () => {
  const { call, clock, simulator } = await start({ dialect: 'anthropic' });
  const system = [{ type: 'text', text: 'x'.repeat(40_000), cache_control: { type: 'ephemeral' } }];
  const ask = async (content: string): Promise<unknown> => {
    const body = { model: 'claude-sonnet-5', max_tokens: 4, system, messages: [{ role: 'user', content }] };
    const response = await call(body, '/v1/messages');
    const { usage } = (await response.json()) as { usage: object };
    return { ...usage, left: Number(response.headers.get('anthropic-ratelimit-input-tokens-remaining')) };
  };
  const written = { cache_creation_input_tokens: 10_000, cache_read_input_tokens: 0 };
  const read = { cache_creation_input_tokens: 0, cache_read_input_tokens: 10_000 };
  const first = { input_tokens: 103, ...written, output_tokens: 4, left: 20_000 };
  expect(await ask('a'.repeat(400))).toMatchObject(first);
  expect(await ask('b'.repeat(4_000))).toMatchObject({ input_tokens: 1_003, ...read, left: 19_000 });
  clock.advance(299_000);
  expect(await ask('c')).toMatchObject(read);
  clock.advance(300_000);
  expect(await ask('d')).toMatchObject(written);
  simulator.configure({ promptCacheSeconds: 0 });
  expect(await ask('e')).toMatchObject(written);
});
