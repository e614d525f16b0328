/**
 * What one event inside a 200 event stream teaches: a stream may turn into a refusal after its head said success.
 *
 * Owns: error events (chat `{"error":…}`, Responses `response.failed`, Anthropic `type: error`) and the usage event.
 * Refuses to own: cutting the stream into events, and forwarding. Invariant: an ordinary chunk costs a few substring
 * searches and is never parsed.
 */
import type { Feedback } from '../../call.ts';
import { believable } from './believable.policy.ts';
import { nothingLearned } from './facts.policy.ts';
import { parseJson } from './json.policy.ts';
import { asThrottle, refusedIn, requested, usage, withMessage } from './language-model.policy.ts';
import { verdictOf } from './model-error.policy.ts';

/** Learns from the data of one event (JSON; `data:` prefixes are tolerated). Anything else teaches nothing. */
export function learnFromStreamEvent(text: string): Feedback {
  const mayFail = text.includes('"error"');
  if (!mayFail && !text.includes('"usage')) return nothingLearned;
  const body = mayFail ? parseJson(text.replace(/^data: ?/gm, '')) : undefined;
  const { error, message } = refusedIn(body);
  if (error === null) return { ...nothingLearned, ...usage(text) };
  const verdict = verdictOf(error, message.tooLarge);
  if (verdict === null) return nothingLearned;
  const waitMs = verdict === 'rate' ? (error.retryDelayMs ?? message.waitMs) : null;
  const meters = withMessage([], message);
  return believable({
    meters,
    throttle: asThrottle(verdict, waitMs, message.meter),
    ...requested(message),
    ...(Object.keys(message.scope).length === 0 ? {} : { scope: message.scope }),
  });
}
