/**
 * Which part of which response is read for learning, without delaying what the client gets.
 *
 * Owns: that choice, by status and kind of response. Does not own: reading (`inspect.ts`, `stream-watch.ts`) and what a text
 * means (`feedback/`). Invariant: every byte of the body is delivered once, in order.
 */
import type { Readable } from 'node:stream';
import type { Feedback, ResponseHead, UpstreamResponse } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Dialect } from '../config/dialect.ts';
import type { UpstreamKind } from '../config/settings.ts';
import { costFromTail } from './feedback/commerce-graphql.policy.ts';
import { nothingLearned } from './feedback/facts.policy.ts';
import { mayRefuseInside } from './feedback/github.policy.ts';
import { learnFrom, type ResponseFacts } from './feedback/learn-from.policy.ts';
import { noUsage, tokenUsage, withUsageIn, type UsageMembers } from './feedback/usage.policy.ts';
import { arrived, decoded, peek, withTail } from './inspect.ts';
import { streamStart, type StreamStart } from './stream-start.ts';
import { WatchedEvents } from './stream-watch.ts';
import { bodyError } from './transport-error.ts';

/** Bytes of a response that are read for learning at most. */
const peekBytes = 64 * 1024;
/** How long the body of a refusal is waited for, milliseconds; nothing is learned from what comes later. */
const refusalPeekMs = 250;
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

/** Reads what there is to learn at once; what its body reports later comes with `bodyFeedback`. */
export async function readForLearning(
  { head, body }: UpstreamResponse,
  facts: AttemptFacts,
  clock: Clock,
): Promise<ReadResponse> {
  const fields = fieldMap(head.rawFields);
  const judge: Judge = (text) =>
    learnFrom(facts.kind, responseFacts(head, fields, facts, text, clock), facts.dialect);
  if (head.status < 400 && facts.kind === 'language-model')
    return readModelResponse(body, { fields, method: facts.method, judge }, clock);
  const isWorthReading =
    facts.callClass === 'graphql' ||
    mayRefuseInside(fields, facts.method, facts.pathAndQuery) ||
    facts.dialect?.bodyStatuses.includes(head.status) === true;
  if (head.status < 400 && !isWorthReading) {
    const whole = arrived(body, fields.get('content-length') ?? '');
    return { body: whole === null ? body : await whole, feedback: judge(null), bodyFeedback: null };
  }
  return readStart(head, body, { fields, facts, judge }, clock);
}

/** A success of a language model is passed on as it comes; what it says of its usage is read beside it. */
async function readModelResponse(
  body: Readable,
  {
    fields,
    method,
    judge,
  }: {
    readonly fields: ReadonlyMap<string, string>;
    readonly method: string;
    readonly judge: Judge;
  },
  clock: Clock,
): Promise<ReadResponse> {
  const encoding = fields.get('content-encoding') ?? '';
  const type = fields.get('content-type') ?? '';
  if (isEventStream(type) && encoding === '') {
    return readEvents(await streamStart(body, clock), beforeOutput(judge(null)));
  }
  const reportsUsage = method === 'POST' && (isJson(type) || isEventStream(type));
  const whole = arrived(body, fields.get('content-length') ?? '');
  if (whole !== null) {
    const bytes = await whole;
    return {
      body: bytes,
      feedback: judge(reportsUsage ? decoded(bytes, encoding) : null),
      bodyFeedback: null,
    };
  }
  if (!reportsUsage) return { body, feedback: judge(null), bodyFeedback: null };
  let usage = noUsage;
  const tailed = withTail(body, encoding, (tail) => (usage = withUsageIn(usage, tail)));
  return {
    body: tailed,
    feedback: judge(null),
    bodyFeedback: { feedback: () => usageFeedback(usage), onThrottle: neverThrottles },
  };
}

/** An error before the first content is a refusal; one behind it passes, and teaches. */
function readEvents({ body, refusal }: StreamStart, head: Feedback): ReadResponse {
  if (refusal !== null) {
    const others = head.meters.filter(({ meter }) =>
      refusal.meters.every((report) => report.meter !== meter),
    );
    return { body, feedback: { ...refusal, meters: [...others, ...refusal.meters] }, bodyFeedback: null };
  }
  let listener = (_feedback: Feedback): void => {};
  let lateRefusal: Feedback | null = null;
  const watched = new WatchedEvents(body, (feedback) => {
    lateRefusal = feedback;
    listener(feedback);
  });
  const bodyFeedback: BodyFeedback = {
    feedback: () => {
      const usage = usageFeedback(watched.usage());
      return lateRefusal === null ? usage : { ...usage, ...lateRefusal };
    },
    onThrottle: (given) => {
      listener = given;
    },
  };
  return { body: watched.body, feedback: head, bodyFeedback };
}

/** A refusal, or a GraphQL response: what it teaches stands in its body, so the start of it is read first. */
async function readStart(
  head: ResponseHead,
  body: Readable,
  {
    fields,
    facts,
    judge,
  }: {
    readonly fields: ReadonlyMap<string, string>;
    readonly facts: AttemptFacts;
    readonly judge: Judge;
  },
  clock: Clock,
): Promise<ReadResponse> {
  const encoding = fields.get('content-encoding') ?? '';
  const maxMs = head.status < 400 ? responsePeekMs : refusalPeekMs;
  const peeked = await peek(body, { maxBytes: peekBytes, maxMs }, clock).catch((error: unknown) => {
    // What the head of a refusal says about waiting stands, also when the body that explains it breaks.
    if (head.status >= 400 && judge(null).throttle !== null) return null;
    throw bodyError(error);
  });
  if (peeked === null) return { body, feedback: judge(null), bodyFeedback: null };
  const text = peeked.whole || head.status >= 400 ? decoded(peeked.bytes, encoding) : null;
  const feedback = judge(text);
  const isGraphql = facts.callClass === 'graphql';
  if (peeked.whole || !isGraphql || Buffer.isBuffer(peeked.body))
    return { body: peeked.body, feedback, bodyFeedback: null };
  let cost: Feedback | null = null;
  const tailed = withTail(peeked.body, encoding, (tail) => (cost = costFromTail(tail)));
  return { body: tailed, feedback, bodyFeedback: { feedback: () => cost, onThrottle: neverThrottles } };
}

/** The head of a stream comes before the output: what it says of output tokens does not have those of its own call. */
const beforeOutput = (feedback: Feedback): Feedback => ({
  ...feedback,
  meters: feedback.meters.map((report) =>
    report.meter === 'output_tokens' ? { ...report, level: null } : report,
  ),
});

const neverThrottles = (): void => {};

function usageFeedback(members: UsageMembers): Feedback | null {
  const usage = tokenUsage(members);
  return usage === null ? null : { ...nothingLearned, usage };
}

const isEventStream = (type: string): boolean => type.startsWith('text/event-stream');
const isJson = (type: string): boolean => /^application\/(?:[\w.-]+\+)?json\b/i.test(type);

function responseFacts(
  head: ResponseHead,
  fields: ReadonlyMap<string, string>,
  facts: AttemptFacts,
  body: string | null,
  clock: Clock,
): ResponseFacts {
  return {
    status: head.status,
    fields,
    body,
    callClass: facts.callClass,
    nowMs: clock.now(),
  };
}

/** Lower-case names; repeats joined as RFC 9110 §5.3 allows. */
function fieldMap(rawFields: readonly string[]): ReadonlyMap<string, string> {
  const fields = new Map<string, string>();
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = (rawFields[at] ?? '').toLowerCase();
    const value = rawFields[at + 1] ?? '';
    const earlier = fields.get(name);
    fields.set(name, earlier === undefined ? value : `${earlier}, ${value}`);
  }
  return fields;
}
