/**
 * OpenAI: the fields that many others have taken over. A reset states when the bucket is full. Its refusals are the common reading.
 * `tokens_usage_based` repeats `tokens` with a reset of its own and is left out on purpose.
 */
import { dimension } from '../x-ratelimit.policy.ts';
import type { Provider } from './provider.policy.ts';

export const openai: Provider = {
  dimensions: [
    dimension('requests', 'requests'),
    dimension('tokens', 'tokens'),
    dimension('project-tokens', 'tokens'),
    dimension('input-tokens', 'input_tokens', 'full', 60_000),
    dimension('output-tokens', 'output_tokens', 'full', 60_000),
    dimension('input-images', 'images'),
    dimension('images', 'images'),
  ],
};
