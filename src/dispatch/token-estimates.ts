/**
 * What a call will be charged in tokens, from what its provider counted of calls before it, per workspace and model. Nothing of a prompt is
 * kept, only ratios, in memory. Each replica learns from the responses to its own calls.
 *
 * A provider's cache keeps the beginning of a prompt, and reading it is not counted where the provider says so. What a call marks for the
 * cache is taken to be there, as far as it was for calls before; where it is not, the provider says so with the response, or with one
 * refusal.
 */
import { LRUCache } from 'lru-cache';
import type { Costs, Feedback, TokenUsage } from '../call.ts';
import type { TokenGuess } from './model-call.policy.ts';

/** What was learned of a workspace's calls to one model. `null`: no response has said it yet. */
interface LearnedModel {
  /** Tokens of the prompt for each one guessed. */
  readonly factor: number | null;
  /** Counted input for each token guessed, of prompts that mark nothing for the cache. */
  readonly counted: number | null;
  /** Share of what prompts mark for the cache that was counted because it did not lie there, 0 to 1. */
  readonly missed: number | null;
  /** Output that is counted of a call, and how far a call's is from those of the others, both as means of the latest calls. */
  readonly output: { readonly mean: number; readonly deviation: number } | null;
  /** Responses state the level of all tokens: then it is charged by rule, not by use. */
  readonly isStated: boolean;
  /** Responses state levels of input and output tokens. */
  readonly apart: boolean;
  /** Tokens beyond the rule that the latest refusal stated; 0 = the rule holds. */
  readonly beyond: number;
  /** Responses since that refusal. */
  readonly responsesSince: number;
}

/** Before the first response. A provider of which nothing is known charges by rule. */
const nothingLearned: LearnedModel = {
  factor: null,
  counted: null,
  missed: null,
  output: null,
  isStated: true,
  apart: false,
  beyond: 0,
  responsesSince: 0,
};

/** Pairs of workspace and model that are remembered; the least recently used is forgotten first. */
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

/** How many deviations above the mean the expected output lies at most. */
const deviations = 3;
/** A new figure counts so much against all before it. */
const newShare = 0.25;
/** No prompt has that many tokens for each four characters, nor so few: figures beyond are no measure of the next prompt. */
const maxFactor = 8;
const minFactor = 1 / 8;
/** However short a prompt is, a refusal is believed that states this many tokens beyond the rule: images, tools. */
const alwaysBelieved = 8_192;
/** Responses for which a refusal is believed, so that one odd refusal passes. */
const believedFor = 128;

/** Meters of tokens as the call is expected to be charged. */
function expectedTokens(guess: TokenGuess, model: LearnedModel): Costs {
  const input = expectedInput(guess, model);
  // Without a word of it, output that is counted when it is made is one token: a full meter holds the call, others let it go.
  const unknown = guess.apart ? 1 : (guess.output ?? 0);
  const usual = model.output;
  const made = usual === null ? unknown : usual.mean + deviations * usual.deviation;
  const output = Math.ceil(Math.min(guess.output ?? Infinity, made));
  const tokens = isChargedByRule(guess, model)
    ? Math.ceil(byRule(guess) + beyondRule(guess, model))
    : input + output;
  if (!guess.apart && !model.apart) return { tokens };
  return { tokens, input_tokens: input, output_tokens: Math.max(1, output) };
}

/** The provider reserves what a call may use, by rule, instead of what it uses. */
const isChargedByRule = ({ apart }: TokenGuess, { isStated }: LearnedModel): boolean => !apart && isStated;

const byRule = ({ prompt, output }: TokenGuess): number => prompt + (output ?? 0);

/** Whole units; a call is never expected to cost nothing. What is marked is taken to lie in the cache until responses say otherwise. */
function expectedInput({ prompt, marked }: TokenGuess, { factor, counted, missed }: LearnedModel): number {
  const input =
    marked > 0 ? (prompt - marked * (1 - (missed ?? 0))) * (factor ?? 1) : prompt * (counted ?? factor ?? 1);
  return Math.max(1, Math.ceil(input));
}

/**
 * What is known after a call's response. `late`: what the rest of the body reported, which may be a refusal behind content; then the
 * usage is that of a part of the response, and teaches nothing.
 */
function learn(
  guess: TokenGuess,
  known: LearnedModel,
  { head, late }: { readonly head: Feedback; readonly late: Feedback | null },
): LearnedModel {
  if (head.throttle !== null) return afterRefusal(guess, known, head);
  if (late !== null && late.throttle !== null) return afterRefusal(guess, known, late);
  const usage = late?.usage ?? head.usage;
  return usage === undefined ? known : afterResponse(guess, known, usage, head);
}

function afterResponse(
  guess: TokenGuess,
  known: LearnedModel,
  { prompt, kept, input, total }: TokenUsage,
  { meters }: Feedback,
): LearnedModel {
  const factor = prompt === null ? null : bounded(prompt / guess.prompt);
  const counted = input === null || guess.marked > 0 ? null : Math.min(maxFactor, input / guess.prompt);
  const missed = factor === null || guess.marked === 0 ? null : share(1 - kept / (guess.marked * factor));
  const isApart = meters.some(({ meter }) => meter === 'input_tokens' || meter === 'output_tokens');
  return {
    factor: mean(known.factor, factor),
    counted: mean(known.counted, counted),
    missed: mean(known.missed, missed),
    output:
      input === null || total === null
        ? known.output
        : learnOutput(known.output, guess.output, Math.max(0, total - input)),
    isStated: meters.some(({ meter, level }) => meter === 'tokens' && level !== null),
    apart: isApart || known.apart,
    beyond: known.beyond,
    responsesSince: known.responsesSince + 1,
  };
}

/** After the first response a call is still expected to use what it allows, or twice as much: more tell how far they differ. */
function learnOutput(
  known: LearnedModel['output'],
  allowed: number | null,
  made: number,
): LearnedModel['output'] {
  if (known === null) {
    return { mean: made, deviation: Math.max(0, (allowed ?? 2 * made) - made) / deviations };
  }
  const deviation = Math.abs(made - known.mean) - known.deviation;
  return {
    mean: known.mean + (made - known.mean) * newShare,
    // Rises at once and falls slowly: after a few calls that are alike the next one may be long again.
    deviation: known.deviation + deviation * (deviation > 0 ? 2 * newShare : newShare / 2),
  };
}

/**
 * What a refusal teaches that says how many tokens the call asks for, where the provider charges by rule: how far its rule is above ours.
 * The difference and not the ratio, which for a short prompt would be no measure of a long one. What is charged by use is learned of
 * responses.
 */
function afterRefusal(
  guess: TokenGuess,
  known: LearnedModel,
  { throttle, requestedTokens: asked }: Feedback,
): LearnedModel {
  const isOfTokens = throttle?.kind === 'rate' && /^tokens(?:_day)?$/.test(throttle.meter ?? '');
  if (!isOfTokens || asked === undefined || !isChargedByRule(guess, known)) return known;
  return { ...known, beyond: Math.max(0, asked - byRule(guess)), responsesSince: 0 };
}

/** Bounded, because no response corrects it: a figure without sense must not hold a workspace's calls up for long. */
function beyondRule(guess: TokenGuess, { beyond, responsesSince }: LearnedModel): number {
  if (responsesSince >= believedFor) return 0;
  return Math.min(beyond, Math.max((maxFactor - 1) * byRule(guess), alwaysBelieved));
}

const bounded = (factor: number): number => Math.min(maxFactor, Math.max(minFactor, factor));

const share = (part: number): number => Math.min(1, Math.max(0, part));

function mean(before: number | null, latest: number | null): number | null {
  if (latest === null || before === null) return latest ?? before;
  return before + (latest - before) * newShare;
}
