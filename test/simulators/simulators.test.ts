import { afterEach, describe, expect, test } from '@jest/globals';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
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
const running: Pick<LanguageModelSimulator, 'state' | 'close'>[] = [];

async function start(options: LanguageModelOptions) {
  const simulator = createLanguageModelSimulator({ clock: manualClock(), latency: instant, ...options });
  running.push(simulator);
  const { url } = await simulator.listen();
  const call = async (body: object, path = '/v1/chat/completions'): Promise<Response> =>
    await fetch(url + path, {
      method: 'POST',
      headers: { authorization: 'Bearer sk-sim', 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
  return { simulator, call };
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

test('the simulated REST bucket counts from 1/40, refuses the 41st call as recorded (sample U33), and drains 2 per second', async () => {
  const clock = manualClock();
  const simulator = createCommerceSimulator({ clock, latency: { minMs: 0, maxMs: 0 } });
  running.push(simulator);
  const { url } = await simulator.listen();
  const headers = { 'x-shopify-access-token': 'shpat_sim' };
  const send = () => fetch(`${url}/admin/api/2026-10/products.json?limit=1`, { headers });
  const limitOf = (response: Response) => response.headers.get('x-shopify-shop-api-call-limit');
  expect(limitOf(await send())).toBe('1/40');
  simulator.consume(39);
  const refused = await send();
  expect([refused.status, limitOf(refused), refused.headers.get('retry-after')]).toEqual([
    429,
    '40/40',
    '2.0',
  ]);
  expect(await refused.json()).toEqual(sample('U33').body);
  clock.advance(499);
  expect((await send()).status).toBe(429);
  expect(simulator.log.at(-1)).toMatchObject({ decision: 'throttled', waitMs: 1, insideRetryAfter: true });
  clock.advance(1);
  expect(limitOf(await send())).toBe('40/40');
});
