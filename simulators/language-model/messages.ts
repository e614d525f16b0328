/**
 * Anthropic's Messages API: the body, the stream, its errors inside a 200.
 *
 * Owns: their shape, as @anthropic-ai/sdk reads it.
 */
import type { Identity } from './chat.ts';
import { event, pieces, type Part, type Reply } from './reply.ts';
import { anthropicError } from './texts.ts';

export function messagesBody(reply: Reply, identity: Identity): unknown {
  return {
    ...start(reply, identity),
    content: [{ type: 'text', text: reply.text }],
    stop_reason: stopReason(reply),
    usage: usage(reply, reply.words.length),
  };
}

export function messagesStream(reply: Reply, identity: Identity): readonly Part[] {
  const part = (type: string, data: object, tokens = 0): Part => ({
    text: event({ type, ...data }, type),
    tokens,
  });
  const delta = { stop_reason: stopReason(reply), stop_sequence: null };
  return [
    part('message_start', { message: start(reply, identity) }),
    part('content_block_start', { index: 0, content_block: { type: 'text', text: '' } }),
    part('ping', {}),
    ...pieces(reply).map((text) =>
      part('content_block_delta', { index: 0, delta: { type: 'text_delta', text } }, 1),
    ),
    part('content_block_stop', { index: 0 }),
    part('message_delta', { delta, usage: { output_tokens: reply.words.length } }),
    part('message_stop', {}),
  ];
}

export function messagesFailure(type: string, text: string, requestId: string): string {
  return event(anthropicError(type, text, requestId), 'error');
}

function stopReason(reply: Reply): string {
  return reply.cutShort ? 'max_tokens' : 'end_turn';
}

function usage({ promptTokens, cache }: Reply, output: number): object {
  return {
    input_tokens: promptTokens - cache.written,
    cache_creation_input_tokens: cache.written,
    cache_read_input_tokens: cache.read,
    output_tokens: output,
  };
}

function start(reply: Reply, { id, model }: Identity): object {
  return {
    id: `msg_${id}`,
    type: 'message',
    role: 'assistant',
    model,
    content: [],
    stop_reason: null,
    stop_sequence: null,
    usage: usage(reply, 1),
  };
}
