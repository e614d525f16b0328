/**
 * The text that a simulated model answers with. Its length is deterministic.
 *
 * Owns: the text and its length. Invariant: one word is one output token.
 */
import { outputLimit } from './cost.ts';
import type { Cost } from './cost.ts';
import type { Json } from '../json.ts';
import type { CacheUse } from './prompt-cache.ts';

export interface Reply {
  readonly words: readonly string[];
  readonly text: string;
  /** The call allowed fewer tokens than the response has. */
  readonly cutShort: boolean;
  readonly choices: number;
  /** Without the tokens that were read from the cache. */
  readonly promptTokens: number;
  readonly cache: CacheUse;
  /** Over all choices. */
  readonly outputTokens: number;
}

/** A piece of a streamed response; `tokens` are produced just before it is sent. */
export interface Part {
  readonly text: string;
  readonly tokens: number;
}

const vocabulary = ['water', 'finds', 'its', 'way', 'through', 'every', 'gate', 'in', 'time'];

export function replyTo(body: Json, cost: Cost, replyTokens: number): Reply {
  const allowed = outputLimit(body);
  const length = allowed > 0 ? Math.min(allowed, replyTokens) : replyTokens;
  const words = Array.from({ length }, (_, index) => vocabulary[index % vocabulary.length] ?? '');
  const asked = typeof body['n'] === 'number' ? Math.floor(body['n']) : 1;
  const choices = Math.min(128, Math.max(1, asked));
  return {
    words,
    text: words.join(' '),
    cutShort: allowed > 0 && allowed < replyTokens,
    choices,
    promptTokens: cost.prompt,
    cache: cost.cache,
    outputTokens: length * choices,
  };
}

/** The words, each but the first with a blank before it: joined, they are `text`. */
export function pieces(reply: Reply): readonly string[] {
  return reply.words.map((word, index) => (index === 0 ? word : ` ${word}`));
}

/** One server-sent event; `name` is left out where the API has none. */
export function event(data: unknown, name?: string): string {
  const head = name === undefined ? '' : `event: ${name}\n`;
  return `${head}data: ${typeof data === 'string' ? data : JSON.stringify(data)}\n\n`;
}
