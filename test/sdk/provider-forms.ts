/**
 * What a language-model API responds in the published form of each provider, with the given usage, but without levels: what a call
 * is charged can then only come from its usage. Whole or streamed, by path and body.
 */
import type { Answer, Respond } from './upstream.ts';

type Body = Readonly<Record<string, unknown>>;

/** What every response says. */
export const responseText = 'water finds its way';
const text = responseText;
const created = 1_790_000_000;

/** Responds with usage members in the provider's own names; of a list each call takes the next one. */
export const stating =
  (usages: readonly Body[]): Respond =>
  ({ line, body }, n) => {
    const usage = usages[Math.min(n, usages.length) - 1] ?? {};
    return formOf(line.split(' ')[1] ?? '', JSON.parse(body.toString()) as Body, usage);
  };

function events(list: readonly object[], end = ''): Answer {
  const lines = list.map((each) => {
    const event = 'type' in each ? `event: ${String(each.type)}\n` : '';
    return `${event}data: ${JSON.stringify(each)}\n\n`;
  });
  return [200, lines.join('') + end, { 'content-type': 'text/event-stream' }];
}

function formOf(path: string, body: Body, usage: Body): Answer {
  const isStreamed = body['stream'] === true || path.includes(':streamGenerateContent');
  const model = typeof body['model'] === 'string' ? body['model'] : '';
  if (path.includes('/models/'))
    return isStreamed ? events(geminiChunks(usage)) : [200, geminiChunk(text, usage)];
  if (path.endsWith('/messages'))
    return isStreamed ? events(anthropicEvents(model, usage)) : [200, anthropicMessage(model, usage)];
  if (path.endsWith('/responses'))
    return isStreamed ? events(responsesEvents(model, usage)) : [200, openaiResponse(model, usage)];
  if (isStreamed) return events(chatChunks(path, body, model, usage), 'data: [DONE]\n\n');
  const choices = [{ index: 0, message: { role: 'assistant', content: text }, finish_reason: 'stop' }];
  return [200, { ...chat(model), choices, usage, ...(isGroq(path) ? { x_groq: { id: 'req_1' } } : {}) }];
}

const isGroq = (path: string): boolean => path.startsWith('/openai/');
const chat = (model: string, object = 'chat.completion') => ({ id: 'chatcmpl-1', object, created, model });

/** OpenAI states usage where it is asked for, Groq in a member of its own, Mistral in the last chunk with content. */
function chatChunks(path: string, body: Body, model: string, usage: Body): readonly object[] {
  const chunk = (delta: object, finish_reason: string | null = null, more: object = {}): object => ({
    ...chat(model, 'chat.completion.chunk'),
    choices: [{ index: 0, delta, finish_reason }],
    ...more,
  });
  const words = text.split(' ').map((word) => chunk({ content: word }));
  const start = [chunk({ role: 'assistant', content: '' }), ...words];
  if (isGroq(path)) return [...start, chunk({}, 'stop', { x_groq: { id: 'req_1', usage } })];
  if (model.startsWith('mistral')) return [...start, chunk({ content: '' }, 'stop', { usage })];
  const asks = (body['stream_options'] as Body | undefined)?.['include_usage'] === true;
  return [...start, chunk({}, 'stop'), ...(asks ? [chunk({}, null, { choices: [], usage })] : [])];
}

const part = { type: 'output_text', text, annotations: [], logprobs: [] };
const item = { id: 'msg_1', type: 'message', role: 'assistant', status: 'completed', content: [part] };
const openaiResponse = (model: string, usage: Body | null): object => ({
  id: 'resp_1',
  object: 'response',
  created_at: created,
  status: usage === null ? 'in_progress' : 'completed',
  error: null,
  incomplete_details: null,
  model,
  output: usage === null ? [] : [item],
  usage,
});

function responsesEvents(model: string, usage: Body): readonly object[] {
  const at = { item_id: 'msg_1', output_index: 0, content_index: 0 };
  const begun = { ...item, status: 'in_progress', content: [] };
  return [
    { type: 'response.created', response: openaiResponse(model, null) },
    { type: 'response.output_item.added', output_index: 0, item: begun },
    { type: 'response.content_part.added', ...at, part: { ...part, text: '' } },
    { type: 'response.output_text.delta', ...at, delta: text, logprobs: [] },
    { type: 'response.output_item.done', output_index: 0, item },
    { type: 'response.completed', response: openaiResponse(model, usage) },
  ].map((event, sequence_number) => ({ ...event, sequence_number }));
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
const anthropicEvents = (model: string, { output_tokens, ...input }: Body): readonly object[] => [
  { type: 'message_start', message: anthropicMessage(model, { ...input, output_tokens: 1 }, false) },
  { type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } },
  { type: 'ping' },
  { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text } },
  { type: 'content_block_stop', index: 0 },
  {
    type: 'message_delta',
    delta: { stop_reason: 'end_turn', stop_sequence: null },
    usage: { output_tokens },
  },
  { type: 'message_stop' },
];

const geminiChunk = (said: string, usageMetadata: Body, end: object = { finishReason: 'STOP' }): object => ({
  candidates: [{ content: { role: 'model', parts: [{ text: said }] }, index: 0, ...end }],
  usageMetadata,
});

/** Every chunk states usage; the output of those before the last is not yet whole. */
const geminiChunks = (usage: Body): readonly object[] => [
  geminiChunk(
    'water ',
    { ...usage, candidatesTokenCount: 1, totalTokenCount: usage['promptTokenCount'] },
    {},
  ),
  geminiChunk('finds its way', usage),
];
