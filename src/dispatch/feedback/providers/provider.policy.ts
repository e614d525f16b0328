/** What a provider's file adds to the common reading of language-model refusals. Types only. */
import type { LimiterMessage } from '../message.policy.ts';
import type { ModelError, Verdict } from '../model-error.policy.ts';

/** What a refusal says in words that only its provider uses. */
export interface Said {
  /** Decides before codes and status. Absent: they decide. */
  readonly verdict?: Verdict;
  /** Members that the common grammar of sentences does not find. */
  readonly message?: Partial<LimiterMessage>;
}

/** Reads a refusal; `null`: it is none of this provider's, or says nothing that the common reading misses. */
export type ReadsRefusal = (error: ModelError) => Said | null;
