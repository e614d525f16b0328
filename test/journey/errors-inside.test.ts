/** An error inside a 200 judges like its status: sent again, passed on and counted alike. */
import { brotliCompressSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { systemClock, type Clock } from '../../src/clock.ts';
import { fastClock } from '../support/fast-clock.ts';
import { scripted, type Arrival, type Scripted } from './scripted.ts';
import { closeAll, logged } from './world.ts';

const usage = { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 };
const chat = { id: 'c', choices: [{ message: { role: 'assistant', content: 'hi' } }], usage };
const event = (body: unknown, name?: string): string =>
  `${name === undefined ? '' : `event: ${name}\n`}data: ${JSON.stringify(body)}\n\n`;
const content = event({ choices: [{ index: 0, delta: { content: 'hi' } }] });
const role = event({ choices: [{ index: 0, delta: { role: 'assistant', content: '' } }] });
/** What a limiter says. */
const later = 'limited, try again in 10ms';

const packs: Readonly<Record<string, (bytes: Buffer) => Buffer>> = {
  gzip: (bytes) => gzipSync(bytes),
  deflate: (bytes) => deflateSync(bytes),
  br: (bytes) => brotliCompressSync(bytes),
  zstd: (bytes) => zstdCompressSync(bytes),
};
type Write = (arrival: Pick<Arrival, 'response'>) => void;
interface How {
  readonly coding?: string;
  readonly pieces?: number;
  /** Whether the length is stated. */
  readonly length?: boolean;
}
const written =
  (type: string, text: string, { coding = '', pieces = 1, length = false }: How = {}): Write =>
  ({ response }) => {
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
const events = (text: string, how?: How): Write => written('text/event-stream', text, how);
const document = (body: unknown, how?: How): Write =>
  written('application/json; charset=utf-8', JSON.stringify(body), how);

/** What the upstream answers to the first call of each model; later calls get content. */
const firstAnswers = new Map<string, Write>();
const start = (clock: Clock): Promise<Scripted> =>
  scripted(
    (arrival) => {
      const { model, stream } = JSON.parse(arrival.body) as { model: string; stream: boolean };
      const write = firstAnswers.get(model) ?? (stream ? events(content) : document(chat));
      firstAnswers.delete(model);
      write(arrival);
    },
    {
      clock,
      upstreams: {
        model: 'kind: language-model, limits: { requestsPerMinute: 100000, requestsPerDay: none }',
      },
    },
  );

/**
 * How long a response may be held back to be looked into (`read-response.ts`). A busy machine keeps its pieces, and the
 * threads of zlib, for longer: here it may be held for longer. Pauses before a call is sent again pass ten times as fast.
 */
const holds = [250, 1_000];
const fast = fastClock(10);
const patient: Clock = {
  ...fast,
  after: (ms, run) => fast.after(holds.includes(ms) ? 20_000 : ms, run),
};
let front: Scripted;
/** Holds responses no longer than it does in earnest. */
let hasty: Scripted;
beforeAll(async () => {
  front = await start(patient);
  hasty = await start(systemClock);
});
afterAll(closeAll);

let models = 0;
const bodyOf = (first: Write, stream: boolean) => {
  const model = `m${(models += 1)}`;
  firstAnswers.set(model, first);
  return { model, stream, messages: [{ role: 'user', content: model }] };
};
const path = '/via/model/v1/chat/completions';

async function ask(first: Write, { stream = false } = {}) {
  const before = front.arrivals.length;
  const headers = { authorization: `Bearer own ${models}`, prefer: 'wait=600' };
  const reply = await front.ask(path, { json: bodyOf(first, stream), headers });
  const { outcome } = await logged(front.gateway, reply);
  return { status: reply.status, text: reply.text, sent: front.arrivals.length - before, outcome };
}
const served = (text: string) => ({ status: 200, text, sent: 1, outcome: 'ok' });
const absorbed = { status: 200, sent: 2, outcome: 'ok' };

const error = (members: object, beside: object = {}) => ({
  error: { message: later, ...members },
  ...beside,
});
const limited = error({ code: 429 });

describe('an error inside a 200 that says "later" is absorbed:', () => {
  test.each<[string, unknown]>([
    ['OpenRouter, a number', { error: { message: 'Rate limit exceeded', code: 429 }, user_id: 'u' }],
    ['LiteLLM, a numeric text', error({ type: 'None', param: 'None', code: '429' })],
    ['a text that begins with the status', error({ code: '429 Too Many Requests' })],
    ['a status beside the code', error({ code: 'oops', status: 429 })],
    ['a numeric text as status', error({ status: '429' })],
    ['another spelling of status', error({ statusCode: 429 })],
    ['beside an error that is a text', { error: later, code: 429 }],
    ['beside an error that is true', { error: true, status: 429, message: later }],
    ['a code of HTTP', error({ http_code: 429 })],
    ['an error within an error', { error: limited }],
    ['Google', error({ code: 429, status: 'RESOURCE_EXHAUSTED' })],
    ['Google, as a list', [error({ code: 429, status: 'RESOURCE_EXHAUSTED' })]],
    ['OpenAI, a name', error({ type: 'tokens', code: 'rate_limit_exceeded' })],
    ['Anthropic, a type', error({ type: 'rate_limit_error' }, { type: 'error' })],
    ['Mistral, no envelope', { object: 'error', type: 'rate_limited', code: '1300', message: later }],
    ['no provider', { error: { message: 'No available model provider', code: 503 } }],
    ['an overloaded one', { error: { message: 'Overloaded', code: '529' } }],
    ['a choice that was not made', { choices: [{ ...limited, message: { content: '' } }] }],
    ['an error beside no choices', { ...limited, object: 'chat.completion', choices: [] }],
    [
      'a failed response',
      error({ code: 'rate_limit_exceeded' }, { object: 'response', status: 'failed', output: [] }),
    ],
  ])('%s, as a document and as the first event', async (_name, body) => {
    expect(await ask(document(body))).toEqual({ ...absorbed, text: JSON.stringify(chat) });
    const text = `: OPENROUTER PROCESSING\n\n${event(body)}data: [DONE]\n\n`;
    const first = written('Text/EVENT-STREAM;charset=UTF-8', text);
    expect(await ask(first, { stream: true })).toEqual({ ...absorbed, text: content });
  });

  test.each(['', 'text/plain', 'text/plain; charset=utf-8', 'application/x-ndjson', 'application/jsonl'])(
    'a document of the type "%s", in one piece and in several',
    async (type) => {
      for (const how of [{}, { pieces: 2 }, { length: true }]) {
        const first = written(type, `${JSON.stringify(limited)}\n`, how);
        expect(await ask(first)).toEqual({ ...absorbed, text: JSON.stringify(chat) });
      }
    },
  );

  test('a document that begins with a byte order mark', async () => {
    const first = written('application/json', `\uFEFF${JSON.stringify(limited)}`);
    expect(await ask(first)).toEqual({ ...absorbed, text: JSON.stringify(chat) });
  });

  test.each<How>([
    { length: true },
    { pieces: 20 },
    ...[...Object.keys(packs), 'utf-8'].flatMap((coding) => [
      { coding },
      { coding, length: true },
      { coding, pieces: 5 },
    ]),
  ])('a document and an event written so: %j', async (how) => {
    expect(await ask(document(limited, how))).toMatchObject({ text: JSON.stringify(chat), sent: 2 });
    expect(await ask(events(event(limited), how), { stream: true })).toMatchObject({
      text: content,
      sent: 2,
    });
  });

  const created = event({ type: 'response.created', response: { error: null } }, 'response.created');
  const started = event({ type: 'message_start', message: { usage: { input_tokens: 3 } } }, 'message_start');
  const failed = error({ code: 'rate_limit_exceeded' });
  const choices = [{ delta: { content: '' }, finish_reason: 'error' }];
  test.each([
    ['whose event alone is named so', event({ message: later, code: 429 }, 'error')],
    ['in a chunk that ends its choice', event({ ...limited, choices })],
    ['behind a sign of life', event({ type: 'keepalive' }) + event(limited)],
    ['behind the empty role of a chat', role + event(failed)],
    ['behind the beginning of a message', started + event({ error: { type: 'overloaded_error' } }, 'error')],
    ['behind the beginning of a response', created + event({ type: 'response.failed', response: failed })],
    ['as a bare event of the Responses API', created + event({ type: 'error', ...failed.error }, 'error')],
    ['in events of several lines', `event: error\r\ndata: {"error":\r\ndata: {"code": 429}}\r\n\r\n`],
    ['without the empty line behind it', event(limited).trimEnd()],
    ['that ends with its line', event(limited).replace(/\n$/, '')],
    ['without data:', JSON.stringify(limited)],
    ['without data:, over several lines', JSON.stringify([limited], null, 2)],
  ])('an event %s', async (_name, text) => {
    for (const pieces of [1, 9, text.length])
      expect(await ask(events(text, { pieces }), { stream: true })).toMatchObject({ text: content, sent: 2 });
  });

  test('a stream that is silent for a moment behind its head', async () => {
    const late: Write = ({ response }) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
      setTimeout(() => response.end(event(limited)), 400);
    };
    expect(await ask(late, { stream: true })).toEqual({ ...absorbed, text: content });
  });
});

describe('an error inside a 200 that is final is passed on unchanged and is no success:', () => {
  test.each([
    [{ error: { message: 'Provider returned error', code: 502 } }, 'upstream_error'],
    [{ error: { type: 'server_error', message: 'boom' } }, 'upstream_error'],
    [{ error: { message: 'of no known kind' } }, 'upstream_error'],
    [{ error: 'of no known kind' }, 'upstream_error'],
    [{ error: { message: 'no such model', code: 404 } }, 'upstream_error'],
    [{ error: { message: 'too long', code: 'context_length_exceeded' } }, 'upstream_error'],
    [{ error: { message: 'You exceeded your current quota', code: 'insufficient_quota' } }, 'throttled'],
  ])('%j', async (body, outcome) => {
    expect(await ask(document(body))).toEqual({ ...served(JSON.stringify(body)), outcome });
    expect(await ask(events(event(body)), { stream: true })).toEqual({ ...served(event(body)), outcome });
    expect(await ask(events(role + event(body)), { stream: true })).toMatchObject({ sent: 1, outcome });
  });

  test.each([
    ['one that counts', { error: { message: 'Provider returned error', code: 502 } }],
    ['one that says "later"', error({ type: 'tokens', code: 'rate_limit_exceeded' })],
  ])('behind content, %s', async (_name, body) => {
    const text = content + event(body);
    expect(await ask(events(text), { stream: true })).toMatchObject({ status: 200, text, sent: 1 });
  });
});

describe('a success is passed on as such:', () => {
  test.each<[string, unknown, How?]>([
    ['an error that is null', { ...chat, error: null }],
    ['an empty error', { ...chat, choices: [], error: {} }],
    ['an error of nulls', { error: { code: null, message: null, param: null }, status: 'queued' }],
    ['an error beside content', { ...chat, error: { code: 429, message: 'a part of it' } }],
    ['the words in its content', { choices: [{ message: { content: '{"error":{"code":429}}' } }] }],
    ['a long document', { ...chat, more: 'x'.repeat(200_000) }, { pieces: 30 }],
  ])('%s', async (_name, body, how = {}) => {
    const text = JSON.stringify(body);
    expect(await ask(document(body, how))).toEqual(served(text));
    expect(await ask(document(body, { length: true }))).toEqual(served(text));
  });

  test('a stream that ends without content', async () => {
    expect(await ask(events(role), { stream: true })).toEqual(served(role));
  });

  test.each([[{}], [{ pieces: 2 }], [{ length: true }]])('text that shows an error, %j', async (how) => {
    const text = `An error is written so:\n${JSON.stringify(limited)}\n`;
    for (const type of ['', 'text/plain']) expect(await ask(written(type, text, how))).toEqual(served(text));
  });

  test.each([
    ['application/json', '[{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}', () => front],
    ['application/x-ndjson', '{"model":"m","message":{"content":"a"},"done":false}\n', () => front],
    ['text/plain', '{ as text begins', () => front],
    ['text/event-stream', role, () => hasty],
  ])('%s whose parts come one by one reaches its client as they come', async (type, first, by) => {
    const done = Promise.withResolvers<void>();
    const json = bodyOf(({ response }) => {
      response.writeHead(200, { 'content-type': type }).write(first);
      void done.promise.then(() => response.end('the rest'));
    }, type === 'text/event-stream');
    const { url, keys } = by().gateway;
    const response = await fetch(url + path, {
      method: 'POST',
      headers: { 'sluice-key': keys['acme'] ?? '', 'content-type': 'application/json' },
      body: JSON.stringify(json),
    });
    const reader = response.body?.getReader();
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe(first);
    done.resolve();
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('the rest');
  });
});

test('a stream that breaks before its first content breaks for its client, too', async () => {
  const broken: Write = ({ response }) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(role);
    setTimeout(() => response.destroy(), 20);
  };
  await expect(hasty.ask(path, { json: bodyOf(broken, true) })).rejects.toThrow();
});
