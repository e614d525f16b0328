/**
 * What a POST to a language model is, by its path and body: its model and tier, what it will probably be charged, and
 * whether repeating it creates something a second time.
 *
 * Invariants: one linear walk over the prompt, bounded in depth, whatever the body; no tokenizer, because the common ones take seconds
 * on unbroken runs of text. The charge predicts the limiter's, not the tokenizer's count: ceil(bytes / 4) + 3 for conversations + output
 * budget × n + 765 per image (recorded charges). Bytes of UTF-8, because a sign of Chinese is about a token.
 */
import type { Costs } from '../call.ts';
import { wordsOf } from '../words.policy.ts';
import { countAt, isRecord, parseJson, stringAt, type JsonRecord } from './feedback/json.policy.ts';
import { formFields, maxParsedBody } from './request-body.policy.ts';
import type { TokenGuess } from './token-estimate.policy.ts';

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
  const asked: Asked = { inPath: modelInPath(path), operation };
  const { model, ...read } = readBody(asked, contentType, body);
  return {
    // Only what has no body to name it in, as sound and offers of sessions, names its model in the query.
    model: model ?? asked.inPath ?? modelName(new URLSearchParams(query).get('model')),
    tier: '',
    costs: oneRequest,
    guess: null,
    ...read,
    ...(countsTokens ? { tier: 'counting', costs: oneRequest, guess: null } : {}),
    ...(onlyKeeps(path) ? { costs: oneRequest, guess: null } : {}),
    makesImages: operation === 'image',
    onlyCosts: !createsWhatStays(path),
    countsTokens,
  };
}

interface Asked {
  readonly inPath: string | null;
  readonly operation: Operation;
}

function readBody(asked: Asked, contentType: string | null, body: Buffer): Partial<ModelCall> {
  if (/^(?:multipart\/|application\/x-www-form-urlencoded\b)/i.test(contentType ?? ''))
    return readForm(asked, formFields(contentType, body));
  if (!isJson(contentType) && !looksLikeJson(body)) return {};
  if (body.length > maxParsedBody) return readLarge(asked, body);
  const parsed = parseJson(body.toString('utf8'), maxParsedBody);
  if (!isRecord(parsed)) return {}; // the upstream will say what is wrong with it
  return {
    model:
      asked.inPath ??
      modelName(modelIn(parsed) ?? modelIn(parsed['session']) ?? modelIn(parsed['servingMode'])),
    tier: tierOf(parsed),
    ...chargeOf(asked.operation, readPrompt(parsed), parsed),
  };
}

/** `session`: of realtime offers · `servingMode`: of Oracle. */
const modelIn = (part: unknown): string | null =>
  stringAt(part, 'model') ?? stringAt(part, 'model_id') ?? stringAt(part, 'modelId');

/** SDKs always name JSON; a missing type is given the benefit of the doubt. */
const isJson = (contentType: string | null): boolean =>
  contentType === null || /^application\/(?:[\w.-]+\+)?json\b/i.test(contentType);

/** Browsers and scripts send JSON as text. */
const looksLikeJson = (body: Buffer): boolean => /^\uFEFF?\s*\{/.test(body.toString('utf8', 0, 256));

/** Of a form only what an image costs is known. */
function readForm({ inPath, operation }: Asked, fields: ReadonlyMap<string, string>): Partial<ModelCall> {
  const model = inPath ?? modelName(fields.get('model') ?? fields.get('model_id') ?? null);
  if (operation !== 'image') return { model };
  const [prompt, n] = [fields.get('prompt') ?? '', Number(fields.get('n') ?? '1')];
  return { model, costs: chargeOf(operation, readPrompt({ prompt }), { n }).costs };
}

/** Too large to parse: text is what is not base64, and of the members only texts and numbers at the top are read. */
function readLarge({ inPath, operation }: Asked, body: Buffer): Partial<ModelCall> {
  const { runs, bytes } = base64In(body);
  const top = shortMembers(body);
  return {
    model: inPath ?? modelName(modelIn(top)),
    tier: tierOf(top),
    ...chargeOf(operation, { textBytes: body.length - bytes, images: runs, tokens: 0, marked: 0 }, top),
  };
}

/** Some 10 ms: steps over bytes beside texts, of which finding a quote takes ten. */
const maxSteps = 1_000_000;
/** Where a body that has more is read as a text: its last bytes. */
const endRead = 16_384;
const [quote, backslash] = [0x22, 0x5c];
const shortMember = /"[\w-]{1,32}"\s*:\s*(?:"[^"\\]{0,256}"|\d{1,9}\b)/g;
const membersIn = (text: string): JsonRecord =>
  Object.assign(
    {},
    ...(text.match(shortMember) ?? []).map((member) => parseJson(`{${member}}`)),
  ) as JsonRecord;

/** The members at the top of a JSON object whose values are short texts or numbers. Texts are not looked into. */
function shortMembers(body: Buffer): JsonRecord {
  const found: string[] = [];
  let depth = 0;
  let steps = 0;
  for (let at = 0; at >= 0 && at < body.length; at += 1) {
    if ((steps += 1) > maxSteps)
      return { ...membersIn(body.toString('latin1', body.length - endRead)), ...membersIn(found.join()) };
    const byte = body[at] ?? 0;
    // Brackets of both kinds differ by one bit.
    if ((byte | 0x20) === 0x7b) depth += 1;
    else if ((byte | 0x20) === 0x7d) depth -= 1;
    if (byte !== quote) continue;
    const start = at;
    for (let escapes = 1; escapes % 2 === 1 && at >= 0 && steps <= maxSteps; steps += 10 + escapes) {
      at = body.indexOf(quote, at + 1);
      for (escapes = 0; escapes < maxSteps && body[at - 1 - escapes] === backslash;) escapes += 1;
    }
    if (depth !== 1 || at - start > maxModel) continue;
    const member = body.toString('utf8', start, at + 2 * maxModel);
    if (member.search(shortMember) === 0) found.push(member.match(shortMember)?.[0] ?? '');
  }
  return membersIn(found.join());
}

/** No word and no number is that long: a run of so many characters of base64 is no text. */
const minBase64 = 1_024;
/** Base64 of both alphabets, and the backslashes that some encoders of JSON put into it. */
const isBase64 = Uint8Array.from({ length: 256 }, (_, byte) =>
  /[\w+/=\\-]/.test(String.fromCharCode(byte)) ? 1 : 0,
);

/**
 * Long runs of base64 in a body, and the bytes of them: pictures, sounds and documents, in whatever form they are sent. One byte of each
 * half of the shortest run is looked at, so text costs next to nothing.
 */
function base64In(body: Buffer): { readonly runs: number; readonly bytes: number } {
  let runs = 0;
  let bytes = 0;
  let from = 0;
  for (let at = 0; at < body.length; at += minBase64 / 2) {
    let start = at;
    while (start >= from && isBase64[body[start] ?? 0] === 1) start -= 1;
    let end = at;
    while (end < body.length && isBase64[body[end] ?? 0] === 1) end += 1;
    from = end;
    if (end - start <= minBase64) continue;
    runs += 1;
    bytes += end - start - 1;
    at = end;
  }
  return { runs, bytes };
}

// The prompt

/** Deeper nesting is not walked: no provider's format comes near it. */
const maxDepth = 12;
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

/**
 * Members that hold what the model reads, in its order: definitions as JSON, then text content. `text`: a format beside its verbosity.
 */
const definitions = wordsOf(
  'tools functions toolConfig tool_config response_format output_config text',
  'documents', // Cohere: of any members
);
const instructions = wordsOf('system systemInstruction system_instruction instructions preamble');
const conversation = wordsOf(
  'messages contents input inputs prompt suffix',
  'chat_history message texts query', // Cohere
  'content requests instances', // embeddings of Gemini and Vertex AI
  'inputText', // Titan
);

function readPrompt(body: JsonRecord): Prompt {
  const walk = new PromptWalk();
  for (const name of definitions) walk.readDefinitions(body[name]);
  for (const name of [...instructions, ...conversation]) walk.read(body[name], maxDepth);
  const { textBytes, images, tokens } = walk;
  // `cache_control` at the top of a body marks the whole prompt.
  const marked = isRecord(body['cache_control']) ? promptTokens(walk) : walk.marked;
  return { textBytes, images, tokens, marked };
}

/** So many parts of definitions are looked at: some hundred tools. */
const maxParts = 20_000;

const isDataUrl = (text: string): boolean =>
  text.startsWith('data:') && text.slice(0, 128).includes(';base64,');

/** About how many bytes the JSON of a value has, however deep it is nested. */
function jsonBytes(value: unknown): number {
  let bytes = 0;
  const open: unknown[] = [value];
  for (const part of open) {
    if (typeof part === 'string') bytes += isDataUrl(part) ? 0 : Buffer.byteLength(part) + 3;
    else if (typeof part !== 'object' || part === null) bytes += 5;
    else if (open.length < maxParts) {
      const members = Array.isArray(part) ? part.slice(0, maxParts) : Object.values(part);
      if (!Array.isArray(part)) for (const name of Object.keys(part)) bytes += name.length + 3;
      for (const member of members) open.push(member);
    }
  }
  return bytes;
}

class PromptWalk implements Prompt {
  textBytes = 0;
  images = 0;
  tokens = 0;
  marked = 0;

  readDefinitions(value: unknown): void {
    if (typeof value !== 'object' || value === null) return;
    this.textBytes += jsonBytes(value);
    if (Array.isArray(value) && value.some((one) => isRecord(one) && isRecord(one['cache_control'])))
      this.marked = promptTokens(this);
  }

  read(value: unknown, depth: number): void {
    if (typeof value === 'string') this.#readText(value);
    else if (Array.isArray(value)) {
      // A list of numbers is text that was tokenized already; embeddings accept lists of such lists.
      if (typeof value[0] === 'number') this.tokens += value.length;
      else if (depth > 0) for (const member of value) this.read(member, depth - 1);
    } else if (isRecord(value) && depth > 0) this.#readPart(value, depth - 1);
  }

  #readText(text: string): void {
    if (isDataUrl(text)) this.images += 1;
    else this.textBytes += Buffer.byteLength(text);
  }

  /** A message, an input item or a content part: ids, roles and data cost nothing. */
  #readPart(part: JsonRecord, depth: number): void {
    if (isPicture(part)) this.images += 1;
    else {
      for (const name of textMembers) this.read(part[name], depth);
      // Anthropic: the source of a document that is no file.
      if (part['type'] === 'text') this.read(part['data'], depth);
      for (const name of toolMembers) {
        const value = part[name];
        if (isPicture(value)) this.images += 1;
        else if (isRecord(value)) this.textBytes += jsonBytes(value);
        else this.read(value, depth);
      }
    }
    if (isRecord(part['cache_control'])) this.marked = promptTokens(this);
  }
}

/** Members of a part that hold texts and other parts. */
const textMembers = wordsOf(
  'text content parts message source',
  'messages prompt system_prompt', // within the input of Alibaba, Replicate
  'guardContent reasoningContent reasoningText', // Bedrock
  'tool_calls function toolUse toolResult', // calls of tools (OpenAI, Bedrock), with what they are given
);
/** What tools are given and return: a text, parts, or JSON. */
const toolMembers = wordsOf(
  'input arguments output', // Anthropic, OpenAI
  'functionCall function_call functionResponse function_response json', // Gemini, Bedrock
  'executableCode codeExecutionResult', // Gemini
  'variables', // of a stored prompt
);

const pictureTypes = new Set(['image_url', 'input_image', 'image', 'image_file', 'computer_screenshot']);
const isPicture = (part: unknown): boolean =>
  isRecord(part) &&
  (pictureTypes.has(stringAt(part, 'type') ?? '') ||
    isRecord(part['image']) || // Bedrock
    (stringAt(part['inlineData'], 'mimeType') ?? stringAt(part['inline_data'], 'mime_type'))?.startsWith(
      'image/',
    ) === true);

// The charge

const conversationTokens = 3;
/** A call cannot ask for more than this, units; keeps sums exact. */
const maxUnits = 1e12;

/** Whole and finite, whatever numbers the client wrote. */
const units = (amount: number): number => Math.min(Math.ceil(amount), maxUnits);

/** `limits`: the members of the body that limit the output, and how many answers are asked for. */
function chargeOf(
  operation: Operation,
  counted: Prompt,
  limits: JsonRecord,
): Pick<ModelCall, 'costs' | 'guess'> {
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
  for (const pattern of modelPaths) {
    const name = pattern.exec(path.replaceAll(/%3a/gi, ':'))?.[1];
    if (name !== undefined) return decoded(name);
  }
  return null;
}

/** A stray percent sign leaves the raw spelling, which still distinguishes models. */
function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

const modelName = (name: string | null): string | null =>
  name === null || name === '' || name.length > maxModel ? null : name;

/**
 * Collections whose POST creates what stays: a job, a file, a thread. Lower case. Everything else that is posted to a language model
 * (chat, completions, embeddings, images, audio, rerank, moderations, `invoke`, `predict`, unknown paths) only costs money once more.
 */
const creating = new Set(
  wordsOf(
    // OpenAI, Azure, Groq, Mistral, Together
    'fine_tuning fine-tuning fine-tunes fine_tunes fine_tune batch batches files uploads assistants threads vector_stores',
    'containers conversations evals chatkit webhooks skills agents libraries datasets jobs organization organizations',
    'supervisedfinetuningjobs batchinferencejobs', // Fireworks
    'upload cachedcontents tunedmodels tuningjobs corpora filesearchstores batchpredictionjobs', // Gemini, Vertex AI
    // Bedrock
    'model-customization-jobs model-invocation-job model-invocation-jobs evaluation-jobs async-invoke',
  ),
);
/** Actions behind a colon (`models/gemini:batchGenerateContent`) that create a job. Lower case. Others sample. */
const creatingActions = new Set(['batchgeneratecontent', 'asyncbatchembedcontent']);
/** Segments that are followed by a name, which may be any word: a deployment may be called `files`. Lower case. */
const beforeName = new Set(wordsOf('deployments models model engines projects accounts locations'));

/** True for a POST that only keeps what it is given, and generates nothing. Mistral's conversations begin with a response. */
const onlyKeeps = (path: string): boolean =>
  /\/(?:assistants|batches|files|jobs|threads|uploads|vector_stores)$/.test(path);

/** True where repeating a POST to the path whose fate is unknown may create something that stays a second time. */
function createsWhatStays(path: string): boolean {
  const segments = path
    .split('/')
    .filter((segment) => segment !== '')
    .map((segment) => decoded(segment).toLowerCase());
  const last = segments.at(-1) ?? '';
  const colon = last.lastIndexOf(':');
  if (colon >= 0) return creatingActions.has(last.slice(colon + 1));
  // An agent's completion samples (Mistral's `agents/completions`).
  if (last === 'completions') return false;
  return segments.some((segment, at) => creating.has(segment) && !beforeName.has(segments[at - 1] ?? ''));
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
