/**
 * The providers whose refusals need reading of their own: adding one is a file here, a line below, and its samples in
 * `test/fixtures/providers/`. The first that knows a refusal reads it.
 */
import type { ModelError } from '../model-error.policy.ts';
import { anthropic } from './anthropic.policy.ts';
import { azure } from './azure.policy.ts';
import { groq } from './groq.policy.ts';
import type { ReadsRefusal, Said } from './provider.policy.ts';
import { together } from './together.policy.ts';
import { xai } from './xai.policy.ts';

export const providers: Readonly<Record<string, ReadsRefusal>> = { anthropic, azure, groq, together, xai };

/** What a refusal says in its provider's own words. */
export function saidBy(error: ModelError | null): Said {
  if (error === null) return {};
  for (const reads of Object.values(providers)) {
    const said = reads(error);
    if (said !== null) return said;
  }
  return {};
}
