/**
 * What the upstream's limiter charges for a call: characters, not tokens.
 *
 * Owns: the estimate, `prompt = floor(chars / 4) + 3 for chat + 765 per image part` (fits the recorded charges).
 * Does not own: buckets. Invariant: any JSON gives a finite cost.
 */
import { listOf, numberOf, objectOf, textOf, type Json } from '../json.ts';
import type { Dimension, LanguageModelSettings } from './options.ts';
import { noCacheUse, type CacheUse } from './prompt-cache.ts';

export type Endpoint = 'chat' | 'responses' | 'embeddings' | 'images' | 'messages';

export interface Cost {
  /** Prompt estimate, tokens, without what is read from the cache. */
  readonly prompt: number;
  /** Tokens of the prompt that the cache had, and that it is given. */
  readonly cache: CacheUse;
  /** Output the call allows, all choices together; 0 when it does not say. */
  readonly out: number;
  /** What the token buckets are charged. */
  readonly tokens: number;
  /** Pictures to make; 0 for text. */
  readonly images: number;
  /** Pictures shown to the model. */
  readonly inputImages: number;
}

const tokensPerImage = 765;

export function costOf(
  endpoint: Endpoint,
  body: Json,
  settings: LanguageModelSettings,
  cache: CacheUse = noCacheUse,
): Cost {
  const seen = { chars: 0, images: 0 };
  for (const part of promptParts(endpoint, body)) count(part, seen, 0);
  const chat = endpoint !== 'embeddings' && endpoint !== 'images';
  const overhead = chat ? settings.chatOverhead : 0;
  const prompt = Math.floor(seen.chars / 4) + overhead + seen.images * tokensPerImage - cache.read;
  const choices = endpoint === 'images' ? 1 : Math.max(1, whole(body['n']) ?? 1, whole(body['best_of']) ?? 1);
  const out = chat ? outputLimit(body) * choices : 0;
  return {
    prompt,
    cache,
    out,
    tokens: charge(settings.tokenCharge, prompt, out),
    images: endpoint === 'images' ? Math.max(1, whole(body['n']) ?? 1) : 0,
    inputImages: seen.images,
  };
}

/** Units of `dimension` that the call asks for; 0 means that the dimension does not concern it. */
export function unitsOf(dimension: Dimension, cost: Cost): number {
  switch (dimension) {
    case 'rpm':
    case 'rpd':
      return 1;
    case 'tpm':
    case 'tpd':
      return cost.tokens;
    case 'itpm':
      return cost.prompt;
    case 'otpm':
      return 1;
    case 'ipm':
      return cost.images;
    case 'inputImages':
      return cost.inputImages;
  }
}

/** Output the call allows per choice; 0 when it does not say. */
export function outputLimit(body: Json): number {
  return (
    whole(body['max_completion_tokens']) ?? whole(body['max_tokens']) ?? whole(body['max_output_tokens']) ?? 0
  );
}

function charge(rule: LanguageModelSettings['tokenCharge'], prompt: number, out: number): number {
  switch (rule) {
    case 'sum':
      return prompt + out;
    case 'max':
      return Math.max(prompt, out);
    case 'prompt':
      return prompt;
  }
}

function whole(value: unknown): number | undefined {
  const number = numberOf(value);
  return number === undefined || number < 0 ? undefined : Math.floor(number);
}

function promptParts(endpoint: Endpoint, body: Json): readonly unknown[] {
  switch (endpoint) {
    case 'chat':
      return [body['messages']];
    case 'messages':
      return [body['system'], body['messages']];
    case 'responses':
      return [body['instructions'], body['input']];
    case 'embeddings':
      return [body['input']];
    case 'images':
      return [body['prompt']];
  }
}

/** Text content only: base64 and `data:` URLs are pictures, numbers are ready-made tokens. */
function count(value: unknown, seen: { chars: number; images: number }, depth: number): void {
  if (typeof value === 'string') seen.chars += value.length;
  else if (typeof value === 'number') seen.chars += 4;
  else if (depth > 8) return;
  else if (Array.isArray(value)) for (const item of listOf(value)) count(item, seen, depth + 1);
  else {
    const part = objectOf(value) ?? {};
    if (/image/.test(textOf(part['type']) ?? '')) seen.images += 1;
    else for (const name of ['text', 'content']) count(part[name] ?? [], seen, depth + 1);
  }
}
