/**
 * What a response's `usage` says that its provider counts of a call, in the shapes of OpenAI (chat, Responses, embeddings),
 * Azure, Groq, Mistral, Anthropic, Gemini, Bedrock, Cohere and Ollama.
 *
 * Owns: finding `usage` in a text that may be cut, and which of its tokens a provider counts. Does not own: reading
 * bodies (`read-response.ts`) and charging (`spent.policy.ts`). Invariant: a member that is missing or no
 * count is not stated; nothing is ever read as 0 that was not 0.
 */
import type { TokenUsage } from '../../call.ts';
import { wordsOf } from '../../words.policy.ts';
import { countAt, isRecord, lastObject, parseJson, recordAt, type JsonRecord } from './json.policy.ts';

/** Members of `usage` as found so far. A stream may report them in parts, each of which replaces what it names. */
export type UsageMembers = JsonRecord;

/** Nothing was reported yet. */
export const noUsage: UsageMembers = {};

/** A larger number is not taken for a count of one call's tokens, so that sums stay exact. */
const maxTokens = 1e12;
/** Groq's responses carry this member; it alone does not count what OpenAI's shape calls cached. */
const groqMark = '"x_groq"';
const cachedIsFree = 'x_groq';

/** `known` with what this text (a response, its end, or one event of a stream) adds. */
export function withUsageIn(known: UsageMembers, text: string): UsageMembers {
  if (!/"(?:usage|billed_units"|eval_count")/.test(text)) return known;
  const found = lastUsage(text) ?? wholeUsage(text) ?? usageOfOllama(text);
  if (found === null) return known;
  const counted = Object.entries(found).filter(([, value]) => value !== null);
  const mark = text.includes(groqMark) ? { [cachedIsFree]: true } : {};
  return { ...known, ...Object.fromEntries(counted), ...mark };
}

const lastUsage = (text: string): JsonRecord | null =>
  lastObject(text, 'usage', isUsage) ??
  lastObject(text, 'usageMetadata', isUsage) ??
  lastObject(text, 'billed_units', isUsage);

/** Ollama counts among the members of its last line. */
function usageOfOllama(text: string): JsonRecord | null {
  const count = (name: string): number | null => {
    const found = new RegExp(`"${name}"\\s*:\\s*(\\d{1,12})\\b`).exec(text)?.[1];
    return found === undefined ? null : Number(found);
  };
  const output = count('eval_count');
  return output === null ? null : { prompt_tokens: count('prompt_eval_count'), completion_tokens: output };
}

/** Members may come in any order: of a text that is whole, `usage` may stand before the rest. */
function wholeUsage(text: string): JsonRecord | null {
  const body = parseJson(text);
  const found = recordAt(body, 'usage') ?? recordAt(body, 'usageMetadata');
  return isRecord(found) && isUsage(found) ? found : null;
}

const countNames = wordsOf(
  'total_tokens prompt_tokens input_tokens output_tokens promptTokenCount totalTokenCount inputTokens outputTokens',
);

const isUsage = (found: JsonRecord): boolean => countNames.some((name) => countAt(found, name) !== null);

/** What the provider counts; `null` = the members state nothing. */
export function tokenUsage(found: UsageMembers): TokenUsage | null {
  const usage = ofGemini(found) ?? ofAnthropic(found) ?? ofBedrock(found) ?? ofOpenAi(found);
  return usage === null || !isCount(usage) ? null : usage;
}

/** Input alone is counted against tokens per minute; the prompt includes what was cached, thoughts are output. */
function ofGemini(found: JsonRecord): TokenUsage | null {
  const prompt = countAt(found, 'promptTokenCount');
  const all = countAt(found, 'totalTokenCount');
  if (prompt === null && all === null) return null;
  const input = prompt === null ? null : prompt + (countAt(found, 'toolUsePromptTokenCount') ?? 0);
  const output = sum(countAt(found, 'candidatesTokenCount'), countAt(found, 'thoughtsTokenCount'));
  return { prompt: input, kept: 0, input, output, total: input ?? all };
}

/** Input is what was neither read from the cache, which is free, nor written into it, which counts. */
function ofAnthropic(found: JsonRecord): TokenUsage | null {
  const read = countAt(found, 'cache_read_input_tokens');
  const written = countAt(found, 'cache_creation_input_tokens');
  if (read === null && written === null) return null;
  const plain = countAt(found, 'input_tokens');
  const output = countAt(found, 'output_tokens');
  const input = plain === null ? null : plain + (written ?? 0);
  const prompt = input === null ? null : input + (read ?? 0);
  return { prompt, kept: (read ?? 0) + (written ?? 0), input, output, total: both(input, output) };
}

function ofBedrock(found: JsonRecord): TokenUsage | null {
  const plain = countAt(found, 'inputTokens');
  const output = countAt(found, 'outputTokens');
  if (plain === null && output === null) return null;
  const written = countAt(found, 'cacheWriteInputTokens') ?? 0;
  const read = countAt(found, 'cacheReadInputTokens') ?? 0;
  const input = plain === null ? null : plain + written;
  const prompt = input === null ? null : input + read;
  return { prompt, kept: read + written, input, output, total: both(input, output) };
}

/** Cached tokens are part of the prompt and count in full, but for Groq. */
function ofOpenAi(found: JsonRecord): TokenUsage | null {
  const prompt = countAt(found, 'prompt_tokens') ?? countAt(found, 'input_tokens');
  const output = countAt(found, 'completion_tokens') ?? countAt(found, 'output_tokens');
  const all = countAt(found, 'total_tokens') ?? both(prompt, output);
  if (prompt === null && output === null && all === null) return null;
  const read = found[cachedIsFree] === true ? cachedTokens(found) : 0;
  const free = Math.min(read, prompt ?? 0, all ?? 0);
  return {
    prompt,
    kept: free,
    input: prompt === null ? null : prompt - free,
    output,
    total: all === null ? null : all - free,
  };
}

const cachedTokens = (found: JsonRecord): number =>
  countAt(recordAt(found, 'prompt_tokens_details'), 'cached_tokens') ??
  countAt(recordAt(found, 'input_tokens_details'), 'cached_tokens') ??
  0;

const sum = (a: number | null, b: number | null): number | null =>
  a === null && b === null ? null : (a ?? 0) + (b ?? 0);

/** The sum of two counts; `null` unless both are known. */
const both = (a: number | null, b: number | null): number | null => (a === null || b === null ? null : a + b);

const isCount = (usage: TokenUsage): boolean =>
  Object.values(usage).every((tokens) => tokens === null || tokens <= maxTokens);
