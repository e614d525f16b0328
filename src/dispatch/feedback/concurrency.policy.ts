/** Refusals because too many calls are in flight at once: a word of many providers and no field of any. */
import type { Feedback } from '../../call.ts';
import type { ResponseReader } from './response.policy.ts';

const words = /\bconcurren|\btoo many simultaneous\b|\bmax(?:imum)? parallel\b/i;
/** The address of a page about limits says nothing of this refusal. */
const address = /\bhttps?:\S+/g;
/** How much of a body is looked at, characters. */
const maxText = 2_000;

/** Fields in which providers name the limit that refused a call. */
const reasons = ['x-rate-limit-problem', 'stripe-rate-limited-reason'];

/** Adds that a refusal for want of quota says so. No meter is at fault then. */
export function withConcurrency(feedback: Feedback, { fields, body }: ResponseReader): Feedback {
  const { throttle } = feedback;
  if (throttle?.kind !== 'rate') return feedback;
  const named = reasons.some((field) => words.test(fields.get(field) ?? ''));
  if (!named && !words.test((body ?? '').slice(0, maxText).replaceAll(address, ''))) return feedback;
  return { ...feedback, throttle: { ...throttle, meter: null }, refusesConcurrency: true };
}
