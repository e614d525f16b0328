/**
 * What a POST to a language model does, by its path.
 *
 * Owns: the table of operations that charges differ by, and of those that create something that stays. Does not own: what an operation
 * is charged (`charge.policy.ts`). Pure, linear.
 */
import { wordsOf } from '../words.policy.ts';
import type { Operation } from './charge.policy.ts';

/** The operation behind a path without its query, as far as it changes the charge. */
export function operationOf(path: string): Operation {
  if (path.endsWith('/embeddings')) return 'embedding';
  if (/\/images\/(?:generations|edits|variations)$/.test(path)) return 'image';
  if (path.endsWith('/chat/completions') || path.endsWith('/responses')) return 'conversation';
  if (path.endsWith('/messages')) return 'anthropic';
  return /:(?:stream)?[gG]enerateContent$/.test(path) ? 'conversation' : 'other';
}

/** True for a POST that only counts tokens: it generates nothing, and providers give it a limit of its own. */
export const countsTokens = (path: string): boolean =>
  /(?:[:/]count[-_]?tokens|\/responses\/input_tokens|\/(?:de)?tokenize)$/i.test(path);

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

/**
 * True where the path names a collection in which a POST creates something that stays, so that repeating one whose fate is unknown
 * may create it twice.
 */
export function createsWhatStays(path: string): boolean {
  const segments = path
    .toLowerCase()
    .split('/')
    .map(decoded)
    .filter((segment) => segment !== '');
  const last = segments.at(-1) ?? '';
  const colon = last.lastIndexOf(':');
  if (colon >= 0) return creatingActions.has(last.slice(colon + 1));
  // An agent's completion samples (Mistral's `agents/completions`).
  if (last === 'completions') return false;
  return segments.some((segment, at) => creating.has(segment) && !beforeName.has(segments[at - 1] ?? ''));
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment).toLowerCase();
  } catch {
    return segment; // a stray percent sign: it is none of the known names
  }
}
