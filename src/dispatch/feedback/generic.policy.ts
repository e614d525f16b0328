/**
 * What a response teaches where the upstream's provider is not known.
 *
 * Owns: 429, 503 and the rate-limit fields that no provider owns. Does not own: what a body proves beside a wait; without a known shape
 * that is nothing (GitHub's has one, `github.policy.ts`). Invariant: only requests are metered.
 */
import type { Feedback, MeterName, MeterReport } from '../../call.ts';
import type { ResponseTime } from '../stated-time.policy.ts';
import { retryAfterMs } from '../retry-after.policy.ts';
import { bodyWaitMs } from './body-wait.policy.ts';
import type { ResponseFacts } from './facts.policy.ts';
import { githubThrottle } from './github.policy.ts';
import { namedWindowReadings, plainReadings, quotaReadings } from './ietf.policy.ts';
import { exhaustedForMs, reportsOf, type Reading } from './reading.policy.ts';

export function learnFromGeneric({ status, fields, body, nowMs }: ResponseFacts): Feedback {
  const at: ResponseTime = { date: fields.get('date'), now: nowMs };
  const structured = quotaReadings(fields);
  const readings =
    structured.length > 0 ? structured : joined(plainReadings(fields, at), namedWindowReadings(fields));
  const meters = reportsOf(readings);
  const wantedFor = exhaustedMeter(meters) ?? 'requests';
  const statedMs = retryAfterMs(fields, nowMs);
  const exhaustedMs = exhaustedForMs(readings);
  const github = githubThrottle({ status, fields, body, statedMs, exhaustedMs });
  if (github !== null) return { meters, throttle: github };
  if (status === 429) {
    const waitMs = statedMs ?? bodyWaitMs(body, at) ?? exhaustedMs;
    return { meters, throttle: { kind: 'rate', waitMs, meter: wantedFor } };
  }
  const isOverload = status === 503 || status === 529;
  if (!isOverload) return { meters, throttle: null };
  return { meters, throttle: { kind: 'overload', waitMs: statedMs ?? bodyWaitMs(body, at) } };
}

const joined = (plain: readonly Reading[], named: readonly Reading[]): readonly Reading[] =>
  named.length === 0 ? plain : [...plain, ...named];

/** The meter that is used up, where a response reports several windows of requests and only one of them is. */
function exhaustedMeter(meters: readonly MeterReport[]): MeterName | null {
  const full = meters.filter(({ level, limit }) => level !== null && level.highest >= limit);
  const [only] = full;
  return full.length === 1 && only !== undefined ? only.meter : null;
}
