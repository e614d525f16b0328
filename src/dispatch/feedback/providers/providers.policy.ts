/**
 * The providers of language models. `CONTRIBUTING.md` (recipe "A provider's dialect") names all that a new one needs. Where
 * several providers know the form of a field or of a refusal, the first in this list reads it.
 */
import type { ResponseTime } from '../../stated-time.policy.ts';
import type { ModelError } from '../model-error.policy.ts';
import type { Reading } from '../reading.policy.ts';
import { xRateLimitReadings } from '../x-ratelimit.policy.ts';
import { anthropic } from './anthropic.policy.ts';
import { azure } from './azure.policy.ts';
import { cerebras } from './cerebras.policy.ts';
import { groq } from './groq.policy.ts';
import { mistral } from './mistral.policy.ts';
import { openai } from './openai.policy.ts';
import type { Provider, ProviderRefusal } from './provider.policy.ts';
import { together } from './together.policy.ts';
import { xai } from './xai.policy.ts';

export const providers: Readonly<Record<string, Provider>> = {
  openai,
  azure,
  groq,
  cerebras,
  anthropic,
  mistral,
  together,
  xai,
};

const all = Object.values(providers);
const dimensions = all.flatMap((provider) => provider.dimensions ?? []);

/** What a refusal says in its provider's own words. */
export function providerRefusal(error: ModelError | null): ProviderRefusal {
  if (error === null) return {};
  for (const { refusal } of all) {
    const read = refusal?.(error) ?? null;
    if (read !== null) return read;
  }
  return {};
}

/** Every limit that a response's fields name, in the first form in which they name one. */
export function modelReadings(fields: ReadonlyMap<string, string>, at: ResponseTime): readonly Reading[] {
  const common = xRateLimitReadings(dimensions, fields, at);
  if (common.length > 0) return common;
  for (const provider of all) {
    const own = provider.fields?.(fields, at) ?? [];
    if (own.length > 0) return own;
  }
  return [];
}
