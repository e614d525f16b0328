/**
 * Which part of which response is read for learning, without delaying what the client gets.
 *
 * Owns: that choice, by status and kind of response. Does not own: reading (`inspect.ts`) and what a text
 * means (`feedback/`). Invariant: every byte of the body is delivered once, in order.
 */
import type { Readable } from 'node:stream';
import type { Feedback, ResponseHead, UpstreamResponse } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Dialect, UpstreamKind } from '../config/settings.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { costFromTail } from './feedback/commerce.policy.ts';
import { nothingLearned } from './feedback/response.policy.ts';
import { mayRefuseInside, learnFrom } from './feedback/learn-from.policy.ts';
import { isErrorText } from './feedback/model-error.policy.ts';
import { learnFromStreamEvent } from './feedback/stream-event.policy.ts';
import { bedrockPart, noUsage, tokenUsage, withUsageIn } from './feedback/usage.policy.ts';
import { decoded, isPlain } from './decoding.ts';
import { arrived, peek, readInPassing } from './inspect.ts';
import { PassingText } from './passing-text.ts';
import { streamStart } from './stream-start.ts';
import { bodyError } from './transport-error.ts';

/** Bytes of a response that are read for learning at most. */
const peekBytes = 64 * 1024;
/** How long the body of a refusal is waited for, milliseconds; nothing is learned from what comes later. */
const refusalPeekMs = 250;
/** How long a document may keep its client waiting that may be an error. Milliseconds. A part of a document is of no use to a client. */
const documentPeekMs = 1_000;
/** The same of one that cannot be looked into before it is whole. */
const packedPeekMs = 250;
/** A GraphQL response under 64 KiB is short: it is judged whole, unless it stalls. Milliseconds. */
const responsePeekMs = 2_000;

/** The facts of a call by which its response is read. */
export interface AttemptFacts {
  readonly kind: UpstreamKind;
  readonly dialect: Dialect | null;
  readonly callClass: string;
  readonly method: string;
  readonly pathAndQuery: string;
}

/** A body that teaches while it passes: usage, the final cost of a large GraphQL response, a throttle in an event stream. */
export interface BodyFeedback {
  /** What the response has reported by now, a throttle behind content included; `null` = nothing. */
  readonly feedback: () => Feedback | null;
  /** Calls back when an event stream turns into a throttle. */
  readonly onThrottle: (listener: (feedback: Feedback) => void) => void;
}

export interface ReadResponse {
  readonly body: Buffer | Readable;
  readonly feedback: Feedback;
  /** What the rest of the body teaches; `null` = all is known. */
  readonly bodyFeedback: BodyFeedback | null;
}

type Judge = (text: string | null) => Feedback;

/** What is known of a response and its call when its body is read. */
interface Reading {
  readonly fields: ReadonlyMap<string, string>;
  readonly encoding: string;
  readonly facts: AttemptFacts;
  readonly judge: Judge;
  readonly clock: Clock;
}

/** Reads what there is to learn at once; what its body reports later comes with `bodyFeedback`. */
export async function readForLearning(
  { head, body }: UpstreamResponse,
  facts: AttemptFacts,
  clock: Clock,
): Promise<ReadResponse> {
  const fields = fieldMap(head.rawFields);
  const encoding = fields.get('content-encoding') ?? '';
  const judge: Judge = (text) =>
    learnFrom(
      facts.kind,
      { status: head.status, fields, body: text, callClass: facts.callClass, nowMs: clock.now() },
      facts.dialect,
    );
  if (head.status < 400 && facts.kind === 'language-model')
    return readModelResponse(body, { fields, encoding, facts, judge, clock });
  const isWorthReading =
    facts.callClass === 'graphql' ||
    mayRefuseInside(fields, facts.method, facts.pathAndQuery) ||
    facts.dialect?.bodyStatuses.includes(head.status) === true;
  if (head.status < 400 && !isWorthReading) {
    const whole = arrived(body, fields.get('content-length') ?? '');
    return { body: whole === null ? body : await whole, feedback: judge(null), bodyFeedback: null };
  }
  return readStart(head, body, { fields, encoding, facts, judge, clock });
}

/** A success of a language model is passed on as it comes; what it says of its usage is read beside it. */
async function readModelResponse(
  body: Readable,
  { fields, encoding, facts: { method }, judge, clock }: Reading,
): Promise<ReadResponse> {
  const type = fields.get('content-type') ?? '';
  const errorIn = (text: string): Feedback | null => {
    const feedback = judge(text);
    return feedback.errorStatus === undefined ? null : feedback;
  };
  if (isEventStream(type)) {
    const start = await streamStart(body, { encoding, judge: errorIn }, clock);
    if (start.refusal !== null) return { body: start.body, feedback: start.refusal, bodyFeedback: null };
    return watched(start.body, encoding, beforeOutput(judge(null)), clock);
  }
  // Bedrock's stream: frames with JSON inside.
  if (/^application\/vnd\.amazon\.eventstream\b/i.test(type))
    return watched(body, encoding, beforeOutput(judge(null)), clock);
  const isRead = method === 'POST' && (isJson(type) || isJsonLines(type) || isUntyped(type));
  const length = fields.get('content-length') ?? '';
  const whole = arrived(body, length);
  if (whole !== null) {
    const bytes = await whole;
    const text = isRead ? await decoded(bytes, encoding, clock) : null;
    return { body: bytes, feedback: judge(text), bodyFeedback: null };
  }
  if (!isRead) return { body, feedback: judge(null), bodyFeedback: null };
  const passed = (rest: Readable): ReadResponse =>
    isUntyped(type)
      ? { body: rest, feedback: judge(null), bodyFeedback: null }
      : watched(rest, encoding, judge(null), clock);
  // An error is short: a longer document is passed on as it comes.
  if (Number(length) > peekBytes) return passed(body);
  const maxMs = isPlain(encoding) ? documentPeekMs : packedPeekMs;
  const isEnough = isJson(type) ? isListOfContent : isNoError;
  let isFirst = true;
  const onChunk = (chunk: Buffer, enough: () => void): void => {
    if (isFirst && isEnough(chunk)) enough();
    isFirst = false;
  };
  const start = await peek(body, { maxBytes: peekBytes, maxMs, onChunk }, clock);
  if (start.error !== null) throw bodyError(start.error);
  if (!start.whole && !Buffer.isBuffer(start.body)) return passed(start.body);
  const text = await decoded(start.bytes, encoding, clock);
  return { body: start.body, feedback: judge(text), bodyFeedback: null };
}

/** Gemini answers with a list whose parts come one by one: a client may read them as they come. */
const isListOfContent = (first: Buffer): boolean =>
  /^\s*\[\s*\{\s*"(?!error")/.test(first.toString('latin1', 0, 256));

/** Of a type that does not say so, or of lines that come one by one: only what begins as an error is waited for. */
const isNoError = (first: Buffer): boolean =>
  !/^\s*[[{]/.test(first.toString('latin1', 0, 256)) || !isErrorText(first.toString('latin1'));

/** A response that passes: what it says of its usage is read, and an error inside it. */
function watched(body: Readable, encoding: string, head: Feedback, clock: Clock): ReadResponse {
  let onThrottle = (_feedback: Feedback): void => {};
  let lateError: Feedback | null = null;
  let members = noUsage;
  const onFound = (found: string): void => void (members = withUsageIn(members, found));
  const text = new PassingText(
    { name: '"usage', isLine: false, onFound },
    { name: '"eval_count"', isLine: false, onFound },
    { name: '"bytes"', isLine: false, onFound: (part) => onFound(bedrockPart(part)) },
    {
      name: '"error"',
      isLine: true,
      onFound: (line) => {
        const feedback = learnFromStreamEvent(line, clock.now());
        if (feedback.errorStatus === undefined) return;
        lateError = feedback;
        if (feedback.throttle !== null) onThrottle(feedback);
      },
    },
  );
  const bodyFeedback: BodyFeedback = {
    feedback: () => {
      text.flush();
      const usage = tokenUsage(members);
      const reported = usage === null ? null : { ...nothingLearned, usage };
      return lateError === null ? reported : { ...reported, ...lateError };
    },
    onThrottle: (given) => {
      onThrottle = given;
    },
  };
  return { body: readInPassing(body, encoding, text, clock), feedback: head, bodyFeedback };
}

/** A refusal, or a GraphQL response: what it teaches stands in its body, so the start of it is read first. */
async function readStart(
  head: ResponseHead,
  body: Readable,
  { encoding, facts, judge, clock }: Reading,
): Promise<ReadResponse> {
  const maxMs = head.status < 400 ? responsePeekMs : refusalPeekMs;
  const peeked = await peek(body, { maxBytes: peekBytes, maxMs }, clock);
  if (peeked.error !== null) {
    // What the head of a refusal says about waiting stands, also when the body that explains it breaks.
    const said = judge(null);
    if (head.status < 400 || said.throttle === null) throw bodyError(peeked.error);
    return { body, feedback: said, bodyFeedback: null };
  }
  const isRead = peeked.whole || (head.status >= 400 && isPlain(encoding));
  const text = isRead ? await decoded(peeked.bytes, encoding, clock) : null;
  const feedback = judge(text);
  const isGraphql = facts.callClass === 'graphql';
  if (peeked.whole || !isGraphql || Buffer.isBuffer(peeked.body))
    return { body: peeked.body, feedback, bodyFeedback: null };
  return withCost(peeked.body, encoding, feedback, clock);
}

/** The cost of a GraphQL response stands at its end, behind all data. */
function withCost(body: Readable, encoding: string, feedback: Feedback, clock: Clock): ReadResponse {
  let cost: Feedback | null = null;
  const text = new PassingText({
    name: '"cost"',
    isLine: false,
    onFound: (found) => {
      const taught = costFromTail(found);
      if (taught.meters.length > 0) cost = taught;
    },
  });
  const passing = readInPassing(body, encoding, text, clock);
  return { body: passing, feedback, bodyFeedback: { feedback: () => cost, onThrottle: neverThrottles } };
}

/** The head of a stream comes before the output: what it says of output tokens does not have those of its own call. */
const beforeOutput = (feedback: Feedback): Feedback => ({
  ...feedback,
  meters: feedback.meters.map((report) =>
    report.meter === 'output_tokens' ? { ...report, level: null } : report,
  ),
});

const neverThrottles = (): void => {};

const isEventStream = (type: string): boolean => /^text\/event-stream\b/i.test(type);
const isJson = (type: string): boolean => /^application\/(?:[\w.-]+\+)?json\b/i.test(type);
const isJsonLines = (type: string): boolean =>
  /^application\/(?:x-)?(?:ndjson|jsonl|jsonlines)\b/i.test(type);
/** Some upstreams send their errors so; other bodies of these types are text, in which an error is only a word. */
const isUntyped = (type: string): boolean => /^(?:$|text\/plain\b)/i.test(type);
