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
import type { Costs, Feedback, TokenUsage } from '../call.ts';

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
interface LearnedOutput {
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

/** What is known of calls like this one; `null` = nothing. */
export interface Learned {
  readonly model: LearnedModel | null;
  /** Of prompts that begin like its own. */
  readonly prompt: LearnedPrompt | null;
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
export function expectedTokens(guess: TokenGuess, learned: Learned, now: number): Costs {
  const { model, prompt } = learned;
  const input = expectedInput(guess, learned, now);
  // Without a word of it, output that is counted when it is made is one token: a full meter holds the call, others let it go.
  const unknown = guess.apart ? 1 : (guess.output ?? 0);
  const usual = model?.output ?? null;
  const made = usual === null ? unknown : usual.mean + deviations * usual.deviation;
  const output = Math.ceil(Math.min(guess.output ?? Infinity, made));
  const beyond = prompt?.beyond ?? model?.beyond ?? 0;
  const tokens = isChargedByRule(guess, model) ? Math.ceil(byRule(guess) + beyond) : input + output;
  if (!guess.apart && model?.apart !== true) return { tokens };
  return { tokens, input_tokens: input, output_tokens: Math.max(1, output) };
}

/** The provider reserves what a call may use, by rule, instead of what it uses. */
const isChargedByRule = ({ apart }: TokenGuess, model: LearnedModel | null): boolean =>
  !apart && (model === null || model.isStated);

const byRule = ({ prompt, output }: TokenGuess): number => prompt + (output ?? 0);

function expectedInput(guess: TokenGuess, { model, prompt }: Learned, now: number): number {
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

/**
 * What is known after a call's response. `late`: what the rest of the body reported, which may be a refusal behind content; then the
 * usage is that of a part of the response, and teaches nothing.
 */
export function learn(
  guess: TokenGuess,
  known: Learned,
  { head, late }: { readonly head: Feedback; readonly late: Feedback | null },
  now: number,
): Learned {
  if (head.throttle !== null) return afterRefusal(guess, known, head, now);
  if (late !== null && late.throttle !== null) return afterRefusal(guess, known, late, now);
  const usage = late?.usage ?? head.usage;
  if (usage === undefined) return known;
  const prompt =
    usage.prompt === null
      ? known.prompt
      : {
          factor: bounded(usage.prompt / guess.prompt),
          kept: usage.kept,
          beyond: known.prompt?.beyond ?? null,
          at: now,
        };
  return { model: modelAfter(known.model, guess, usage, head), prompt };
}

function modelAfter(
  known: LearnedModel | null,
  guess: TokenGuess,
  { prompt, input, total }: TokenUsage,
  { meters }: Feedback,
): LearnedModel {
  const factor = prompt === null ? null : bounded(prompt / guess.prompt);
  const counted = input === null || guess.marked > 0 ? null : Math.min(maxFactor, input / guess.prompt);
  const isApart = meters.some(({ meter }) => meter === 'input_tokens' || meter === 'output_tokens');
  return {
    factor: mean(known?.factor, factor) ?? 1,
    counted: mean(known?.counted, counted) ?? mean(known?.factor, factor) ?? 1,
    output:
      input === null || total === null
        ? (known?.output ?? null)
        : learnOutput(known?.output ?? null, guess.output, Math.max(0, total - input)),
    isStated: meters.some(({ meter, level }) => meter === 'tokens' && level !== null),
    apart: isApart || known?.apart === true,
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

/**
 * What a refusal teaches that says how many tokens the call asks for. Of counted input: so much of its prompt is not kept, or it is
 * longer. Where the provider charges by rule: how far its rule is above ours, for calls that begin like this one, and, a part of the way,
 * for those that begin like no earlier one, because their prompts differ. The difference and not the ratio, which for a short prompt
 * would be no measure of a long one. What is charged by use is learned of responses.
 */
function afterRefusal(
  guess: TokenGuess,
  known: Learned,
  { throttle, requestedTokens: asked }: Feedback,
  now: number,
): Learned {
  if (throttle?.kind !== 'rate' || asked === undefined) return known;
  const { model, prompt } = known;
  const { meter } = throttle;
  if (meter === 'input_tokens') {
    const factor = bounded(Math.max(prompt?.factor ?? 1, asked / guess.prompt));
    const kept = Math.max(0, guess.prompt * factor - asked);
    return { model, prompt: { factor, kept, beyond: prompt?.beyond ?? null, at: now } };
  }
  if ((meter !== 'tokens' && meter !== 'tokens_day') || !isChargedByRule(guess, model)) return known;
  const beyond = beyondRule(guess, asked);
  return {
    model: model === null ? null : { ...model, beyond: model.beyond + (beyond - model.beyond) * newShare },
    prompt: { factor: prompt?.factor ?? 1, kept: prompt?.kept ?? 0, beyond, at: prompt?.at ?? now },
  };
}

/** Bounded, because no response corrects it: a figure without sense must not hold a workspace's calls up for long. */
function beyondRule(guess: TokenGuess, asked: number): number {
  const most = Math.max((maxFactor - 1) * byRule(guess), alwaysBelieved);
  return Math.min(most, Math.max(0, asked - byRule(guess)));
}

const bounded = (factor: number): number => Math.min(maxFactor, Math.max(minFactor, factor));

function mean(before: number | null | undefined, counted: number | null): number | null {
  if (counted === null) return before ?? null;
  return before === null || before === undefined ? counted : before + (counted - before) * newShare;
}
