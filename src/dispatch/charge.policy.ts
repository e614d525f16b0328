/**
 * What a language-model limiter will probably charge for a request body.
 *
 * Owns: counting characters of text, images and output budgets in a parsed body. Does not own: HTTP, and learning the
 * true rule (the limiter corrects the guess from the responses). Invariant: one linear walk; no tokenizer, because the
 * common ones take seconds on unbroken runs of text. The formula predicts the limiter's charge, not the tokenizer's
 * count: ceil(chars / 4) + 3 for conversations + output budget × n + 765 per image (recorded charges).
 */
import type { Costs } from '../call.ts';
import { countAt, isRecord, stringAt, type JsonRecord } from './feedback/json.policy.ts';
import type { TokenGuess } from './token-estimate.policy.ts';

/** Tokens charged for one picture in the prompt, whatever its size. */
const imageTokens = 765;
const conversationTokens = 3;
const charsPerToken = 4;
/** A call cannot ask for more than this, units; keeps sums exact. */
const maxUnits = 1e12;
/** Deeper nesting is not walked: no provider's format comes near it. */
const deepest = 12;

/** What the walk has found. */
interface Tally {
  chars: number;
  images: number;
  /** Tokens that came as numbers (embeddings of token arrays). */
  tokens: number;
  /** Tokens before the last part that is marked for the provider's cache (`cache_control`). */
  marked: number;
}

/** Where the response of a call is made, as far as it changes the charge. */
export type Operation = 'conversation' | 'anthropic' | 'embedding' | 'image' | 'other';

/** Members that hold what the model reads, in its order; everything else (tools, metadata, schemas) is not text content. */
const promptMembers = [
  'system',
  'systemInstruction',
  'instructions',
  'messages',
  'contents',
  'input',
  'prompt',
] as const;

/** What a call is taken to cost before anything is learned, and what its tokens are guessed from. */
export interface Charge {
  readonly costs: Costs;
  /** `null`: its tokens are not learned (pictures). */
  readonly guess: TokenGuess | null;
}

/** Charge of a language-model call with this parsed body. */
export function chargeOf(body: JsonRecord, operation: Operation): Charge {
  const tally: Tally = { chars: 0, images: 0, tokens: 0, marked: 0 };
  for (const member of promptMembers) {
    const value = body[member];
    if (value !== undefined) walk(value, tally, deepest);
  }
  // `cache_control` at the top of a body marks the whole prompt.
  if (isRecord(body['cache_control'])) tally.marked = promptOf(tally);
  const repeats = Math.max(1, countAt(body, 'n') ?? 1, countAt(body, 'best_of') ?? 1);
  const images = operation === 'image' ? repeats : tally.images;
  const output = outputAllowed(body, operation);
  return charge(tally, operation, output === null ? null : output * repeats, images);
}

/** What is known of a body that is too large to parse. */
export interface BodySize {
  readonly textBytes: number;
  readonly pictures: number;
  /** Members that limit the output (`max_tokens`), as far as they were found. */
  readonly limits: JsonRecord;
}

/** Charge of a call whose body is too large to parse: text by its bytes, pictures by their number. */
export function chargeOfSize({ textBytes, pictures, limits }: BodySize, operation: Operation): Charge {
  return charge(
    { chars: textBytes, images: pictures, tokens: 0, marked: 0 },
    operation,
    outputAllowed(limits, operation),
    operation === 'image' ? 1 : pictures,
  );
}

const promptOf = ({ chars, tokens, images }: Tally): number =>
  Math.ceil(chars / charsPerToken) + tokens + images * imageTokens;

function charge(tally: Tally, operation: Operation, output: number | null, images: number): Charge {
  const overhead = operation === 'conversation' || operation === 'anthropic' ? conversationTokens : 0;
  const prompt = promptOf(tally) + overhead;
  const apart = operation === 'anthropic';
  // Anthropic's limiter counts what was really produced, so there the allowed output is not reserved.
  const tokens = prompt + (apart ? 0 : (output ?? 0));
  const guess: TokenGuess = {
    prompt: units(prompt),
    marked: units(Math.min(tally.marked, prompt)),
    output: output === null ? null : units(output),
    apart,
  };
  return {
    costs: { requests: 1, tokens: units(tokens), ...(images > 0 ? { images: units(images) } : {}) },
    guess: operation === 'image' ? null : guess,
  };
}

/** Whole and finite, whatever numbers the client wrote. */
const units = (amount: number): number => Math.min(Math.ceil(amount), maxUnits);

/** Tokens that one response may hold; `null` = the call does not say. */
function outputAllowed(body: JsonRecord, operation: Operation): number | null {
  if (operation === 'embedding' || operation === 'image') return 0;
  const generation = body['generationConfig'];
  return (
    countAt(body, 'max_completion_tokens') ??
    countAt(body, 'max_tokens') ??
    countAt(body, 'max_output_tokens') ??
    countAt(generation, 'maxOutputTokens')
  );
}

function walk(value: unknown, tally: Tally, depth: number): void {
  if (typeof value === 'string') {
    if (isDataUrl(value)) tally.images += 1;
    else tally.chars += value.length;
  } else if (Array.isArray(value)) {
    walkList(value, tally, depth);
  } else if (isRecord(value) && depth > 0) {
    walkPart(value, tally, depth - 1);
  }
}

function walkList(list: readonly unknown[], tally: Tally, depth: number): void {
  // A list of numbers is text that was tokenized already; embeddings accept lists of such lists.
  if (typeof list[0] === 'number') tally.tokens += list.length;
  else if (depth > 0) for (const member of list) walk(member, tally, depth - 1);
}

const pictureTypes = new Set(['image_url', 'input_image', 'image', 'image_file']);

/** A message, an input item or a content part. Only `text`, `content` and `parts` are read: ids, roles and data cost nothing. */
function walkPart(part: JsonRecord, tally: Tally, depth: number): void {
  const type = stringAt(part, 'type');
  if ((type !== null && pictureTypes.has(type)) || isPicture(part['inlineData'])) {
    tally.images += 1;
  } else {
    if (part['text'] !== undefined) walk(part['text'], tally, depth);
    if (part['content'] !== undefined) walk(part['content'], tally, depth);
    if (part['parts'] !== undefined) walk(part['parts'], tally, depth);
  }
  if (isRecord(part['cache_control'])) tally.marked = promptOf(tally);
}

const isDataUrl = (text: string): boolean =>
  text.startsWith('data:') && text.slice(0, 128).includes(';base64,');
const isPicture = (data: unknown): boolean => stringAt(data, 'mimeType')?.startsWith('image/') ?? false;
