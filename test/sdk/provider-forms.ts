/**
 * A language-model API that answers in the published form of each provider and states the given usage, but no levels: what a call is
 * charged can then only come from its usage. Whole or streamed, by path and body.
 */
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';

export interface Provider {
  readonly url: string;
  /** Bodies of the calls so far. */
  readonly bodies: Readonly<Record<string, unknown>>[];
  close(): Promise<void>;
}

/** Usage members in the provider's own names; of a list each call takes the next one. */
export type Usages = readonly Readonly<Record<string, unknown>>[];

/** What every response says. */
export const responseText = 'water finds its way';
const text = responseText;
const created = 1_790_000_000;

export async function startProvider(usages: Usages): Promise<Provider> {
  const bodies: Record<string, unknown>[] = [];
  const server: Server = createServer((request, response) => {
    void json(request).then((parsed) => {
      const body = parsed as Record<string, unknown>;
      const usage = usages[Math.min(bodies.length, usages.length - 1)] ?? {};
      bodies.push(body);
      respond(request.url ?? '', body, usage, response);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    bodies,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(() => resolve()));
    },
  };
}

type Body = Readonly<Record<string, unknown>>;

function respond(path: string, body: Body, usage: Body, response: ServerResponse): void {
  const isStreamed = body['stream'] === true || path.includes(':streamGenerateContent');
  const model = typeof body['model'] === 'string' ? body['model'] : '';
  const whole = (value: unknown): void => {
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value));
  };
  const events = (list: readonly unknown[], end = ''): void => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const each of list) {
      const { type } = each as { readonly type?: string };
      response.write(`${type === undefined ? '' : `event: ${type}\n`}data: ${JSON.stringify(each)}\n\n`);
    }
    response.end(end);
  };
  if (path.includes('/models/')) {
    if (isStreamed) events(geminiChunks(usage));
    else whole({ ...geminiChunk(text, usage), modelVersion: 'gemini' });
  } else if (path.endsWith('/messages')) {
    if (isStreamed) events(anthropicEvents(model, usage));
    else whole(anthropicMessage(model, usage));
  } else if (path.endsWith('/responses')) {
    if (isStreamed) events(responsesEvents(model, usage));
    else whole(openaiResponse(model, usage));
  } else if (isStreamed) {
    events(chatChunks(path, body, model, usage), 'data: [DONE]\n\n');
  } else whole(chat(path, model, usage));
}

const isGroq = (path: string): boolean => path.startsWith('/openai/');

const chat = (path: string, model: string, usage: Body): object => ({
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created,
  model,
  choices: [
    { index: 0, message: { role: 'assistant', content: text }, logprobs: null, finish_reason: 'stop' },
  ],
  usage,
  ...(isGroq(path) ? { x_groq: { id: 'req_1' } } : {}),
});

/** OpenAI states usage where it is asked for, Groq in a member of its own, Mistral in the last chunk with content. */
function chatChunks(path: string, body: Body, model: string, usage: Body): readonly object[] {
  const chunk = (choices: readonly object[], more: object = {}): object => ({
    id: 'chatcmpl-1',
    object: 'chat.completion.chunk',
    created,
    model,
    choices,
    ...more,
  });
  const delta = (part: object, finish_reason: string | null = null): object => ({
    index: 0,
    delta: part,
    finish_reason,
  });
  const start = chunk([delta({ role: 'assistant', content: '' })]);
  const words = text.split(' ').map((word) => chunk([delta({ content: word })]));
  if (isGroq(path)) return [start, ...words, chunk([delta({}, 'stop')], { x_groq: { id: 'req_1', usage } })];
  if (model.startsWith('mistral'))
    return [start, ...words, chunk([delta({ content: '' }, 'stop')], { usage })];
  const asks = (body['stream_options'] as Body | undefined)?.['include_usage'] === true;
  const end = asks ? [chunk([], { usage })] : [];
  return [start, ...words, chunk([delta({}, 'stop')]), ...end];
}

function openaiResponse(model: string, usage: Body | null, status = 'completed'): object {
  const content = [{ type: 'output_text', text, annotations: [], logprobs: [] }];
  const message = { id: 'msg_1', type: 'message', role: 'assistant', status, content };
  return {
    id: 'resp_1',
    object: 'response',
    created_at: created,
    status,
    error: null,
    incomplete_details: null,
    instructions: null,
    model,
    output: usage === null ? [] : [message],
    parallel_tool_calls: true,
    tools: [],
    tool_choice: 'auto',
    metadata: {},
    usage,
  };
}

function responsesEvents(model: string, usage: Body): readonly object[] {
  const at = { item_id: 'msg_1', output_index: 0, content_index: 0 };
  const part = { type: 'output_text', text: '', annotations: [], logprobs: [] };
  const item = { id: 'msg_1', type: 'message', role: 'assistant', status: 'in_progress', content: [] };
  const events = [
    { type: 'response.created', response: openaiResponse(model, null, 'in_progress') },
    { type: 'response.output_item.added', output_index: 0, item },
    { type: 'response.content_part.added', ...at, part },
    { type: 'response.output_text.delta', ...at, delta: text, logprobs: [] },
    { type: 'response.output_text.done', ...at, text, logprobs: [] },
    { type: 'response.content_part.done', ...at, part: { ...part, text } },
    {
      type: 'response.output_item.done',
      output_index: 0,
      item: { ...item, status: 'completed', content: [{ ...part, text }] },
    },
    { type: 'response.completed', response: openaiResponse(model, usage) },
  ];
  return events.map((event, sequence_number) => ({ ...event, sequence_number }));
}

const anthropicMessage = (model: string, usage: Body, isWhole = true): object => ({
  id: 'msg_1',
  type: 'message',
  role: 'assistant',
  model,
  content: isWhole ? [{ type: 'text', text }] : [],
  stop_reason: isWhole ? 'end_turn' : null,
  stop_sequence: null,
  usage,
});

/** The input is in the first event, the output grows until the last `message_delta`. */
const anthropicEvents = (model: string, usage: Body): readonly object[] => [
  { type: 'message_start', message: anthropicMessage(model, { ...usage, output_tokens: 1 }, false) },
  { type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } },
  { type: 'ping' },
  { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text } },
  { type: 'content_block_stop', index: 0 },
  {
    type: 'message_delta',
    delta: { stop_reason: 'end_turn', stop_sequence: null },
    usage: { output_tokens: usage['output_tokens'] },
  },
  { type: 'message_stop' },
];

const geminiChunk = (part: string, usageMetadata: Body, finishReason: string | null = 'STOP'): object => ({
  candidates: [
    {
      content: { role: 'model', parts: [{ text: part }] },
      index: 0,
      ...(finishReason === null ? {} : { finishReason }),
    },
  ],
  usageMetadata,
});

/** Every chunk states usage; the output of those before the last is not yet whole. */
const geminiChunks = (usage: Body): readonly object[] => [
  geminiChunk(
    'water ',
    { ...usage, candidatesTokenCount: 1, totalTokenCount: usage['promptTokenCount'] },
    null,
  ),
  geminiChunk('finds its way', usage),
];
