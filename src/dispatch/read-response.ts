/**
 * Which part of which response is read for learning, without delaying what the client gets. Reading itself is in `inspect.ts`, and what a
 * text means in `feedback/`. Invariant: every byte of the body is delivered once, in order.
 */
import type { Readable } from 'node:stream';
import { createParser } from 'eventsource-parser';
import type { Feedback, UpstreamResponse } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Dialect, UpstreamKind } from '../config/settings.ts';
import { fieldMap } from '../field-lines.policy.ts';
import { costFromTail } from './feedback/commerce.policy.ts';
import { learnFrom } from './feedback/learn-from.policy.ts';
import { isErrorText } from './feedback/refusal.policy.ts';
import { nothingLearned } from './feedback/response.policy.ts';
import { isContent, learnFromStreamEvent, namedError } from './feedback/language-model.policy.ts';
import { noUsage, tokenUsage, withUsageIn } from './feedback/usage.policy.ts';
import { arrived, decoded, decoderFor, isPlain, peek, readInPassing, streamOf } from './inspect.ts';
import { bodyError } from './transport-error.ts';

/** Bytes of a response that are read for learning at most. */
const peekBytes = 64 * 1024;
/** How long the body of a refusal is waited for, milliseconds; nothing is learned from what comes later. */
const refusalPeekMs = 250;
/** How long a document may keep its client waiting that may be an error. Milliseconds. A part of a document is of no use to a client. */
const documentPeekMs = 1_000;

/** The facts of a call by which its response is read. */
export interface AttemptFacts {
  readonly kind: UpstreamKind;
  readonly dialect: Dialect | null;
  readonly callClass: string;
  readonly method: string;
}

export interface ReadResponse {
  /** Complete bytes, or the stream that delivers them. */
  readonly body: Buffer | Readable;
  readonly feedback: Feedback;
  /**
   * What the body has taught by now while it passes (usage, the cost of a large GraphQL response, an error behind content); it may be
   * asked for at any time, and returns `null` for nothing. `null` itself: all is known.
   */
  readonly bodyFeedback: (() => Feedback | null) | null;
}

/** Reads what there is to learn at once; what its body reports later comes with `bodyFeedback`. */
export async function readForLearning(
  { head: { status, rawFields }, body }: UpstreamResponse,
  { kind, dialect, callClass, method }: AttemptFacts,
  clock: Clock,
): Promise<ReadResponse> {
  const fields = fieldMap(rawFields);
  const encoding = fields.get('content-encoding') ?? '';
  const type = fields.get('content-type') ?? '';
  const length = fields.get('content-length') ?? '';
  const judge = (text: string | null): Feedback =>
    learnFrom(kind, { status, fields, body: text, callClass, nowMs: clock.now() }, dialect);
  const watched = (rest: Readable, feedback: Feedback, watch: Watch): ReadResponse => {
    const { body, flush } = readInPassing(rest, { encoding, onText: watch.onText }, clock);
    const bodyFeedback = (): Feedback | null => {
      flush();
      return watch.feedback();
    };
    return { body, feedback, bodyFeedback };
  };

  const isRefusal = status >= 400;
  const isModel = kind === 'language-model' && !isRefusal;
  if (isModel && isFrames.test(type)) return watched(body, beforeOutput(judge(null)), usageWatch(clock));
  if (isModel && isEvents.test(type)) {
    const { start, refusal } = await streamStart(body, encoding, judge, clock);
    if (refusal !== null) return { body: start, feedback: refusal, bodyFeedback: null };
    return watched(start, beforeOutput(judge(null)), usageWatch(clock));
  }
  const isRead = isModel
    ? method === 'POST' && isDocument.test(type)
    : isRefusal || callClass === 'graphql' || dialect?.bodyStatuses.includes(status) === true;
  const whole = await arrived(body, length);
  if (whole !== null) {
    const text = isRead ? await decoded(whole, encoding, clock) : null;
    return { body: whole, feedback: judge(text), bodyFeedback: null };
  }
  if (!isRead) return { body, feedback: judge(null), bodyFeedback: null };

  const modelWatch = isModel && !isUntyped.test(type) ? usageWatch(clock) : null;
  const watch = !isRefusal && callClass === 'graphql' ? costWatch() : modelWatch;
  // An error is short: a longer document is passed on as it comes.
  if (watch !== null && Number(length) > peekBytes) return watched(body, judge(null), watch);
  let isFirst = true;
  const onChunk = (chunk: Buffer, enough: () => void): void => {
    if (isModel && isFirst && isNoError(chunk.toString('latin1'), isJson.test(type))) enough();
    isFirst = false;
  };
  const maxMs = isRefusal ? refusalPeekMs : documentPeekMs;
  const start = await peek(body, { maxBytes: peekBytes, maxMs, onChunk }, clock);
  if (start.error !== null) {
    // What the head of a refusal says about waiting stands, also when the body that explains it breaks.
    const said = judge(null);
    if (!isRefusal || said.throttle === null) throw bodyError(start.error);
    return { body: start.body, feedback: said, bodyFeedback: null };
  }
  if (watch !== null && !Buffer.isBuffer(start.body)) return watched(start.body, judge(null), watch);
  const isReadable = start.whole || (isRefusal && isPlain(encoding));
  const text = isReadable ? await decoded(start.bytes, encoding, clock) : null;
  return { body: start.body, feedback: judge(text), bodyFeedback: null };
}

/** Bedrock's stream: frames with JSON inside. */
const isFrames = /^application\/vnd\.amazon\.eventstream\b/i;
const isEvents = /^text\/event-stream\b/i;
const isJson = /^application\/(?:[\w.-]+\+)?json\b/i;
/** Some upstreams send their errors so; other bodies of these types are text, in which an error is only a word. */
const isUntyped = /^(?:$|text\/plain\b)/i;
const isDocument = new RegExp(
  `${isJson.source}|^application/(?:x-)?(?:ndjson|jsonl|jsonlines)\\b|${isUntyped.source}`,
  'i',
);

/**
 * True for the first bytes of a document whose parts a client may read as they come: Gemini's list of content; of a type that does not
 * say that it is JSON, or of lines of JSON, whatever does not begin as an error.
 */
const isNoError = (first: string, isJsonType: boolean): boolean =>
  isJsonType ? /^\s*\[\s*\{\s*"(?!error")/.test(first) : !/^\s*[[{]/.test(first) || !isErrorText(first);

/** The head of a stream comes before the output: what it says of output tokens does not have those of its own call. */
const beforeOutput = (feedback: Feedback): Feedback => ({
  ...feedback,
  meters: feedback.meters.map((report) =>
    report.meter === 'output_tokens' ? { ...report, level: null } : report,
  ),
});

/** Learns from a text that passes. */
interface Watch {
  readonly onText: (text: string) => void;
  readonly feedback: () => Feedback | null;
}

/** Of very many errors in one part of a text the last are read. */
const maxErrors = 4;

/** What a response says of its usage, and an error inside it. */
function usageWatch(clock: Clock): Watch {
  let members = noUsage;
  let late: Feedback | null = null;
  const onText = (text: string): void => {
    members = withUsageIn(members, text);
    const lines = isErrorText(text) ? text.split(/[\r\n]+/).filter(isErrorText) : [];
    for (const line of lines.slice(-maxErrors)) {
      const feedback = learnFromStreamEvent(line, clock.now());
      if (feedback.errorStatus !== undefined) late = feedback;
    }
  };
  const feedback = (): Feedback | null => {
    const usage = tokenUsage(members);
    const reported = usage === null ? null : { ...nothingLearned, usage };
    return late === null ? reported : { ...reported, ...late };
  };
  return { onText, feedback };
}

/** The cost of a GraphQL response stands at its end, behind all data. */
function costWatch(): Watch {
  let cost: Feedback | null = null;
  const onText = (text: string): void => {
    const taught = costFromTail(text);
    if (taught.meters.length > 0) cost = taught;
  };
  return { onText, feedback: () => cost };
}

// The start of a stream is held back until its first content, because an error before that is a refusal like any other: the call can still
// be sent again, and its client need not know.

/** How long from the first byte on, and how long without any: an overloaded upstream may need a moment to find its error. Milliseconds. */
const maxHoldMs = 250;
const maxSilentMs = 1_000;
/** Events before the content in which an error is looked for. */
const maxJudged = 16;

/** Resolves with the first content or error, when the bounds are reached, or with the stream's end or failure. */
async function streamStart(
  body: Readable,
  encoding: string,
  judge: (text: string) => Feedback,
  clock: Clock,
): Promise<{ readonly start: Readable; readonly refusal: Feedback | null }> {
  const utf8 = new TextDecoder();
  let [text, judged, isOver] = ['', 0, false];
  let refusal: Feedback | null = null;
  let enough = (): void => {};
  const judgeText = (said: string): void => {
    const feedback = isErrorText(said) ? judge(said) : nothingLearned;
    if (feedback.errorStatus !== undefined) refusal = feedback;
  };
  const parser = createParser({
    onEvent({ data, event }) {
      if (isOver) return;
      judgeText(namedError(data, event));
      judged += 1;
      isOver = refusal !== null || judged >= maxJudged || isContent(data);
    },
  });
  const decoder = decoderFor(
    encoding,
    (bytes) => {
      const part = utf8.decode(bytes, { stream: true });
      text += part;
      parser.feed(part);
      if (isOver || text.length >= peekBytes) enough();
    },
    clock,
  );
  if (decoder === null) return { start: body, refusal };
  const limits = {
    maxBytes: peekBytes,
    maxMs: maxSilentMs,
    maxMsWithBytes: maxHoldMs,
    onChunk(chunk: Buffer, isEnough: () => void): void {
      enough = isEnough;
      decoder.write(chunk);
    },
    onEnd(done: () => void): void {
      decoder.end(() => {
        // Some upstreams leave out the empty line behind their last event, and some clients read it all the same.
        parser.feed('\n\n');
        done();
      });
    },
  };
  const start = await peek(body, limits, clock);
  decoder.stop();
  // Gemini writes an error as it is, without `data:`.
  if (!isOver && /^\s*[[{]/.test(text)) judgeText(text);
  return { start: Buffer.isBuffer(start.body) ? streamOf([start.body]) : start.body, refusal };
}
