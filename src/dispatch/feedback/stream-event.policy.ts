/**
 * What one event inside a 200 event stream teaches: a stream may turn into a refusal after its head said success.
 *
 * Owns: error events (chat `{"error":…}`, Responses `response.failed`, Anthropic `type: error`). Does not own: cutting the stream
 * into events, forwarding, and usage (`usage.policy.ts`). Invariant: an ordinary chunk costs a few substring searches and is never
 * parsed.
 */
import type { Feedback } from '../../call.ts';
import { believable } from './believable.policy.ts';
import { nothingLearned } from './facts.policy.ts';
import { parseJson } from './json.policy.ts';
import { asThrottle, refusedIn, requested, withMessage } from './language-model.policy.ts';

/** Learns from the data of one event (JSON; `data:` prefixes are tolerated). Anything else teaches nothing. */
export function learnFromStreamEvent(text: string): Feedback {
  if (!text.includes('"error"')) return nothingLearned;
  const { error, message, verdict } = refusedIn(parseJson(text.replace(/^data: ?/gm, '')));
  if (error === null || verdict === null) return nothingLearned;
  const waitMs = verdict === 'rate' ? (error.retryDelayMs ?? message.waitMs) : null;
  const meters = withMessage([], message);
  return believable({
    meters,
    throttle: asThrottle(verdict, waitMs, message.meter),
    ...requested(message),
    ...(Object.keys(message.scope).length === 0 ? {} : { scope: message.scope }),
  });
}
