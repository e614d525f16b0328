/**
 * What a call will be charged in tokens, from what its provider counted of calls before it.
 *
 * Owns: the arithmetic of estimates. Does not own: characters (`model-call.policy.ts`), remembering (`token-estimates.ts`), and
 * correcting a call that turns out otherwise (`feedback/usage.policy.ts`). Pure; `now` is an argument, monotonic milliseconds.
 *
 * A provider's cache keeps the beginning of a prompt. Of a prompt that begins like one before, what that one left in the cache is
 * not counted again where the provider does not count cache reads. Without such a prompt the part that the call itself marks for
 * the cache is taken to be there: when it is not, the provider says so with the response, or with one refusal.
 */
import type { Costs, TokenUsage } from '../call.ts';

/** What is known of a call's tokens from its bytes. */
export interface TokenGuess {
  /** The whole prompt, by its characters. */
  readonly prompt: number;
  /** How much of it stands before the last mark for the cache (`cache_control`); 0 = it has none. */
  readonly marked: number;
  /** Output that the call allows; `null` = it does not say. */
  readonly output: number | null;
  /** The provider counts input and output apart, and output when it is made. */
  readonly apart: boolean;
}

/** Tokens of output, and how far a call's are from those of the others, both as means of the latest calls. */
export interface LearnedOutput {
  readonly mean: number;
  readonly deviation: number;
}

/** What was learned of a workspace's calls to one model. */
export interface LearnedModel {
  /** Tokens of the prompt for each one guessed. */
  readonly factor: number;
  /** Counted input for each token guessed, of prompts that mark nothing for the cache. */
  readonly counted: number;
  /** Output that is counted of a call; `null` = not known. */
  readonly output: LearnedOutput | null;
  /** Responses state the level of all tokens: then it is charged by rule, not by use. */
  readonly isStated: boolean;
  /** Responses state levels of input and output tokens. */
  readonly apart: boolean;
  /** Tokens beyond the rule that refusals stated, the mean of the latest; 0 = the rule holds. */
  readonly beyond: number;
}

/** What was learned of prompts that begin alike. */
export interface LearnedPrompt {
  readonly factor: number;
  /** Tokens that lie in the provider's cache and are not counted when they are read. */
  readonly kept: number;
  /** Tokens beyond the rule that the latest refusal stated; 0 = the rule holds, `null` = none stated any. */
  readonly beyond: number | null;
  readonly at: number;
}

/** Providers keep a prompt for five minutes from its last use. Milliseconds. */
export const cacheLifeMs = 300_000;
/** How many deviations above the mean the expected output lies at most. */
const deviations = 3;
/** A new figure counts so much against all before it. */
const newShare = 0.25;
/** No prompt has that many tokens for each four characters, nor so few: figures beyond are no measure of the next prompt. */
const maxFactor = 8;
const minFactor = 1 / 8;
/** However short a prompt is, a refusal is believed that states this many tokens beyond the rule: images, tools. */
const alwaysBelieved = 8_192;
/** What refusals taught of other beginnings is forgotten by this part with each response, so that one odd refusal passes. */
const forgottenShare = 1 / 64;

/** Meters of tokens as the call is expected to be charged. */
export function expectedTokens(
  guess: TokenGuess,
  model: LearnedModel | null,
  prompt: LearnedPrompt | null,
  now: number,
): Costs {
  const input = expectedInput(guess, model, prompt, now);
  // Without a word of it, output that is counted when it is made is one token: a full meter holds the call, others let it go.
  const unknown = guess.apart ? 1 : (guess.output ?? 0);
  const learned = model?.output ?? null;
  const made = learned === null ? unknown : learned.mean + deviations * learned.deviation;
  const output = Math.ceil(Math.min(guess.output ?? Infinity, made));
  const beyond = prompt?.beyond ?? model?.beyond ?? 0;
  const tokens = isChargedByRule(guess, model) ? Math.ceil(byRule(guess) + beyond) : input + output;
  if (!guess.apart && model?.apart !== true) return { tokens };
  return { tokens, input_tokens: input, output_tokens: Math.max(1, output) };
}

/** The provider reserves what a call may use, by rule, instead of what it uses. */
export const isChargedByRule = ({ apart }: TokenGuess, model: LearnedModel | null): boolean =>
  !apart && (model === null || model.isStated);

const byRule = ({ prompt, output }: TokenGuess): number => prompt + (output ?? 0);

function expectedInput(
  guess: TokenGuess,
  model: LearnedModel | null,
  prompt: LearnedPrompt | null,
  now: number,
): number {
  const { marked } = guess;
  if (prompt !== null) {
    const kept = now - prompt.at < cacheLifeMs ? prompt.kept : 0;
    return atLeastOne(guess.prompt * prompt.factor - kept);
  }
  if (marked > 0) return atLeastOne((guess.prompt - marked) * (model?.factor ?? 1));
  return atLeastOne(guess.prompt * (model?.counted ?? 1));
}

/** Whole units; a call is never expected to cost nothing. */
const atLeastOne = (units: number): number => Math.max(1, Math.ceil(units));

/** What the usage of a call teaches of its model. */
export function learnModel(
  known: LearnedModel | null,
  guess: TokenGuess,
  usage: TokenUsage,
  stated: { readonly tokens: boolean; readonly apart: boolean },
): LearnedModel {
  const { prompt, input, total } = usage;
  const factor = prompt === null ? null : bounded(prompt / guess.prompt);
  const counted = input === null || guess.marked > 0 ? null : Math.min(maxFactor, input / guess.prompt);
  return {
    factor: mean(known?.factor, factor) ?? 1,
    counted: mean(known?.counted, counted) ?? mean(known?.factor, factor) ?? 1,
    output:
      input === null || total === null
        ? (known?.output ?? null)
        : learnOutput(known?.output ?? null, guess.output, Math.max(0, total - input)),
    isStated: stated.tokens,
    apart: stated.apart || known?.apart === true,
    beyond: (known?.beyond ?? 0) * (1 - forgottenShare),
  };
}

/** After the first response a call is still expected to use what it allows, or twice as much: more tell how far they differ. */
function learnOutput(known: LearnedOutput | null, allowed: number | null, made: number): LearnedOutput {
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

/** What the usage of a call teaches of prompts that begin like its own; `null` = nothing. */
export function learnPrompt(
  known: LearnedPrompt | null,
  guess: TokenGuess,
  { prompt, kept }: TokenUsage,
  now: number,
): LearnedPrompt | null {
  if (prompt === null) return null;
  return { factor: bounded(prompt / guess.prompt), kept, beyond: known?.beyond ?? null, at: now };
}

/** What a refusal teaches that says how many tokens the call asks for: so much of its prompt is not kept, or it is longer. */
export function refusedPrompt(
  guess: TokenGuess,
  known: LearnedPrompt | null,
  asked: number,
  now: number,
): LearnedPrompt {
  const factor = bounded(Math.max(known?.factor ?? 1, asked / guess.prompt));
  const kept = Math.max(0, guess.prompt * factor - asked);
  return { factor, kept, beyond: known?.beyond ?? null, at: now };
}

/**
 * What such a refusal teaches where the provider charges by rule: how far its rule is above ours for calls that begin like this
 * one. The difference and not the ratio, which for a short prompt would be no measure of a long one.
 */
export function refusedByRule(
  guess: TokenGuess,
  known: LearnedPrompt | null,
  asked: number,
  now: number,
): LearnedPrompt {
  const beyond = beyondRule(guess, asked);
  return { factor: known?.factor ?? 1, kept: known?.kept ?? 0, beyond, at: known?.at ?? now };
}

/** Bounded, because no response corrects it: a figure without sense must not hold a workspace's calls up for long. */
function beyondRule(guess: TokenGuess, asked: number): number {
  const most = Math.max((maxFactor - 1) * byRule(guess), alwaysBelieved);
  return Math.min(most, Math.max(0, asked - byRule(guess)));
}

/**
 * What refusals teach of calls that begin like no earlier one. Their prompts differ, so that one refusal moves the model only a
 * part of the way.
 */
export function refusedModel(known: LearnedModel, guess: TokenGuess, asked: number): LearnedModel {
  const beyond = beyondRule(guess, asked);
  return { ...known, beyond: known.beyond + (beyond - known.beyond) * newShare };
}

const bounded = (factor: number): number => Math.min(maxFactor, Math.max(minFactor, factor));

function mean(before: number | null | undefined, counted: number | null): number | null {
  if (counted === null) return before ?? null;
  return before === null || before === undefined ? counted : before + (counted - before) * newShare;
}
