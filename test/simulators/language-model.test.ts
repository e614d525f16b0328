import { afterEach, describe, expect, test } from '@jest/globals';
import {
  createLanguageModelSimulator,
  type LanguageModelOptions,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import { manualClock } from '../support/manual-clock.ts';
import { sample } from '../support/recorded.ts';

/** The recorded fields whose names start like this. */
const recordedFields = (id: string, prefix: string): Record<string, string> =>
  Object.fromEntries(Object.entries(sample(id).fields).filter(([name]) => name.startsWith(prefix)));

const instant = { baseMs: 0, perTokenMs: 0, jitter: 0 };
const running: LanguageModelSimulator[] = [];

async function start(options: LanguageModelOptions) {
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
}

const qwen = 'qwen/qwen3.8-27b';
const limits = { 'gpt-4o-mini': { tpm: 50_000 } };

/** By sample. A refusal has the recorded body. */
const recorded: Readonly<Record<string, Recorded>> = {
  U01: {
    what: 'the first call of 60 tokens leaves 199 requests of the day and 39,940 tokens of the minute',
    options: { models: { m: { rpd: 200, tpm: 40_000 } } },
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
  U07: {
    what: 'a refusal by the lower limit of a project names the project',
    options: { orgs: { 'org-l': { projects: { proj_J: { keys: ['sk-sim'], limits } } } } },
    used: [47_949, { dimension: 'tpm', model: 'gpt-4o-mini', project: 'proj_J' }],
    body: chat(3006, 'gpt-4o-mini'),
    status: 429,
    headers: { 'x-ratelimit-limit-project-tokens': '50000' },
  },
  U10: {
    what: 'a call larger than the bucket is refused without Retry-After',
    options: { orgs: org('org-x') },
    body: chat(34_307),
    status: 429,
    headers: { 'retry-after': null },
  },
  U18: {
    what: 'Groq answers 413 to a call larger than its input tokens per minute',
    options: { dialect: 'groq', orgs: org('org_x'), models: { [qwen]: { itpm: 7000 } } },
    body: chat(8278, qwen),
    path: '/openai/v1/chat/completions',
    status: 413,
  },
};

describe('the simulated language model responds as the recorded service did:', () => {
  test.each(Object.entries(recorded).map(([id, row]) => ({ id, ...row })))('$what ($id)', async (row) => {
    const { id, options, used, body, path, status = 200, fields = [], headers = {} } = row;
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
  });
});

test('Anthropic states absolute resets, rounds tokens and charges output while it is produced', async () => {
  const { call, clock } = await start({
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
});
