/**
 * Embeddings and images: small bodies of the right shape.
 *
 * Owns: their shape. openai@6 asks for embeddings as base64 by default.
 */
import { listOf, numberOf, type Json } from '../json.ts';
import type { Cost } from './cost.ts';
import type { Identity } from './chat.ts';

/** A picture of one transparent pixel. */
const pixel =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==';

export function embeddingsBody(body: Json, cost: Cost, model: string, defaultLength: number): unknown {
  const length = Math.min(4096, Math.max(1, Math.floor(numberOf(body['dimensions']) ?? defaultLength)));
  const vector = Float32Array.from({ length }, (_, index) => Math.fround((index % 7) / 8));
  const embedding =
    body['encoding_format'] === 'base64' ? Buffer.from(vector.buffer).toString('base64') : [...vector];
  const data = Array.from({ length: inputs(body['input']) }, (_, index) => ({
    object: 'embedding',
    index,
    embedding,
  }));
  return { object: 'list', data, model, usage: { prompt_tokens: cost.prompt, total_tokens: cost.prompt } };
}

export function imagesBody(cost: Cost, { created }: Identity): unknown {
  const data = Array.from({ length: Math.min(10, cost.images) }, () => ({ b64_json: pixel }));
  const made = 272 * data.length;
  return {
    created,
    data,
    usage: {
      input_tokens: cost.prompt,
      input_tokens_details: { text_tokens: cost.prompt, image_tokens: 0 },
      output_tokens: made,
      total_tokens: cost.prompt + made,
    },
  };
}

/** A text, a list of texts, one list of tokens, or a list of such lists. */
function inputs(input: unknown): number {
  const list = listOf(input);
  return typeof list[0] === 'number' || list.length === 0 ? 1 : Math.min(2048, list.length);
}
