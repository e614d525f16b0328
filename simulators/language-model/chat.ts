/**
 * Chat completions: the body and the stream.
 *
 * Owns: their shape, as openai@6 reads it. With `stream_options.include_usage` every chunk carries `usage`,
 * null but in the last one, whose `choices` is empty.
 */
import { objectOf, type Json } from '../json.ts';
import { event, pieces, type Part, type Reply } from './reply.ts';

export interface Identity {
  readonly id: string;
  /** Unix seconds. */
  readonly created: number;
  readonly model: string;
}

export function chatBody(reply: Reply, { id, created, model }: Identity): unknown {
  const choices = Array.from({ length: reply.choices }, (_, index) => ({
    index,
    message: { role: 'assistant', content: reply.text, refusal: null, annotations: [] },
    logprobs: null,
    finish_reason: reply.cutShort ? 'length' : 'stop',
  }));
  return { id: `chatcmpl-${id}`, object: 'chat.completion', created, model, choices, usage: usage(reply) };
}

export function chatStream(body: Json, reply: Reply, { id, created, model }: Identity): readonly Part[] {
  const withUsage = objectOf(body['stream_options'])?.['include_usage'] === true;
  const chunk = (choices: unknown, total: unknown = null): string =>
    event({
      id: `chatcmpl-${id}`,
      object: 'chat.completion.chunk',
      created,
      model,
      choices,
      ...(withUsage ? { usage: total } : {}),
    });
  const every = (delta: unknown, finish: string | null): unknown =>
    Array.from({ length: reply.choices }, (_, index) => ({ index, delta, finish_reason: finish }));
  return [
    { text: chunk(every({ role: 'assistant', content: '', refusal: null }, null)), tokens: 0 },
    ...pieces(reply).map((content) => ({ text: chunk(every({ content }, null)), tokens: reply.choices })),
    { text: chunk(every({}, reply.cutShort ? 'length' : 'stop')), tokens: 0 },
    ...(withUsage ? [{ text: chunk([], usage(reply)), tokens: 0 }] : []),
    { text: event('[DONE]'), tokens: 0 },
  ];
}

function usage(reply: Reply): unknown {
  return {
    prompt_tokens: reply.promptTokens,
    completion_tokens: reply.outputTokens,
    total_tokens: reply.promptTokens + reply.outputTokens,
    prompt_tokens_details: { cached_tokens: 0, audio_tokens: 0 },
    completion_tokens_details: { reasoning_tokens: 0, audio_tokens: 0 },
  };
}
