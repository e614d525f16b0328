/**
 * One sending of a call: fields out, answer's head in, and what the answer teaches. One throw-away exchange, no loop;
 * a resend goes through admission again.
 *
 * Owns: which part of which answer is read for learning. Refuses to own: whether to resend (`resend.policy.ts`), when
 * (the ticket), what the client sees (the gateway).
 */
import type { Readable } from 'node:stream';
import type { AnswerHead, Feedback } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { UpstreamKind } from '../config/settings.ts';
import type { Lesson } from '../limiter/limiter.ts';
import { learnFrom, type AnswerFacts } from './feedback/learn-from.policy.ts';
import { costFromTail } from './feedback/commerce-graphql.policy.ts';
import { arrived, decoded, peek, withTail } from './inspect.ts';
import type { Turn } from './send-order.ts';
import { watchEvents } from './stream-watch.ts';
import { bodyError } from './transport-error.ts';
import { TransportError, type Transport, type TransportAttempt } from './transport.ts';

/** Bytes of an answer that are read for learning at most. */
const peekBytes = 64 * 1024;
/** A refusal's body must not keep us waiting: what has not come by then is not learned from. Milliseconds. */
const refusalPeekMs = 250;
/** A GraphQL answer under 64 KiB is short: it is judged whole, unless it stalls. Milliseconds. */
const answerPeekMs = 2_000;

/** What of a call matters for reading its answer. */
export interface AttemptFacts {
  readonly kind: UpstreamKind;
  readonly callClass: string;
  readonly method: string;
  readonly pathAndQuery: string;
}

export type AttemptResult =
  | {
      readonly kind: 'answered';
      readonly head: AnswerHead;
      /** Complete bytes, or the stream that delivers them. */
      readonly body: Buffer | Readable;
      readonly feedback: Feedback;
      /** The lesson with its ages as of now. */
      readonly lesson: () => Lesson;
      /** Final charge, told once the body has ended (large GraphQL answers); `null` = nothing to correct. */
      readonly late: () => Feedback | null;
      /** An event stream, which can still turn into a throttle; calls back if it does. `null` = it cannot. */
      readonly onLateThrottle: ((listener: (feedback: Feedback) => void) => void) | null;
    }
  | {
      readonly kind: 'failed';
      readonly error: TransportError;
    };

/** Sends once. Never rejects with anything but a bug. */
export async function attempt(
  transport: Transport,
  request: Omit<TransportAttempt, 'onSent' | 'hold'>,
  facts: AttemptFacts,
  turn: Turn,
  clock: Clock,
): Promise<AttemptResult> {
  let sentAt = clock.monotonic();
  const onSent = (): void => {
    sentAt = clock.monotonic();
    turn.written();
  };
  try {
    const answer = await transport.send({ ...request, hold: turn.before, onSent });
    const headAt = clock.monotonic();
    let late: Feedback | null = null;
    const read = await readForLearning(answer.head, answer.body, facts, clock, (told) => (late = told));
    const lesson = (): Lesson => {
      const now = clock.monotonic();
      return { feedback: read.feedback, sentAgoMs: now - sentAt, headAgoMs: now - headAt };
    };
    return {
      kind: 'answered',
      head: answer.head,
      body: read.body,
      feedback: read.feedback,
      lesson,
      late: () => late,
      onLateThrottle: read.onLateThrottle ?? null,
    };
  } catch (error) {
    if (error instanceof TransportError) return { kind: 'failed', error };
    throw error;
  } finally {
    turn.written();
  }
}

interface ReadAnswer {
  readonly body: Buffer | Readable;
  readonly feedback: Feedback;
  readonly onLateThrottle?: (listener: (feedback: Feedback) => void) => void;
}

async function readForLearning(
  head: AnswerHead,
  body: Readable,
  facts: AttemptFacts,
  clock: Clock,
  onLate: (feedback: Feedback) => void,
): Promise<ReadAnswer> {
  const fields = fieldMap(head.rawFields);
  const judge = (text: string | null): Feedback =>
    learnFrom(facts.kind, answerFacts(head, fields, facts, text, clock));
  const isGraphql = facts.callClass === 'graphql';
  if (head.status < 400 && facts.kind === 'language-model' && isEventStream(fields)) {
    let listener = (_feedback: Feedback): void => {};
    const watched = watchEvents(body, (told) => listener(told));
    return { body: watched, feedback: judge(null), onLateThrottle: (given) => (listener = given) };
  }
  if (head.status < 400 && !isGraphql) {
    const whole = arrived(body, fields.get('content-length') ?? '');
    return { body: whole === null ? body : await whole, feedback: judge(null) };
  }
  const encoding = fields.get('content-encoding') ?? '';
  const maxMs = head.status < 400 ? answerPeekMs : refusalPeekMs;
  const peeked = await peek(body, { maxBytes: peekBytes, maxMs }, clock).catch((error: unknown) => {
    // What the head of a refusal says about waiting stands, also when the body that explains it breaks.
    if (head.status >= 400 && judge(null).throttle !== null) return null;
    throw bodyError(error);
  });
  if (peeked === null) return { body, feedback: judge(null) };
  const text = peeked.whole || head.status >= 400 ? decoded(peeked.bytes, encoding) : null;
  const feedback = judge(text);
  if (peeked.whole || !isGraphql || Buffer.isBuffer(peeked.body)) return { body: peeked.body, feedback };
  const tailed = withTail(peeked.body, encoding, (tail) => onLate(costFromTail(tail)));
  return { body: tailed, feedback };
}

/** Uncompressed server-sent events. */
const isEventStream = (fields: ReadonlyMap<string, string>): boolean =>
  (fields.get('content-type') ?? '').startsWith('text/event-stream') && !fields.has('content-encoding');

function answerFacts(
  head: AnswerHead,
  fields: ReadonlyMap<string, string>,
  facts: AttemptFacts,
  body: string | null,
  clock: Clock,
): AnswerFacts {
  return {
    status: head.status,
    fields,
    body,
    callClass: facts.callClass,
    method: facts.method,
    path: facts.pathAndQuery,
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
