/**
 * What the latest responses show of what is to come, as far as this replica knows: whether the upstream serves most calls of a bucket, because
 * a refusal that meets one call only says nothing of the others, and what a call will be charged in tokens.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import type { Costs, Feedback } from '../call.ts';
import type { TokenGuess } from '../dispatch/model-call.policy.ts';

const maxBuckets = 10_000;
/** The weight of one attempt in the share of those that were refused: a window of a limit serves dozens of calls. */
const refusedWeight = 1 / 32;
/** Where a larger share of late is refused, the refusals lie in the bucket, and not in single calls. */
const maxSingleShare = 1 / 8;

export class RecentResponses {
  readonly #buckets = new LRUCache<string, { servedAt: number; refusedShare: number }>(atMost(maxBuckets));

  /** Notes that a call that was sent at `sentAt` was served. Monotonic milliseconds. */
  noteServed(bucket: string, sentAt: number): void {
    const known = this.#buckets.get(bucket);
    if (known === undefined) return void this.#buckets.set(bucket, { servedAt: sentAt, refusedShare: 0 });
    known.servedAt = Math.max(known.servedAt, sentAt);
    known.refusedShare *= 1 - refusedWeight;
  }

  /** Notes that a call was refused, and no time was named. */
  noteRefused(bucket: string): void {
    const known = this.#buckets.get(bucket);
    if (known !== undefined) known.refusedShare += refusedWeight * (1 - known.refusedShare);
  }

  /** True when a call has been served that was sent after this time, and few of the latest were refused. Monotonic milliseconds. */
  servesOthersSince(bucket: string, at: number): boolean {
    const known = this.#buckets.get(bucket);
    return known !== undefined && known.servedAt > at && known.refusedShare <= maxSingleShare;
  }
}

// What a call will be charged in tokens, from what its provider counted of calls before it, per workspace and model. Nothing of a prompt is
// kept, only ratios, in memory. Each replica learns from the responses to its own calls.
//
// A provider's cache keeps the beginning of a prompt, and reading it is not counted where the provider says so. What a call marks for the
// cache is taken to be there, as far as it was for calls before; where it is not, the provider says so with the response, or with one
// refusal.

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
  /** Responses for which that is still believed. */
  readonly believedFor: number;
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
  believedFor: 0,
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
  readonly #models = new LRUCache<string, LearnedModel>(atMost(maxModels));

  /** Meters of tokens as the call is expected to be charged. */
  expected({ guess, lane }: NamedGuess): Costs {
    return expectedTokens(guess, this.#models.get(lane) ?? nothingLearned);
  }

  /**
   * The response is over, or refused the call. `late`: what the rest of its body reported, which may be a refusal behind content; then the
   * usage is that of a part of the response, and teaches nothing.
   */
  learn({ guess, lane }: NamedGuess, head: Feedback, late: Feedback | null): void {
    if (guess.prompt <= 0) return;
    const known = this.#models.get(lane) ?? nothingLearned;
    const refused = [head, late].find((feedback) => (feedback?.throttle ?? null) !== null) ?? null;
    const learned =
      refused === null ? afterResponse(guess, known, head, late) : afterRefusal(guess, known, refused);
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

/** The provider reserves what a call may use, by rule, instead of what it uses. */
const isChargedByRule = ({ apart }: TokenGuess, { isStated }: LearnedModel): boolean => !apart && isStated;

const byRule = ({ prompt, output }: TokenGuess): number => prompt + (output ?? 0);

const between = (least: number, value: number, most: number): number =>
  Math.min(most, Math.max(least, value));

const mean = (before: number | null, latest: number | null): number | null =>
  latest === null || before === null ? (latest ?? before) : before + (latest - before) * newShare;

/** Whole units; a call is never expected to cost nothing. What is marked is taken to lie in the cache until responses say otherwise. */
function expectedTokens(guess: TokenGuess, model: LearnedModel): Costs {
  const { prompt, marked, apart } = guess;
  const { factor, counted, missed, output: usual } = model;
  const counts =
    marked > 0 ? (prompt - marked * (1 - (missed ?? 0))) * (factor ?? 1) : prompt * (counted ?? factor ?? 1);
  const input = Math.max(1, Math.ceil(counts));
  // Without a word of it, output that is counted when it is made is one token: a full meter holds the call, others let it go.
  const made = usual === null ? (apart ? 1 : (guess.output ?? 0)) : usual.mean + deviations * usual.deviation;
  const output = Math.ceil(Math.min(guess.output ?? Infinity, made));
  // Bounded, because no response corrects it: a figure without sense must not hold a workspace's calls up for long.
  const beyond = Math.min(model.beyond, Math.max((maxFactor - 1) * byRule(guess), alwaysBelieved));
  const tokens = isChargedByRule(guess, model) ? Math.ceil(byRule(guess) + beyond) : input + output;
  if (!apart && !model.apart) return { tokens };
  return { tokens, input_tokens: input, output_tokens: Math.max(1, output) };
}

function afterResponse(guess: TokenGuess, known: LearnedModel, head: Feedback, late: Feedback | null) {
  const usage = late?.usage ?? head.usage;
  if (usage === undefined) return known;
  const { prompt, kept, input, total } = usage;
  const { marked } = guess;
  const factor = prompt === null ? null : between(minFactor, prompt / guess.prompt, maxFactor);
  const counted = input === null || marked > 0 ? null : Math.min(maxFactor, input / guess.prompt);
  const missed = factor === null || marked === 0 ? null : between(0, 1 - kept / (marked * factor), 1);
  const made = input === null || total === null ? null : Math.max(0, total - input);
  const states = (...names: readonly string[]) => head.meters.filter(({ meter }) => names.includes(meter));
  return {
    factor: mean(known.factor, factor),
    counted: mean(known.counted, counted),
    missed: mean(known.missed, missed),
    output: made === null ? known.output : learnOutput(known.output, guess.output, made),
    isStated: states('tokens').some(({ level }) => level !== null),
    apart: known.apart || states('input_tokens', 'output_tokens').length > 0,
    beyond: known.believedFor > 1 ? known.beyond : 0,
    believedFor: known.believedFor - 1,
  };
}

/** After the first response a call is still expected to use what it allows, or twice as much: more tell how far they differ. */
function learnOutput(known: LearnedModel['output'], allowed: number | null, made: number) {
  if (known === null)
    return { mean: made, deviation: Math.max(0, (allowed ?? 2 * made) - made) / deviations };
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
function afterRefusal(guess: TokenGuess, known: LearnedModel, refused: Feedback): LearnedModel {
  const { throttle, requestedTokens: asked } = refused;
  const isOfTokens = throttle?.kind === 'rate' && /^tokens(?:_day)?$/.test(throttle.meter ?? '');
  if (!isOfTokens || asked === undefined || !isChargedByRule(guess, known)) return known;
  return { ...known, beyond: Math.max(0, asked - byRule(guess)), believedFor };
}
