/**
 * What a language-model API responds in the published form of each provider, with the given usage, but without levels: what a call
 * is charged can then only come from its usage. Whole or streamed, by path and body.
 */
import type { Answer, Respond } from './upstream.ts';

type Body = Readonly<Record<string, unknown>>;

/** What every response says. */
export const responseText = 'water finds its way';
const text = responseText;

/** Responds with usage members in the provider's own names. */
export const stating =
  (usage: Body): Respond =>
  ({ line, body }) => {
    const path = line.split(' ')[1] ?? '';
    const asked = JSON.parse(body) as Body;
    const isStreamed = asked['stream'] === true || path.includes(':streamGenerateContent');
    if (path.includes('/models/'))
      return isStreamed ? events(geminiChunks(usage)) : [200, geminiChunk(text, usage)];
    const model = String(asked['model']);
    if (isStreamed) return events(chatChunks(path, model, usage), 'data: [DONE]\n\n');
    const choices = [{ index: 0, message: { role: 'assistant', content: text }, finish_reason: 'stop' }];
    return [200, { ...chat(model), choices, usage, ...(isGroq(path) ? { x_groq: { id: 'req_1' } } : {}) }];
  };

const events = (list: readonly object[], end = ''): Answer => {
  const lines = list.map((each) => `data: ${JSON.stringify(each)}\n\n`);
  return [200, lines.join('') + end, { 'content-type': 'text/event-stream' }];
};

const isGroq = (path: string): boolean => path.startsWith('/openai/');
const chat = (model: string, object = 'chat.completion') => ({
  id: 'chatcmpl-1',
  object,
  created: 1_790_000_000,
  model,
});

/** Groq states usage in a member of its own, Mistral in the last chunk with content, OpenAI nowhere unless it is asked to. */
function chatChunks(path: string, model: string, usage: Body): readonly object[] {
  const chunk = (delta: object, finish_reason: string | null = null, more: object = {}): object => ({
    ...chat(model, 'chat.completion.chunk'),
    choices: [{ index: 0, delta, finish_reason }],
    ...more,
  });
  const words = text.split(' ').map((word) => chunk({ content: word }));
  const start = [chunk({ role: 'assistant', content: '' }), ...words];
  if (isGroq(path)) return [...start, chunk({}, 'stop', { x_groq: { id: 'req_1', usage } })];
  if (model.startsWith('mistral')) return [...start, chunk({ content: '' }, 'stop', { usage })];
  return [...start, chunk({}, 'stop')];
}

const geminiChunk = (said: string, usageMetadata: Body, end: object = { finishReason: 'STOP' }): object => ({
  candidates: [{ content: { role: 'model', parts: [{ text: said }] }, index: 0, ...end }],
  usageMetadata,
});

/** Every chunk states usage; the output of those before the last is not yet whole. */
const geminiChunks = (usage: Body): readonly object[] => {
  const begun = { ...usage, candidatesTokenCount: 1, totalTokenCount: usage['promptTokenCount'] };
  return [geminiChunk('water ', begun, {}), geminiChunk('finds its way', usage)];
};
