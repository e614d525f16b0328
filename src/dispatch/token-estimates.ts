/**
 * What this process has learned of token charges, per workspace and model.
 *
 * Owns: remembering, and forgetting. Does not own: the arithmetic (`token-estimate.policy.ts`). Bounds: 10,000 pairs of workspace and
 * model, the least recently used is forgotten first. Invariant: nothing of a prompt is kept, only ratios, in memory. Each replica
 * learns from the responses to its own calls.
 */
import { LRUCache } from 'lru-cache';
import type { Costs, Feedback } from '../call.ts';
import { expectedTokens, learn, nothingLearned } from './token-estimate.policy.ts';
import type { LearnedModel, TokenGuess } from './token-estimate.policy.ts';

export const maxModels = 10_000;

/** A call's guess and where what its response teaches belongs. */
export interface NamedGuess {
  readonly guess: TokenGuess;
  /** Keyed digest of the lane: one workspace in one bucket. */
  readonly lane: string;
}

export class TokenEstimates {
  readonly #models = new LRUCache<string, LearnedModel>({ max: maxModels });

  /** Meters of tokens as the call is expected to be charged. */
  expected({ guess, lane }: NamedGuess): Costs {
    return expectedTokens(guess, this.#models.get(lane) ?? nothingLearned);
  }

  /** The response is over, or refused the call. `late`: what the rest of its body reported. */
  learn({ guess, lane }: NamedGuess, head: Feedback, late: Feedback | null): void {
    if (guess.prompt <= 0) return;
    const known = this.#models.get(lane) ?? nothingLearned;
    const learned = learn(guess, known, { head, late });
    if (learned !== known) this.#models.set(lane, learned);
  }
}
