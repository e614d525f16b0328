/**
 * What a response's `usage` says that its provider counts of a call, in the shapes of OpenAI (chat, Responses, embeddings),
 * Azure, Groq, Mistral, Anthropic, Gemini, Vertex AI, Bedrock, Cohere and Ollama.
 *
 * And what a call has spent in all. Invariants: a member that is missing or no count is not stated; nothing is ever read as 0 that was
 * not 0; a meter whose level the response's fields state is settled by that level alone.
 */
import type { Costs, Feedback, TokenUsage } from '../../call.ts';
import { wordsOf } from '../../words.policy.ts';
import { countAt, objectAt, parseJson, recordAt, valueAt, type JsonRecord } from './json.policy.ts';
import { count, type Fields } from './limits.policy.ts';

/** Members of `usage` as found so far. A stream may report them in parts, each of which replaces what it names. */
export type UsageMembers = JsonRecord;

/** Nothing was reported yet. */
export const noUsage: UsageMembers = {};

/** A larger number is not taken for a count of one call's tokens, so that sums stay exact. */
const maxTokens = 1e12;
/** Groq's responses carry this member; it alone does not count what OpenAI's shape calls cached. */
const groqMark = 'x_groq';

/** Members whose objects count tokens, and a part of Bedrock's stream of a model's own form: a document in base64. */
const usageMember =
  /"(?:usage|usageMetadata|billed_units|amazon-bedrock-invocationMetrics)"\s*:\s*(?=\{)|"bytes"\s*:\s*"(?<part>[\w+/=]+)"/g;
const ollamaCount = /"((?:prompt_)?eval_count)"\s*:\s*(\d{1,12})\b/g;
/** Of very many in one text the last are read. */
const maxRead = 32;
const countNames = wordsOf(
  'total_tokens prompt_tokens input_tokens output_tokens promptTokenCount totalTokenCount inputTokens outputTokens',
  'inputTokenCount outputTokenCount',
);

/** `known` with what this text (a response, a part of it, or one event of a stream) adds. */
export function withUsageIn(known: UsageMembers, text: string): UsageMembers {
  let members = known;
  let readTo = 0;
  for (const { 0: name, index, groups } of [...text.matchAll(usageMember)].slice(-maxRead)) {
    const part = groups?.['part'];
    if (part !== undefined) members = withUsageIn(members, Buffer.from(part, 'base64').toString());
    if (part !== undefined || index < readTo) continue;
    const found = objectAt(text, index + name.length);
    if (found === null || !countNames.some((count) => countAt(found.value, count) !== null)) continue;
    readTo = found.end;
    const stated = Object.entries(found.value).filter(([, value]) => value !== null);
    members = { ...members, ...Object.fromEntries(stated) };
  }
  // Ollama counts among the members of its last line.
  for (const [, name = '', value] of members === known ? text.matchAll(ollamaCount) : [])
    members = { ...members, [name]: Number(value) };
  const ofVertex = members === known ? usageOfVertex(text) : null;
  if (ofVertex !== null) members = { ...known, ...ofVertex };
  return members !== known && text.includes(`"${groqMark}"`) ? { ...members, [groqMark]: true } : members;
}

/** Vertex AI's `predict` counts each text that it embeds, or a prompt and what was made of it. */
function usageOfVertex(text: string): JsonRecord | null {
  const body = /"token_count"|"tokenMetadata"/.test(text) ? parseJson(text) : undefined;
  const counted = (what: string): unknown =>
    valueAt(body, ['metadata', 'tokenMetadata', what, 'totalTokens']);
  const prompt = counted('inputTokenCount');
  if (prompt !== undefined) return { prompt_tokens: prompt, completion_tokens: counted('outputTokenCount') };
  const predictions = valueAt(body, ['predictions']);
  const counts = (Array.isArray(predictions) ? predictions : []).map((one) =>
    countAt(valueAt(one, ['embeddings', 'statistics']), 'token_count'),
  );
  const total = counts.reduce<number>((sum, count) => sum + (count ?? 0), 0);
  return counts.length === 0 || counts.includes(null) ? null : { prompt_tokens: total, total_tokens: total };
}

/** Bedrock counts the call of a model in its own form in fields of the response; a stream its input alone, and the rest behind its head. */
export function usageInFields(fields: Fields): TokenUsage | null {
  const at = (what: string): number | undefined =>
    count(fields.get(`x-amzn-bedrock-${what}-token-count`)) ?? undefined;
  const outputTokens = at('output');
  if (outputTokens === undefined) return null;
  const [cacheReadInputTokens, cacheWriteInputTokens] = [at('cache-read-input'), at('cache-write-input')];
  return tokenUsage({ inputTokens: at('input'), outputTokens, cacheReadInputTokens, cacheWriteInputTokens });
}

/** What the provider counts; `null` = the members state nothing. */
export function tokenUsage(found: UsageMembers): TokenUsage | null {
  const at = (...names: readonly string[]): number | null =>
    names.map((name) => countAt(found, name)).find((count) => count !== null) ?? null;
  const usage = ofGemini(at) ?? ofCaches(at) ?? ofOpenAi(at, found);
  return usage !== null && Object.values(usage).every((tokens) => (tokens ?? 0) <= maxTokens) ? usage : null;
}

/** The first of these members that is a count. */
type At = (...names: readonly string[]) => number | null;

/** Input alone is counted against tokens per minute; the prompt includes what was cached, thoughts are output. */
function ofGemini(at: At): TokenUsage | null {
  const [prompt, all] = [at('promptTokenCount'), at('totalTokenCount')];
  if (prompt === null && all === null) return null;
  const input = prompt === null ? null : prompt + (at('toolUsePromptTokenCount') ?? 0);
  const [said, thought] = [at('candidatesTokenCount'), at('thoughtsTokenCount')];
  const output = said === null && thought === null ? null : (said ?? 0) + (thought ?? 0);
  return { prompt: input, kept: 0, input, output, total: input ?? all };
}

/**
 * Anthropic and Bedrock: input is what was neither read from the cache, which is free, nor written into it, which counts. Without the
 * members of a cache, Anthropic's are as OpenAI's. Of one of Anthropic's models Bedrock writes both; its own come last.
 */
function ofCaches(at: At): TokenUsage | null {
  const read = at('cache_read_input_tokens', 'cacheReadInputTokens', 'cacheReadInputTokenCount');
  const written = at('cache_creation_input_tokens', 'cacheWriteInputTokens', 'cacheWriteInputTokenCount');
  const ofBedrock = at('inputTokens', 'inputTokenCount', 'outputTokens', 'outputTokenCount');
  if (read === null && written === null && ofBedrock === null) return null;
  const plain = at('inputTokens', 'inputTokenCount', 'input_tokens');
  const output = at('outputTokens', 'outputTokenCount', 'output_tokens');
  const input = plain === null ? null : plain + (written ?? 0);
  const prompt = input === null ? null : input + (read ?? 0);
  return { prompt, kept: (read ?? 0) + (written ?? 0), input, output, total: both(input, output) };
}

/** Cached tokens are part of the prompt and count in full, but for Groq. */
function ofOpenAi(at: At, found: UsageMembers): TokenUsage | null {
  const prompt = at('prompt_tokens', 'input_tokens', 'prompt_eval_count');
  const output = at('completion_tokens', 'output_tokens', 'eval_count');
  const all = at('total_tokens') ?? both(prompt, output);
  if (prompt === null && output === null && all === null) return null;
  const details = recordAt(found, 'prompt_tokens_details') ?? recordAt(found, 'input_tokens_details');
  const read = found[groqMark] === true ? (countAt(details, 'cached_tokens') ?? 0) : 0;
  const kept = Math.min(read, prompt ?? 0, all ?? 0);
  return { prompt, kept, input: prompt && prompt - kept, output, total: all && all - kept };
}

/** The sum of two counts; `null` unless both are known. */
const both = (a: number | null, b: number | null): number | null => (a === null || b === null ? null : a + b);

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
  if (usage === undefined) return null;
  const { total, input, output } = usage;
  const spent = { tokens: total, tokens_day: total, input_tokens: input, output_tokens: output };
  const settled = Object.entries(spent).filter(
    ([name, units]) =>
      units !== null && !head.meters.some(({ meter, level }) => meter === name && level !== null),
  );
  return settled.length === 0 ? null : (Object.fromEntries(settled) as Costs);
}
