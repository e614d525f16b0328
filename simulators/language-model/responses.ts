/**
 * The Responses API: the body, and the events in the order in which openai@6 accumulates them.
 *
 * Owns: their shape. A throttle after the 200 is the event `response.failed` (sample U08).
 */
import type { Identity } from './chat.ts';
import { event, pieces, type Part, type Reply } from './reply.ts';

export function responsesBody(reply: Reply, identity: Identity): unknown {
  return response(reply, identity, 'completed');
}

export function responsesStream(reply: Reply, identity: Identity): readonly Part[] {
  let sequence = 0;
  const part = (type: string, data: object, tokens = 0): Part => ({
    text: event({ type, ...data, sequence_number: sequence++ }, type),
    tokens,
  });
  const at = { item_id: `msg_${identity.id}`, output_index: 0, content_index: 0 };
  const empty = { type: 'output_text', text: '', annotations: [], logprobs: [] };
  const full = { ...empty, text: reply.text };
  return [
    part('response.created', { response: response(reply, identity, 'in_progress') }),
    part('response.in_progress', { response: response(reply, identity, 'in_progress') }),
    part('response.output_item.added', { output_index: 0, item: message(reply, identity, 'in_progress') }),
    part('response.content_part.added', { ...at, part: empty }),
    ...pieces(reply).map((delta) => part('response.output_text.delta', { ...at, delta, logprobs: [] }, 1)),
    part('response.output_text.done', { ...at, text: reply.text, logprobs: [] }),
    part('response.content_part.done', { ...at, part: full }),
    part('response.output_item.done', { output_index: 0, item: message(reply, identity, 'completed') }),
    part('response.completed', { response: response(reply, identity, 'completed') }),
  ];
}

export function responsesFailure(reply: Reply, identity: Identity, code: string, text: string): string {
  const failed = { ...response(reply, identity, 'failed'), error: { code, message: text } };
  return event({ type: 'response.failed', sequence_number: 99, response: failed }, 'response.failed');
}

type Status = 'in_progress' | 'completed' | 'failed';

function response(reply: Reply, { id, created, model }: Identity, status: Status): Record<string, unknown> {
  const done = status === 'completed';
  return {
    id: `resp_${id}`,
    object: 'response',
    created_at: created,
    status,
    error: null,
    incomplete_details: null,
    instructions: null,
    model,
    output: done ? [message(reply, { id, created, model }, 'completed')] : [],
    parallel_tool_calls: true,
    tools: [],
    tool_choice: 'auto',
    metadata: {},
    temperature: 1,
    top_p: 1,
    usage: done
      ? {
          input_tokens: reply.promptTokens,
          input_tokens_details: { cached_tokens: 0 },
          output_tokens: reply.words.length,
          output_tokens_details: { reasoning_tokens: 0 },
          total_tokens: reply.promptTokens + reply.words.length,
        }
      : null,
  };
}

function message(reply: Reply, { id }: Identity, status: Status): unknown {
  const text = { type: 'output_text', text: reply.text, annotations: [], logprobs: [] };
  return {
    id: `msg_${id}`,
    type: 'message',
    role: 'assistant',
    status,
    content: status === 'completed' ? [text] : [],
  };
}
