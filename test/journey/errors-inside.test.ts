/** An error inside a 200 of a language model judges like its status: sent again, passed on, counted and answered by a breaker alike. */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { brotliCompressSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import type { Clock } from '../../src/clock.ts';
import { fastClock } from '../support/fast-clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

const chat = {
  id: 'c',
  object: 'chat.completion',
  choices: [{ index: 0, message: { role: 'assistant', content: 'hi' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 },
};
const content = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: 'hi' } }] })}\n\n`;

type Answer = (response: ServerResponse) => void;
/** What a limiter says. */
const later = 'limited, try again in 10ms';
/** What the upstream answers to the first call of each model; later calls get content. */
const firstAnswers = new Map<string, Answer>();
const sent = new Map<string, number>();
const upstream = createServer((request, response) => {
  const parts: Buffer[] = [];
  request.on('data', (part: Buffer) => parts.push(part));
  request.on('end', () => {
    const { model, stream } = JSON.parse(Buffer.concat(parts).toString());
    const n = (sent.get(model) ?? 0) + 1;
    sent.set(model, n);
    const first = firstAnswers.get(model);
    if (n === 1 && first !== undefined) first(response);
    else if (stream === true) events(content)(response);
    else document(chat)(response);
  });
});
const packs: Readonly<Record<string, (bytes: Buffer) => Buffer>> = {
  gzip: (bytes) => gzipSync(bytes),
  deflate: (bytes) => deflateSync(bytes),
  br: (bytes) => brotliCompressSync(bytes),
  zstd: (bytes) => zstdCompressSync(bytes),
};

function written(type: string, text: string, { coding = '', pieces = 1, length = false } = {}): Answer {
  return (response) => {
    const bytes = packs[coding]?.(Buffer.from(text)) ?? Buffer.from(text);
    response.writeHead(200, {
      'content-type': type,
      ...(coding === '' ? {} : { 'content-encoding': coding }),
      ...(length ? { 'content-length': String(bytes.length) } : {}),
    });
    const size = Math.ceil(bytes.length / pieces);
    for (let from = 0; from < bytes.length; from += size) response.write(bytes.subarray(from, from + size));
    response.end();
  };
}
const events = (text: string, how = {}): Answer => written('text/event-stream', text, how);
const document = (body: unknown, how = {}): Answer =>
  written('application/json; charset=utf-8', JSON.stringify(body), how);
const event = (body: unknown, name?: string): string =>
  `${name === undefined ? '' : `event: ${name}\n`}data: ${JSON.stringify(body)}\n\n`;

/**
 * How long a response may be held back to be looked into (`read-response.ts`, `stream-start.ts`). A busy machine keeps its pieces, and the
 * threads of zlib, for longer: here it may be held for longer. Pauses before a call is sent again pass ten times as fast.
 */
const holds = [250, 1_000];
const fast = fastClock(10);
const patient: Clock = {
  ...fast,
  after: (ms, run) => fast.after(holds.includes(ms) ? 20_000 : ms, run),
};

let gateway: TestGateway;
beforeAll(async () => {
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  gateway = await startGateway({
    clock: patient,
    upstreams: `  model: { kind: language-model, origins: ["${origin}"], allowPrivateAddresses: true, limits: { requestsPerMinute: 100000, requestsPerDay: none } }`,
  });
});
afterAll(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

let calls = 0;
async function ask(first: Answer | null, { stream = false, credential = `own ${(calls += 1)}` } = {}) {
  const model = `m${(calls += 1)}`;
  if (first !== null) firstAnswers.set(model, first);
  const response = await fetch(`${gateway.url}/via/model/v1/chat/completions`, {
    method: 'POST',
    headers: {
      'sluice-key': gateway.keys['acme'] ?? '',
      authorization: `Bearer ${credential}`,
      'content-type': 'application/json',
      prefer: 'wait=600',
    },
    body: JSON.stringify({ model, stream, messages: [{ role: 'user', content: model }] }),
  });
  const text = await response.text();
  const id = response.headers.get('sluice-request-id') ?? '';
  const lineOf = (): string | undefined => gateway.logs.find((line) => line.includes(id));
  await until(() => lineOf() !== undefined);
  const { outcome }: { outcome: string } = JSON.parse(lineOf() ?? '');
  return { status: response.status, text, sent: sent.get(model) ?? 0, outcome };
}

const retried = [
  ['OpenRouter, a number', { error: { message: 'Rate limit exceeded', code: 429 }, user_id: 'u' }],
  ['LiteLLM, a numeric text', { error: { message: later, type: 'None', param: 'None', code: '429' } }],
  ['a text that begins with the status', { error: { message: later, code: '429 Too Many Requests' } }],
  ['a status beside the code', { error: { message: later, code: 'oops', status: 429 } }],
  ['a numeric text as status', { error: { message: later, status: '429' } }],
  ['another spelling of status', { error: { message: later, statusCode: 429 } }],
  ['beside an error that is a text', { error: later, code: 429 }],
  ['beside an error that is true', { error: true, status: 429, message: later }],
  ['a code of HTTP', { error: { message: later, http_code: 429 } }],
  ['an error within an error', { error: { error: { message: later, code: 429 } } }],
  ['MiniMax, too many calls', { base_resp: { status_code: 1002, status_msg: 'rate limit' } }],
  [
    'MiniMax, too many tokens',
    { id: 'x', choices: null, base_resp: { status_msg: 'no', status_code: 1039 } },
  ],
  ['Google', { error: { code: 429, message: later, status: 'RESOURCE_EXHAUSTED' } }],
  ['Google, as a list', [{ error: { code: 429, message: later, status: 'RESOURCE_EXHAUSTED' } }]],
  [
    'OpenAI, a name',
    { error: { type: 'tokens', code: 'rate_limit_exceeded', message: 'try again in 20ms' } },
  ],
  ['Anthropic, a type', { type: 'error', error: { type: 'rate_limit_error', message: later } }],
  ['Mistral, no envelope', { object: 'error', type: 'rate_limited', code: '1300', message: later }],
  ['no provider', { error: { message: 'No available model provider', code: 503 } }],
  ['an overloaded one', { error: { message: 'Overloaded', code: '529' } }],
  [
    'a choice that was not made',
    { id: 'g', choices: [{ error: { code: 429, message: later }, message: { content: '' } }] },
  ],
  [
    'an error beside no choices',
    { id: 'g', object: 'chat.completion', error: { code: 429, message: later }, choices: [] },
  ],
  [
    'a failed response',
    {
      object: 'response',
      status: 'failed',
      output: [],
      error: { code: 'rate_limit_exceeded', message: later },
    },
  ],
] as const;

describe('an error inside a 200 that says "later" is absorbed:', () => {
  test.each(retried)('a document of %s', async (_name, body) => {
    const reply = await ask(document(body));
    expect(reply).toEqual({ status: 200, text: JSON.stringify(chat), sent: 2, outcome: 'ok' });
  });

  test.each(['', 'text/plain', 'text/plain; charset=utf-8', 'application/x-ndjson', 'application/jsonl'])(
    'a document of the type "%s", in one piece and in several',
    async (type) => {
      const error = `${JSON.stringify({ error: { message: later, code: 429 } })}\n`;
      for (const how of [{}, { pieces: 2 }, { length: true }]) {
        const reply = await ask(written(type, error, how));
        expect(reply).toEqual({ status: 200, text: JSON.stringify(chat), sent: 2, outcome: 'ok' });
      }
    },
  );

  test('a document that begins with a byte order mark', async () => {
    const error = JSON.stringify({ error: { message: later, code: 429 } });
    const reply = await ask(written('application/json', `\uFEFF${error}`));
    expect(reply).toEqual({ status: 200, text: JSON.stringify(chat), sent: 2, outcome: 'ok' });
  });

  test.each(retried)('the first event of %s', async (_name, body) => {
    const reply = await ask(events(`: OPENROUTER PROCESSING\n\n${event(body)}data: [DONE]\n\n`), {
      stream: true,
    });
    expect(reply).toEqual({ status: 200, text: content, sent: 2, outcome: 'ok' });
  });

  const limited = { error: { message: later, code: 429 } };
  test.each([
    ['in one packet of stated length', { length: true }],
    ['in many pieces', { pieces: 20 }],
    ...[...Object.keys(packs), 'utf-8'].flatMap((coding): [string, object][] => [
      [`in ${coding}`, { coding }],
      [`in ${coding} of stated length`, { coding, length: true }],
      [`in pieces of ${coding}`, { coding, pieces: 5 }],
    ]),
  ])('%s, as a document and as an event', async (_name, how) => {
    expect(await ask(document(limited, how))).toMatchObject({ text: JSON.stringify(chat), sent: 2 });
    expect(await ask(events(event(limited), how), { stream: true })).toMatchObject({
      text: content,
      sent: 2,
    });
  });

  test.each([
    ['whose event alone is named so', event({ message: later, code: 429 }, 'error')],
    [
      'in a chunk that ends its choice',
      event({ error: limited.error, choices: [{ delta: { content: '' }, finish_reason: 'error' }] }),
    ],
    ['behind a sign of life', event({ type: 'keepalive' }) + event(limited)],
    [
      'behind the beginning of a response',
      event({ type: 'response.created', response: { error: null } }) +
        event({ type: 'response.failed', response: { error: limited.error } }),
    ],
    ['in events of several lines', `event: error\r\ndata: {"error":\r\ndata: {"code": 429}}\r\n\r\n`],
    ['without the empty line behind it', event(limited).trimEnd()],
    ['that ends with its line', event(limited).replace(/\n$/, '')],
    ['without data:', JSON.stringify(limited)],
    ['without data:, over several lines', JSON.stringify([limited], null, 2)],
  ])('an event %s', async (_name, text) => {
    for (const pieces of [1, 9, text.length]) {
      expect(await ask(events(text, { pieces }), { stream: true })).toMatchObject({ text: content, sent: 2 });
    }
  });

  test.each(['Text/Event-Stream', 'TEXT/EVENT-STREAM; charset=UTF-8', 'text/event-stream;charset=utf-8'])(
    'an event of %s',
    async (type) => {
      const reply = await ask(written(type, event(limited)), { stream: true });
      expect(reply).toMatchObject({ text: content, sent: 2 });
    },
  );

  test('a stream that is silent for a moment behind its head', async () => {
    const late: Answer = (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
      setTimeout(() => response.end(event(limited)), 400);
    };
    expect(await ask(late, { stream: true })).toMatchObject({ text: content, sent: 2 });
  });
});

describe('an error inside a 200 that is final is passed on unchanged and is no success:', () => {
  test.each([
    [{ error: { message: 'Provider returned error', code: 502 } }, 'upstream_error'],
    [{ error: { type: 'server_error', message: 'boom' } }, 'upstream_error'],
    [{ error: { message: 'of no known kind' } }, 'upstream_error'],
    [{ error: 'of no known kind' }, 'upstream_error'],
    [{ error: { message: 'no such model', code: 404 } }, 'upstream_error'],
    [{ base_resp: { status_code: 1004, status_msg: 'login fail' } }, 'upstream_error'],
    [{ base_resp: { status_code: 9999, status_msg: 'new' } }, 'upstream_error'],
    [{ base_resp: { status_code: 1008, status_msg: 'insufficient balance' } }, 'throttled'],
    [{ error: { message: 'too long', code: 'context_length_exceeded' } }, 'upstream_error'],
    [{ error: { message: 'You exceeded your current quota', code: 'insufficient_quota' } }, 'throttled'],
  ])('%j', async (body, outcome) => {
    expect(await ask(document(body))).toEqual({ status: 200, text: JSON.stringify(body), sent: 1, outcome });
    const text = event(body);
    expect(await ask(events(text), { stream: true })).toEqual({ status: 200, text, sent: 1, outcome });
  });

  test('behind content it is passed on, and counts all the same', async () => {
    const text = content + event({ error: { message: 'Provider returned error', code: 502 } });
    expect(await ask(events(text), { stream: true })).toEqual({
      status: 200,
      text,
      sent: 1,
      outcome: 'upstream_error',
    });
  });
});

test('a spent balance inside a 200 opens the breaker of its credential, as a 402 does', async () => {
  const credential = 'spent';
  const body = { error: { message: 'Insufficient credits', code: 402 } };
  expect(await ask(document(body), { credential })).toMatchObject({
    status: 200,
    text: JSON.stringify(body),
  });
  const next = await ask(null, { credential });
  expect(next).toMatchObject({ status: 402, sent: 0 });
  expect(JSON.parse(next.text)).toMatchObject({ code: 'upstream_refused' });
});

describe('a success is passed on as such:', () => {
  test.each([
    ['a base response of 0', { ...chat, base_resp: { status_code: 0, status_msg: '' } }],
    ['a base response beside content', { ...chat, base_resp: { status_code: 1002, status_msg: 'a part' } }],
    ['an error that is null', { ...chat, error: null }],
    ['an empty error', { ...chat, choices: [], error: {} }],
    ['an error of nulls', { error: { code: null, message: null, param: null }, status: 'queued' }],
    ['an error beside content', { ...chat, error: { code: 429, message: 'a part of it' } }],
    ['the words in its content', { choices: [{ message: { content: '{"error":{"code":429}}' } }] }],
  ])('%s', async (_name, body) => {
    const text = JSON.stringify(body);
    expect(await ask(document(body))).toEqual({ status: 200, text, sent: 1, outcome: 'ok' });
    expect(await ask(document(body, { length: true }))).toEqual({
      status: 200,
      text,
      sent: 1,
      outcome: 'ok',
    });
  });

  test.each(Object.keys(packs))('events in %s', async (coding) => {
    const text = event({ choices: [{ delta: { role: 'assistant', content: '' } }] }) + content.repeat(2_000);
    expect(await ask(events(text, { coding, pieces: 7 }), { stream: true })).toEqual({
      status: 200,
      text,
      sent: 1,
      outcome: 'ok',
    });
  });

  test('a long document', async () => {
    const long = { ...chat, more: 'x'.repeat(200_000) };
    expect(await ask(document(long, { pieces: 30 }))).toMatchObject({
      text: JSON.stringify(long),
      outcome: 'ok',
    });
  });

  test.each([[{}], [{ pieces: 2 }], [{ length: true }]])('text that shows an error, %j', async (how) => {
    const text = `An error is written so:\n${JSON.stringify({ error: { message: later, code: 429 } })}\n`;
    for (const type of ['', 'text/plain'])
      expect(await ask(written(type, text, how))).toEqual({ status: 200, text, sent: 1, outcome: 'ok' });
  });

  test.each([
    ['application/json', '[{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}', ']'],
    ['application/x-ndjson', '{"model":"m","message":{"content":"a"},"done":false}\n', '{"done":true}\n'],
    ['text/plain', '{ as text begins', '}'],
  ])('%s whose parts come one by one reaches its client as they come', async (type, start, rest) => {
    const done = Promise.withResolvers<void>();
    const model = `parts of ${type}`;
    firstAnswers.set(model, (response) => {
      response.writeHead(200, { 'content-type': type });
      response.write(start);
      void done.promise.then(() => response.end(rest));
    });
    const response = await fetch(`${gateway.url}/via/model/v1/chat/completions`, {
      method: 'POST',
      headers: { 'sluice-key': gateway.keys['acme'] ?? '', 'content-type': 'application/json' },
      body: JSON.stringify({ model }),
    });
    const first = await response.body?.getReader().read();
    expect(Buffer.from(first?.value ?? []).toString()).toBe(start);
    done.resolve();
  });
});
