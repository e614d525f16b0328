/**
 * What this process has learned of token charges: per workspace and model, and per beginning of a prompt.
 *
 * Owns: remembering, and forgetting. Does not own: the arithmetic (`token-estimate.policy.ts`). Bounds: 10,000 beginnings and
 * 10,000 pairs of workspace and model, the least recently used is forgotten first. Invariant: nothing of a prompt is kept but a
 * keyed digest of how it begins, in memory only. Each replica learns from the responses to its own calls.
 */
import { LRUCache } from 'lru-cache';
import type { Costs, Feedback } from '../call.ts';
import type { Clock } from '../clock.ts';
import { expectedTokens, learn } from './token-estimate.policy.ts';
import type { Learned, LearnedModel, LearnedPrompt, TokenGuess } from './token-estimate.policy.ts';

export const maxBeginnings = 10_000;
export const maxModels = 10_000;

/** A call's guess and where what its response teaches belongs. */
export interface NamedGuess {
  readonly guess: TokenGuess;
  /** Keyed digest of the lane: one workspace in one bucket. */
  readonly lane: string;
  /** Keyed digest of the prompt's beginning; `null` = not known. */
  readonly beginning: string | null;
}

export class TokenEstimates {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #models = new LRUCache<string, LearnedModel>({ max: maxModels });
  readonly #prompts = new LRUCache<string, LearnedPrompt>({ max: maxBeginnings });

  constructor(clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock;
  }

  /** Meters of tokens as the call is expected to be charged. */
  expected(named: NamedGuess): Costs {
    return expectedTokens(named.guess, this.#learnedOf(named), this.#clock.monotonic());
  }

  /** The response is over, or refused the call. `late`: what the rest of its body reported. */
  learn(named: NamedGuess, head: Feedback, late: Feedback | null): void {
    const { guess, lane, beginning } = named;
    if (guess.prompt <= 0) return;
    const known = this.#learnedOf(named);
    const { model, prompt } = learn(guess, known, { head, late }, this.#clock.monotonic());
    if (model !== null && model !== known.model) this.#models.set(lane, model);
    if (beginning !== null && prompt !== null && prompt !== known.prompt)
      this.#prompts.set(beginning, prompt);
  }

  #learnedOf({ lane, beginning }: NamedGuess): Learned {
    return {
      model: this.#models.get(lane) ?? null,
      prompt: beginning === null ? null : (this.#prompts.get(beginning) ?? null),
    };
  }
}
