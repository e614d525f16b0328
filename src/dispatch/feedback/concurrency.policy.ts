/** Refusals because too many calls are in flight at once: a word of many providers and no field of any. */
import type { Feedback } from '../../call.ts';
import type { ResponseReader } from './response.policy.ts';

const words = /\bconcurren|\btoo many simultaneous\b|\bmax(?:imum)? parallel\b/i;
/** The address of a page about limits says nothing of this refusal. */
const address = /\bhttps?:\S+/g;
/** How much of a body is looked at, characters. */
const maxText = 2_000;

/** Adds that a 429 says so. No meter is at fault then. */
export function withConcurrency(feedback: Feedback, { status, body }: ResponseReader): Feedback {
  const { throttle } = feedback;
  if (status !== 429 || throttle?.kind !== 'rate' || body === null) return feedback;
  if (!words.test(body.slice(0, maxText).replaceAll(address, ''))) return feedback;
  return { ...feedback, throttle: { ...throttle, meter: null }, refusesConcurrency: true };
}
