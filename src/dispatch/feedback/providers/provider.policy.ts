/** What a provider's file adds to the common reading of language-model answers. Types only. */
import type { AnswerTime } from '../../duration.policy.ts';
import type { LimiterMessage } from '../message.policy.ts';
import type { ModelError, Verdict } from '../model-error.policy.ts';
import type { Reading } from '../reading.policy.ts';
import type { Dimension } from '../x-ratelimit.policy.ts';

/** What a refusal says in words that only its provider uses. */
export interface Said {
  /** Decides before codes and status. Absent: they decide. */
  readonly verdict?: Verdict;
  /** Members that the common grammar of sentences does not find. */
  readonly message?: Partial<LimiterMessage>;
}

/** Reads a refusal; `null`: it is none of this provider's, or says nothing that the common reading misses. */
export type ReadsRefusal = (error: ModelError) => Said | null;

/** Reads rate-limit fields of a form that only this provider has; none of it: no readings. */
export type ReadsFields = (fields: ReadonlyMap<string, string>, at: AnswerTime) => readonly Reading[];

export interface Provider {
  readonly refusal?: ReadsRefusal;
  /** What it names in fields of the common form (`x-ratelimit-limit-requests`). */
  readonly dimensions?: readonly Dimension[];
  readonly fields?: ReadsFields;
}
