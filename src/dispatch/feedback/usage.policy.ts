/**
 * What a response's `usage` says that its provider counts of a call, in the shapes of OpenAI (chat, Responses, embeddings),
 * Azure, Groq, Mistral, Anthropic, Gemini, Vertex AI, Bedrock, Cohere and Ollama.
 *
 * And what a call has spent in all. Invariants: a member that is missing or no count is not stated; nothing is ever read as 0 that was
 * not 0; a meter whose level the response's fields state is settled by that level alone.
 */
import type { Costs, Feedback, MeterName, TokenUsage } from '../../call.ts';
import { wordsOf } from '../../words.policy.ts';
import { countAt, isRecord, lastObject, parseJson, recordAt, type JsonRecord } from './json.policy.ts';
import { count } from './reading.policy.ts';

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
  if (!/"(?:usage|billed_units"|eval_count"|token_count"|tokenMetadata"|amazon-bedrock-)/.test(text))
    return known;
  const found = lastUsage(text) ?? wholeUsage(text) ?? usageOfOllama(text) ?? usageOfVertex(text);
  if (found === null) return known;
  const counted = Object.entries(found).filter(([, value]) => value !== null);
  const mark = text.includes(groqMark) ? { [cachedIsFree]: true } : {};
  return { ...known, ...Object.fromEntries(counted), ...mark };
}

const lastUsage = (text: string): JsonRecord | null =>
  lastObject(text, 'usage', isUsage) ??
  lastObject(text, 'usageMetadata', isUsage) ??
  lastObject(text, 'billed_units', isUsage) ??
  lastObject(text, 'amazon-bedrock-invocationMetrics', isUsage);

/** What a part of Bedrock's stream of a model's own form says: a document in base64. */
export const bedrockPart = (text: string): string =>
  Buffer.from(/.*"bytes"\s*:\s*"([\w+/=]+)"/s.exec(text)?.[1] ?? '', 'base64').toString();

/** Bedrock counts the call of a model in its own form in fields of the response. */
export function usageInFields(fields: ReadonlyMap<string, string>): TokenUsage | null {
  const [inputTokens, outputTokens, cacheReadInputTokens, cacheWriteInputTokens] = [
    'input',
    'output',
    'cache-read-input',
    'cache-write-input',
  ].map((what) => count(fields.get(`x-amzn-bedrock-${what}-token-count`)) ?? undefined);
  // A stream states its input alone, and the rest behind its head.
  if (outputTokens === undefined) return null;
  return tokenUsage({ inputTokens, outputTokens, cacheReadInputTokens, cacheWriteInputTokens });
}

/** Ollama counts among the members of its last line. */
function usageOfOllama(text: string): JsonRecord | null {
  const count = (name: string): number | null => {
    const found = new RegExp(`"${name}"\\s*:\\s*(\\d{1,12})\\b`).exec(text)?.[1];
    return found === undefined ? null : Number(found);
  };
  const output = count('eval_count');
  return output === null ? null : { prompt_tokens: count('prompt_eval_count'), completion_tokens: output };
}

/** Vertex AI's `predict` counts each text that it embeds, or a prompt and what was made of it. */
function usageOfVertex(text: string): JsonRecord | null {
  const body = parseJson(text);
  const counted = recordAt(recordAt(body, 'metadata'), 'tokenMetadata');
  const prompt = countAt(recordAt(counted, 'inputTokenCount'), 'totalTokens');
  if (prompt !== null) {
    const output = countAt(recordAt(counted, 'outputTokenCount'), 'totalTokens');
    return { prompt_tokens: prompt, completion_tokens: output };
  }
  const predictions = isRecord(body) ? body['predictions'] : undefined;
  if (!Array.isArray(predictions)) return null;
  const counts = predictions.map((one) =>
    countAt(recordAt(recordAt(one, 'embeddings'), 'statistics'), 'token_count'),
  );
  const total = counts.reduce<number>((sum, count) => sum + (count ?? 0), 0);
  return counts.length === 0 || counts.includes(null) ? null : { prompt_tokens: total, total_tokens: total };
}

/** Members may come in any order: of a text that is whole, `usage` may stand before the rest. */
function wholeUsage(text: string): JsonRecord | null {
  const body = parseJson(text);
  const found = recordAt(body, 'usage') ?? recordAt(body, 'usageMetadata');
  return isRecord(found) && isUsage(found) ? found : null;
}

const countNames = wordsOf(
  'total_tokens prompt_tokens input_tokens output_tokens promptTokenCount totalTokenCount inputTokens outputTokens',
  'inputTokenCount outputTokenCount',
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
  const counted = (what: string): number | null =>
    countAt(found, `${what}Tokens`) ?? countAt(found, `${what}TokenCount`);
  const plain = counted('input');
  const output = counted('output');
  if (plain === null && output === null) return null;
  const written = counted('cacheWriteInput') ?? 0;
  const read = counted('cacheReadInput') ?? 0;
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

// Spending

/** Costs of a call that was refused: it counts as a request, but it used no tokens and made no images. */
const nothingMade: Costs = { tokens: 0, tokens_day: 0, input_tokens: 0, output_tokens: 0, images: 0 };

/**
 * What a call has spent of the bucket's meters, known at the end of its response; what it had reserved was an estimate.
 *
 * `late`: what the rest of the response's body reported; `null` = nothing. Returns what each meter is charged in all; a meter that
 * is not named stays as reserved, and `null` = all do. A call that the upstream refused (4xx) made no tokens; often such a
 * response states no level, and what the call reserved would stay taken.
 */
export function spentOf(status: number, head: Feedback, late: Feedback | null): Costs | null {
  const cost = (late ?? head).actualCost;
  if (cost !== undefined) return { cost };
  if (status >= 400) return status < 500 ? nothingMade : null;
  const usage = late?.usage ?? head.usage;
  return usage === undefined ? null : spentTokens(head, usage);
}

function spentTokens(head: Feedback, usage: TokenUsage): Costs | null {
  const spent: Partial<Record<MeterName, number>> = {};
  const settle = (meter: MeterName, units: number | null): void => {
    const isStated = head.meters.some((report) => report.meter === meter && report.level !== null);
    if (units !== null && !isStated) spent[meter] = units;
  };
  settle('tokens', usage.total);
  settle('tokens_day', usage.total);
  settle('input_tokens', usage.input);
  settle('output_tokens', usage.output);
  return Object.keys(spent).length === 0 ? null : spent;
}
