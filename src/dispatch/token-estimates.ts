/**
 * What this process has learned of token charges: per workspace and model, and per beginning of a prompt.
 *
 * Owns: remembering, and forgetting. Does not own: the arithmetic (`token-estimate.policy.ts`). Bounds: 10,000 beginnings and
 * 10,000 pairs of workspace and model, the least recently used is forgotten first. Invariant: nothing of a prompt is kept but a
 * keyed digest of how it begins, in memory only. What one replica learns is passed on to the others
 * (`limiter/estimate-store.ts`).
 */
import { LRUCache } from 'lru-cache';
import type { Costs, Feedback } from '../call.ts';
import type { Clock } from '../clock.ts';
import { embeddedEstimates, type EstimateStore, type SharedEstimate } from '../limiter/estimate-store.ts';
import {
  expectedTokens,
  isChargedByRule,
  learnModel,
  learnPrompt,
  refusedByRule,
  refusedModel,
  refusedPrompt,
  type LearnedModel,
  type LearnedPrompt,
  type TokenGuess,
} from './token-estimate.policy.ts';

export const maxBeginnings = 10_000;
export const maxModels = 10_000;

/** Names under which the estimates of a call are kept. Both are keyed digests. */
export interface GuessNames {
  /** Digest of the lane: one workspace in one bucket. */
  readonly lane: string;
  /** Digest of the prompt's beginning; `null` = not known. */
  readonly beginning: string | null;
}

/** A call's guess and where what its response teaches belongs. */
export interface NamedGuess extends GuessNames {
  readonly guess: TokenGuess;
}

export class TokenEstimates {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #store: EstimateStore;
  readonly #models = new LRUCache<string, LearnedModel>({ max: maxModels });
  readonly #prompts = new LRUCache<string, LearnedPrompt>({ max: maxBeginnings });

  constructor(clock: Pick<Clock, 'monotonic'>, store: EstimateStore = embeddedEstimates) {
    this.#clock = clock;
    this.#store = store;
    store.listen((learned) => this.#adopt(learned));
  }

  /** Meters of tokens as the call is expected to be charged. */
  expected({ guess, lane, beginning }: NamedGuess): Costs {
    const model = this.#models.get(lane) ?? null;
    return expectedTokens(guess, model, this.#promptOf(beginning), this.#clock.monotonic());
  }

  /**
   * The response is over, or refused the call. `late`: what the rest of its body reported, which may be a refusal behind content.
   */
  learn(named: NamedGuess, head: Feedback, late: Feedback | null): void {
    const { guess, lane, beginning } = named;
    if (guess.prompt <= 0) return;
    if (head.throttle !== null) return this.#learnRefusal(named, head);
    // Usage in a stream that ended with a throttle is that of a part of the response, and teaches nothing.
    if (late !== null && late.throttle !== null) return this.#learnRefusal(named, late);
    const usage = late?.usage ?? head.usage;
    if (usage === undefined) return;
    const stated = {
      tokens: head.meters.some(({ meter, level }) => meter === 'tokens' && level !== null),
      apart: head.meters.some(({ meter }) => meter === 'input_tokens' || meter === 'output_tokens'),
    };
    const model = learnModel(this.#models.get(lane) ?? null, guess, usage, stated);
    this.#keepModel(lane, model);
    const prompt = learnPrompt(this.#promptOf(beginning), guess, usage, this.#clock.monotonic());
    if (beginning !== null && prompt !== null) this.#keepPrompt(beginning, prompt);
  }

  #keepModel(name: string, model: LearnedModel): void {
    this.#models.set(name, model);
    this.#store.share({ kind: 'model', name, ...model });
  }

  #keepPrompt(name: string, prompt: LearnedPrompt): void {
    this.#prompts.set(name, prompt);
    const { factor, kept, beyond } = prompt;
    this.#store.share({ kind: 'prompt', name, factor, kept, beyond });
  }

  /** What another replica has just learned, of calls later than those that this one knows of. */
  #adopt(learned: SharedEstimate): void {
    if (learned.kind === 'prompt') {
      const { name, factor, kept, beyond } = learned;
      this.#prompts.set(name, { factor, kept, beyond, at: this.#clock.monotonic() });
      return;
    }
    const { kind: _kind, name, ...model } = learned;
    this.#models.set(name, model);
  }

  #learnRefusal(named: NamedGuess, { throttle, requestedTokens }: Feedback): void {
    if (throttle?.kind !== 'rate' || requestedTokens === undefined) return;
    if (throttle.meter === 'input_tokens') this.#learnAskedInput(named, requestedTokens);
    else if (throttle.meter === 'tokens' || throttle.meter === 'tokens_day')
      this.#learnRule(named, requestedTokens);
  }

  #learnAskedInput({ guess, beginning }: NamedGuess, asked: number): void {
    if (beginning === null) return;
    const now = this.#clock.monotonic();
    this.#keepPrompt(beginning, refusedPrompt(guess, this.#promptOf(beginning), asked, now));
  }

  /** What is charged by use is learned of responses. */
  #learnRule({ guess, lane, beginning }: NamedGuess, asked: number): void {
    const model = this.#models.get(lane) ?? null;
    if (!isChargedByRule(guess, model)) return;
    if (model !== null) this.#keepModel(lane, refusedModel(model, guess, asked));
    if (beginning === null) return;
    const now = this.#clock.monotonic();
    this.#keepPrompt(beginning, refusedByRule(guess, this.#promptOf(beginning), asked, now));
  }

  #promptOf(beginning: string | null): LearnedPrompt | null {
    return beginning === null ? null : (this.#prompts.get(beginning) ?? null);
  }
}
