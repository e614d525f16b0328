/** What a provider's file adds to the common reading of language-model responses. Types only. */
import type { ResponseTime } from '../../stated-time.policy.ts';
import type { LimiterMessage } from '../message.policy.ts';
import type { ModelError, Verdict } from '../model-error.policy.ts';
import type { Reading } from '../reading.policy.ts';
import type { Dimension } from '../x-ratelimit.policy.ts';

/** What a refusal says in words that only its provider uses. */
export interface ProviderRefusal {
  /** The verdict, which then goes before that of codes and status. Absent: codes and status decide. */
  readonly verdict?: Verdict;
  /** Members that the common grammar of sentences does not find. */
  readonly message?: Partial<LimiterMessage>;
}

/** Reads a refusal; `null`: the refusal is not this provider's, or the common reading finds all that it says. */
export type ReadsRefusal = (error: ModelError) => ProviderRefusal | null;

/** Reads rate-limit fields of a form that only this provider has; without such fields the list is empty. */
export type ReadsFields = (fields: ReadonlyMap<string, string>, at: ResponseTime) => readonly Reading[];

export interface Provider {
  readonly refusal?: ReadsRefusal;
  /** Dimensions that the provider names in fields of the common form (`x-ratelimit-limit-requests`). */
  readonly dimensions?: readonly Dimension[];
  readonly fields?: ReadsFields;
}
