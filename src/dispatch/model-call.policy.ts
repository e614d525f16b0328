/**
 * What a POST to a language model is, by its path and body: its model and tier, what it will probably be charged, and
 * whether repeating it creates something a second time.
 *
 * Invariants: one linear walk over the prompt, bounded in depth, whatever the body; no tokenizer, because the common ones take seconds
 * on unbroken runs of text. The charge predicts the limiter's, not the tokenizer's count: ceil(bytes / 4) + 3 for conversations + output
 * budget × n + 765 per image (recorded charges). Bytes of UTF-8, because a sign of Chinese is about a token.
 */
import type { Costs } from '../call.ts';
import { percentDecoded } from '../field-lines.policy.ts';
import { wordsOf } from '../words.policy.ts';
import { countAt, isRecord, parseJson, stringAt, type JsonRecord } from './feedback/json.policy.ts';
import { formFields, maxParsedBody } from './request-body.policy.ts';

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

/** What such a call is, as far as its bytes show it. */
export interface ModelCall {
  /** Model, or deployment where the path names one; `null` = none named. At most 256 characters. */
  readonly model: string | null;
  /** Tier that has a quota of its own; `''` = the ordinary one. */
  readonly tier: string;
  /** Pessimistic reservation per meter. */
  readonly costs: Costs;
  /** What the tokens of the call are guessed from, by a guess that learns; `null` = they are not guessed. */
  readonly guess: TokenGuess | null;
  /** Generates or edits pictures. */
  readonly makesImages: boolean;
  /** It creates nothing that stays: running it twice costs money and not correctness. */
  readonly onlyCosts: boolean;
  /** It generates nothing but counts tokens. */
  readonly countsTokens: boolean;
}

const maxModel = 256;
const oneRequest: Costs = { requests: 1 };

/** Describes a POST by its path and query, content type (`null` = none) and body, decoded. Total and linear. */
export function describeModelCall(pathAndQuery: string, contentType: string | null, body: Buffer): ModelCall {
  const [path = '', query = ''] = pathAndQuery.split('?', 2);
  const operation = operationOf(path);
  const countsTokens = countingPath.test(path);
  const { members, prompt } = readBody(contentType, body);
  // Of a form only what an image costs is known.
  const isForm = formType.test(contentType ?? '') && operation !== 'image';
  const isFree = prompt === null || countsTokens || isForm || onlyKeeps(path);
  return {
    model:
      modelInPath(path) ??
      modelName(modelIn(members) ?? modelIn(members['session']) ?? modelIn(members['servingMode'])) ??
      // Only what has no body to name it in, as sound and offers of sessions, names its model in the query.
      modelName(new URLSearchParams(query).get('model')),
    tier: countsTokens ? 'counting' : tierOf(members),
    ...(isFree ? { costs: oneRequest, guess: null } : chargeOf(operation, prompt, members)),
    makesImages: operation === 'image',
    onlyCosts: !createsWhatStays(path),
    countsTokens,
  };
}

const formType = /^(?:multipart\/|application\/x-www-form-urlencoded\b)/i;
/** SDKs always name JSON; a missing type is given the benefit of the doubt. Browsers and scripts send JSON as text. */
const jsonType = /^(?:application\/(?:[\w.-]+\+)?json\b|$)/i;
const looksLikeJson = (body: Buffer): boolean => /^\uFEFF?\s*\{/.test(body.toString('utf8', 0, 256));

/** The members at the top of a body, and its prompt; `null` = the body cannot be read. */
function readBody(
  contentType: string | null,
  body: Buffer,
): { readonly members: JsonRecord; readonly prompt: Prompt | null } {
  if (formType.test(contentType ?? '')) {
    const form = Object.fromEntries(formFields(contentType, body));
    const { prompt = '', n = '1' } = form;
    return { members: { ...form, n: Number(n) }, prompt: readPrompt({ prompt }) };
  }
  if (!jsonType.test(contentType ?? '') && !looksLikeJson(body)) return { members: {}, prompt: null };
  const { text, textBytes } =
    body.length > maxParsedBody ? shortened(body) : { text: body.toString(), textBytes: 0 };
  // Of what is very long without its texts (token arrays, mostly) only the length is known, and the model where SDKs write it.
  if (text.length > maxParsedBody) {
    const [, model] =
      namedModel.exec(text.slice(0, endBytes)) ?? namedModel.exec(text.slice(-endBytes)) ?? [];
    const prompt = { textBytes: text.length + textBytes, images: 0, tokens: 0, marked: 0 };
    return { members: model === undefined ? {} : { model }, prompt };
  }
  const parsed = parseJson(text, maxParsedBody);
  // The upstream will say what is wrong with anything else.
  if (!isRecord(parsed)) return { members: {}, prompt: null };
  const prompt = readPrompt(parsed);
  return { members: parsed, prompt: { ...prompt, textBytes: prompt.textBytes + textBytes } };
}

/** `session`: of realtime offers · `servingMode`: of Oracle. */
const modelIn = (part: unknown): string | null =>
  stringAt(part, 'model') ?? stringAt(part, 'model_id') ?? stringAt(part, 'modelId');

/** A longer string of a very large body is counted and not parsed: no name and no number is that long. Bytes. */
const longString = 256;
/** A longer string of the letters of base64 alone is a file. Characters. */
const shortestFile = 1_024;
const namedModel = /"model(?:_id|Id)?"\s*:\s*"([^"\\]{1,256})"/;
/** At the beginning and the end of a body, where its short members stand. */
const endBytes = 512;
/** Quotes of such a body that are looked at: some 10 ms. */
const maxQuotes = 200_000;
const [quote, backslash] = [0x22, 0x5c];
const emptyFile = Buffer.from('data:;base64,');

/** A body without its long strings: without the bytes of files, and of texts, which are counted. */
function shortened(body: Buffer): { readonly text: string; readonly textBytes: number } {
  const kept: Buffer[] = [];
  let [from, textBytes, start, seen] = [0, 0, -1, 0];
  for (let at = body.indexOf(quote); at >= 0 && seen < maxQuotes; at = body.indexOf(quote, at + 1)) {
    seen += 1;
    if (start < 0) {
      start = at;
      continue;
    }
    let escapes = 0;
    while (body[at - 1 - escapes] === backslash) escapes += 1;
    if (escapes % 2 === 1) continue;
    if (at - start > longString) {
      const isText = !isFile(body.toString('latin1', start + 1, at));
      kept.push(body.subarray(from, start + 1), ...(isText ? [] : [emptyFile]));
      if (isText) textBytes += at - start - 1;
      from = at;
    }
    start = -1;
  }
  return { text: Buffer.concat([...kept, body.subarray(from)]).toString(), textBytes };
}

// The prompt

/** Deeper nesting is not walked: no provider's format comes near it. */
const maxDepth = 32;
const imageTokens = 765;
const bytesPerToken = 4;

/** What was counted of a prompt. */
interface Prompt {
  readonly textBytes: number;
  readonly images: number;
  /** Tokens that came as numbers (embeddings of token arrays). */
  readonly tokens: number;
  /** Tokens before the last part that is marked for the provider's cache (`cache_control`). */
  readonly marked: number;
}

const promptTokens = ({ textBytes, tokens, images }: Prompt): number =>
  Math.ceil(textBytes / bytesPerToken) + tokens + images * imageTokens;

/** Members at the top that the model reads as JSON, before all others. `text`: a format beside its verbosity. */
const definitions = new Set(
  wordsOf('tools functions toolConfig tool_config response_format output_config text documents'),
);
/** What the model reads next. Then come the other members, in the order of the body. */
const instructions = new Set(wordsOf('system systemInstruction system_instruction instructions preamble'));
/** Members at any place whose texts the model does not read. */
const unread = new Set(
  wordsOf(
    'model model_id modelId user metadata name id type role status call_id tool_call_id tool_use_id cache_control',
    'mimeType mime_type media_type format filename file_id url title detail stop stop_sequences',
    'signature thoughtSignature thought_signature encrypted_content', // seals of what a model thought
  ),
);

/** Members whose texts the model reads whatever their letters are. */
const texts = new Set(
  wordsOf(
    'text content prompt input message messages system instructions preamble arguments output query',
    'inputText inputs texts documents suffix',
  ),
);

const isDataUrl = (text: string): boolean =>
  text.startsWith('data:') && text.slice(0, 128).includes(';base64,');

/** A picture, a sound or a document, also in lines: outside of `texts` no text of this length is of these characters alone. */
const isFile = (text: string): boolean =>
  isDataUrl(text) || (text.length > shortestFile && !/[^\w+/=\\\r\n-]/.test(text));

function readPrompt(body: JsonRecord): Prompt {
  const prompt = { textBytes: 0, images: 0, tokens: 0, marked: 0 };
  /** `asJson`: names and signs of what is read count as well. `isText`: so does a long text without a blank. */
  const read = (value: unknown, depth: number, asJson: boolean, isText: boolean): void => {
    if (typeof value === 'string') {
      if (asJson || isText ? isDataUrl(value) : isFile(value)) prompt.images += 1;
      else prompt.textBytes += Buffer.byteLength(value) + (asJson ? 3 : 0);
    } else if (typeof value !== 'object' || value === null) prompt.textBytes += asJson ? 5 : 0;
    else if (depth === 0) return;
    else if (Array.isArray(value)) {
      // A list of numbers is text that was tokenized already; embeddings accept lists of such lists.
      if (typeof value[0] === 'number') prompt.tokens += value.length;
      else for (const member of value) read(member, depth - 1, asJson, isText);
    } else readPart(value as JsonRecord, depth - 1, asJson);
  };
  /** A message, an input item, a content part, what a tool was given or returned. */
  const readPart = (part: JsonRecord, depth: number, asJson: boolean): void => {
    if (isPicture(part)) prompt.images += 1;
    else
      for (const [name, value] of Object.entries(part)) {
        if (asJson) prompt.textBytes += name.length + 3;
        if (asJson || !unread.has(name)) read(value, depth, asJson, texts.has(name));
      }
    if (isRecord(part['cache_control'])) prompt.marked = promptTokens(prompt);
  };
  const placeOf = (name: string): number => (definitions.has(name) ? 0 : instructions.has(name) ? 1 : 2);
  for (const [name, value] of Object.entries(body).toSorted(([a], [b]) => placeOf(a) - placeOf(b))) {
    const isText = typeof value === 'string' && name !== 'text';
    if (!unread.has(name)) read(value, maxDepth, definitions.has(name) && !isText, texts.has(name));
  }
  // `cache_control` at the top of a body marks the whole prompt.
  return isRecord(body['cache_control']) ? { ...prompt, marked: promptTokens(prompt) } : prompt;
}

const pictureTypes = new Set(['image_url', 'input_image', 'image', 'image_file', 'computer_screenshot']);
const isPicture = (part: JsonRecord): boolean =>
  pictureTypes.has(stringAt(part, 'type') ?? '') ||
  isRecord(part['image']) || // Bedrock
  (stringAt(part['inlineData'], 'mimeType') ?? stringAt(part['inline_data'], 'mime_type'))?.startsWith(
    'image/',
  ) === true;

// The charge

const conversationTokens = 3;
/** A call cannot ask for more than this, units; keeps sums exact. */
const maxUnits = 1e12;

/** Whole and finite, whatever numbers the client wrote. */
const units = (amount: number): number => Math.min(Math.ceil(amount), maxUnits);

/** `limits`: the members of the body that limit the output, and how many answers are asked for. */
function chargeOf(operation: Operation, counted: Prompt, limits: JsonRecord) {
  const repeats = Math.max(1, countAt(limits, 'n') ?? 1, countAt(limits, 'best_of') ?? 1);
  const images = operation === 'image' ? repeats : counted.images;
  const allowed = outputAllowed(limits, operation);
  const output = allowed === null ? null : allowed * repeats;
  const isTalk = operation === 'conversation' || operation === 'anthropic';
  const prompt = promptTokens(counted) + (isTalk ? conversationTokens : 0);
  // Anthropic's limiter counts what was really produced, so there the allowed output is not reserved.
  const apart = operation === 'anthropic';
  const guess: TokenGuess = {
    prompt: units(prompt),
    marked: units(Math.min(counted.marked, prompt)),
    output: output === null ? null : units(output),
    apart,
  };
  const tokens = units(prompt + (apart ? 0 : (output ?? 0)));
  return {
    costs: { requests: 1, tokens, ...(images > 0 ? { images: units(images) } : {}) },
    guess: operation === 'image' ? null : guess,
  };
}

/** Members that limit the output, the newest first, and those in which providers put them. */
const outputLimits = wordsOf(
  'max_completion_tokens max_tokens max_output_tokens maxOutputTokens maxTokens',
  'max_new_tokens maxTokenCount max_gen_len max_tokens_to_sample num_predict',
);
const aroundLimits = wordsOf(
  'generationConfig generation_config inferenceConfig textGenerationConfig', // Gemini, Bedrock, Titan
  'options parameters completion_args input', // Ollama, Hugging Face, Mistral, Replicate
);

/** Tokens that one response may hold; `null` = the call does not say. */
function outputAllowed(body: JsonRecord, operation: Operation): number | null {
  if (operation === 'embedding' || operation === 'image') return 0;
  for (const part of [body, ...aroundLimits.map((name) => body[name])])
    for (const name of outputLimits) {
      const limit = countAt(part, name);
      if (limit !== null) return limit;
    }
  return null;
}

// The path

/** What is asked for, as far as it changes the charge. */
type Operation = 'conversation' | 'anthropic' | 'embedding' | 'image' | 'other';

function operationOf(path: string): Operation {
  if (path.endsWith('/embeddings')) return 'embedding';
  if (/\/images\/(?:generations|edits|variations)$/.test(path)) return 'image';
  if (path.endsWith('/messages')) return 'anthropic';
  return /\/chat\/completions$|\/responses$|:(?:stream)?[gG]enerateContent$/.test(path)
    ? 'conversation'
    : 'other';
}

/** Providers give what only counts tokens a limit of its own. */
const countingPath = /(?:[:/]count[-_]?tokens|\/responses\/input_tokens|\/(?:de)?tokenize)$/i;

/** Where providers name a model, or what stands for one, in the path; the quota belongs to that. */
const modelPaths: readonly RegExp[] = [
  /\/deployments\/([^/]{1,128}\/[^/]{1,128})\/predictions$/, // Replicate
  /\/deployments\/([^/]{1,256})\//, // Azure
  /\/(?:engines|(?:serving-)?endpoints)\/([^/:]{1,256})\/[^/:]+$/, // SageMaker, Databricks, OpenAI's first form
  /\/wenxinworkshop\/\w+\/([^/]{1,256})$/, // Baidu
  /\/(?:models|tunedModels|endpoints)\/([^/:]{1,256}):/, // Gemini, Vertex AI
  /^\/model\/([^/]{1,256})\/[^/]+$/, // Bedrock
  /\/models\/([^/:]{1,128}\/[^/:]{1,128})\/(?:predictions|pipeline\/[^/]+)$/, // Replicate, Hugging Face
  /\/hf-inference\/models\/([^/:]{1,128}\/[^/:]{1,128})$/,
  /\/ai\/run\/(@?[^:]{1,256})$/, // Cloudflare
];

function modelInPath(path: string): string | null {
  const plain = path.replaceAll(/%3a/gi, ':');
  const [name] = modelPaths.flatMap((pattern) => pattern.exec(plain)?.[1] ?? []);
  return name === undefined ? null : percentDecoded(name);
}

const modelName = (name: string | null): string | null =>
  name === null || name === '' || name.length > maxModel ? null : name;

/**
 * Collections whose POST creates what stays: a job, a file, a thread. Lower case. Everything else that is posted to a language model
 * (chat, completions, embeddings, images, audio, rerank, moderations, `invoke`, `predict`, unknown paths) only costs money once more.
 */
const creating = wordsOf(
  // OpenAI, Azure, Groq, Mistral, Together
  'fine_tuning fine-tuning fine-tunes fine_tunes fine_tune batch batches files uploads assistants threads vector_stores',
  'containers conversations evals chatkit webhooks skills agents libraries datasets jobs organization organizations',
  'supervisedfinetuningjobs batchinferencejobs', // Fireworks
  'upload cachedcontents tunedmodels tuningjobs corpora filesearchstores batchpredictionjobs', // Gemini, Vertex AI
  // Bedrock
  'model-customization-jobs model-invocation-job model-invocation-jobs evaluation-jobs async-invoke',
).join('|');
/** One of them in a path, where it is not the name of a deployment, a model, a project. */
const creatingPath = new RegExp(
  `(?<!/(?:deployments|models?|engines|projects|accounts|locations))/(?:${creating})(?=/|$)`,
);

/** True for a POST that only keeps what it is given, and generates nothing. Mistral's conversations begin with a response. */
const onlyKeeps = (path: string): boolean =>
  /\/(?:assistants|batches|files|jobs|threads|uploads|vector_stores)$/.test(path);

/** True where repeating a POST to the path whose fate is unknown may create something that stays a second time. */
function createsWhatStays(path: string): boolean {
  const plain = percentDecoded(path).toLowerCase().replace(/\/+$/, '');
  // Actions behind a colon (`models/gemini:batchGenerateContent`) that create a job. Others sample.
  const action = /:([^/]*)$/.exec(plain)?.[1];
  if (action !== undefined) return action === 'batchgeneratecontent' || action === 'asyncbatchembedcontent';
  // An agent's completion samples (Mistral's `agents/completions`).
  return !plain.endsWith('/completions') && creatingPath.test(plain);
}

// Classes of models and tiers

/**
 * Models that share a quota, as their providers document it: what a bucket is known by before a response has stated more. Anthropic:
 * one limit for Opus 4.5 to 4.8, one for Sonnet 4.5 and 4.6; every dated id and alias of a model counts as the model.
 */
const claude = /^claude-[a-z]+-\d{1,2}(?:-\d{1,2})?(?=(?:-\d{8}|-latest)?$)/;
const shared: readonly (readonly [RegExp, string])[] = [
  [/^claude-opus-4-[5-8]$/, 'claude-opus-4.x'],
  [/^claude-sonnet-4-[56]$/, 'claude-sonnet-4.x'],
];

/** The class whose quota a model counts against: the model itself, unless its provider documents another one. */
export function modelClass(model: string): string {
  const name = claude.exec(model)?.[0] ?? model;
  return shared.find(([pattern]) => pattern.test(name))?.[1] ?? name;
}

/**
 * The tier of a call that has a quota of its own, as Anthropic's fast mode and Groq's flex processing have; `''` = the ordinary one.
 * OpenAI's priority processing and Anthropic's priority tier count against the ordinary limits.
 */
export function tierOf(body: JsonRecord): string {
  if (stringAt(body, 'speed') === 'fast') return 'fast';
  return stringAt(body, 'service_tier') === 'flex' ? 'flex' : '';
}
