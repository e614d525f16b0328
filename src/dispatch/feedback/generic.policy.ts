/**
 * What the answer of an upstream of unknown make teaches.
 *
 * Owns: 429, 503 and the rate-limit fields that no provider owns. Refuses to own: bodies; without a known shape they
 * prove nothing. Invariant: only requests are metered.
 */
import type { Feedback, Throttle } from '../../call.ts';
import type { AnswerTime } from '../duration.policy.ts';
import { retryAfterMs } from '../retry-after.policy.ts';
import type { AnswerFacts } from './facts.policy.ts';
import { namedWindowReadings, plainReadings, quotaReadings } from './ietf.policy.ts';
import { exhaustedForMs, reportsOf, type Reading } from './reading.policy.ts';

export function learnFromGeneric({ status, fields, nowMs }: AnswerFacts): Feedback {
  const at: AnswerTime = { date: fields.get('date'), now: nowMs };
  const structured = quotaReadings(fields);
  const readings =
    structured.length > 0 ? structured : [...plainReadings(fields, at), ...namedWindowReadings(fields)];
  return { meters: reportsOf(readings), throttle: throttleOf(status, retryAfterMs(fields, nowMs), readings) };
}

function throttleOf(status: number, statedMs: number | null, readings: readonly Reading[]): Throttle | null {
  if (status === 429)
    return { kind: 'rate', waitMs: statedMs ?? exhaustedForMs(readings), meter: 'requests' };
  return status === 503 || status === 529 ? { kind: 'overload', waitMs: statedMs } : null;
}
