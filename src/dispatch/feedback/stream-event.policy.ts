/**
 * What one event inside a 200 event stream teaches: a stream may turn into a refusal after its head said success.
 *
 * Owns: which events are content; error events (chat `{"error":…}`, Responses `response.failed`, Anthropic `type: error`, an event named `error`). Does not own:
 * cutting the stream into events, forwarding, and usage (`usage.policy.ts`). Invariant: an ordinary chunk costs a few substring
 * searches and is never parsed.
 */
import type { Feedback } from '../../call.ts';
import { wordsOf } from '../../words.policy.ts';
import { believable } from './response.policy.ts';
import { parsedWaitMs } from '../retry-after.policy.ts';
import { isRecord, lastObject, parseJson, stringAt, type JsonRecord } from './json.policy.ts';
import { asThrottle, refusedIn, requested, withMessage } from './language-model.policy.ts';
import { isErrorText, statusInside } from './model-error.policy.ts';
import { nothingLearned } from './response.policy.ts';

/** The data of an event as an error where only the event's name says that it is one. */
export function namedError(data: string, event: string | undefined): string {
  if (event !== 'error' || data.includes('"error"')) return data;
  return isRecord(parseJson(data)) ? `{"error":${data}}` : JSON.stringify({ error: data });
}

/**
 * Learns from the data of one event (JSON; `data:` prefixes are tolerated). Anything else teaches nothing. `nowMs`: the wall clock, for
 * an instant in it.
 */
export function learnFromStreamEvent(text: string, nowMs: number): Feedback {
  if (!isErrorText(text)) return nothingLearned;
  const body = parseJson(text.replace(/^data: ?/gm, '')) ?? errorAlone(text);
  const errorStatus = statusInside(body);
  if (errorStatus === null) return nothingLearned;
  const refused = refusedIn(body, errorStatus);
  const { message, verdict } = refused;
  if (verdict === null) return { ...nothingLearned, errorStatus };
  const waitMs = verdict === 'rate' ? parsedWaitMs(body, { date: null, now: nowMs }) : null;
  const meters = withMessage([], message);
  return believable({
    meters,
    throttle: asThrottle(verdict, waitMs, message.meter),
    errorStatus,
    ...requested(message),
    ...(Object.keys(message.scope).length === 0 ? {} : { scope: message.scope }),
  });
}

/** The error of an event that is cut, because the response around the error is long. */
function errorAlone(text: string): JsonRecord | null {
  const error = lastObject(text, 'error', () => true);
  return error === null ? null : { error };
}

/** Events that only say that a response has begun. Whatever is not known to come before content is content. */
const beginnings = new Set(
  wordsOf('message_start ping response.created response.queued response.in_progress keepalive'),
);

/** True for an event of a stream (its `data`) that is content. */
export function isContent(data: string): boolean {
  const body = parseJson(data);
  if (!isRecord(body)) return true;
  const type = stringAt(body, 'type');
  if (type !== null) return !beginnings.has(type);
  const { choices } = body;
  return !Array.isArray(choices) || choices.some(saysSomething);
}

/** Chat begins with a role and empty text; Azure's first chunk has no choice at all. */
function saysSomething(choice: unknown): boolean {
  if (!isRecord(choice) || !isRecord(choice['delta'])) return true;
  const isOver = (choice['finish_reason'] ?? null) !== null;
  const said = Object.entries(choice['delta']).some(
    ([name, value]) => name !== 'role' && value !== null && value !== '',
  );
  return isOver || said;
}
