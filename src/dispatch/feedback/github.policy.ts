/**
 * GitHub's REST API refuses for want of quota with 403 as well as 429. Primary limit: `x-ratelimit-remaining: 0` and a reset.
 * Secondary limits (points, content, concurrency): a sentence, with `Retry-After` or none; then at least a minute.
 *
 * Owns: which of its 403s are a limiter's. Refuses to own: the fields, which it shares with others (`ietf.policy.ts`).
 */
import type { Throttle } from '../../call.ts';
import { count } from './reading.policy.ts';

/** What GitHub asks for where it names no time. Milliseconds. */
const secondaryPauseMs = 60_000;
const secondary = /\bsecondary rate limit\b|\babuse detection mechanism\b/i;

interface GithubAnswer {
  readonly status: number;
  readonly fields: ReadonlyMap<string, string>;
  readonly body: string | null;
  /** What `Retry-After` says, milliseconds. */
  readonly statedMs: number | null;
  /** Until the window of a used-up limit ends, milliseconds. */
  readonly exhaustedMs: number | null;
}

/** `null`: not GitHub's, or refused for another reason. */
export function githubThrottle({
  status,
  fields,
  body,
  statedMs,
  exhaustedMs,
}: GithubAnswer): Throttle | null {
  if (status !== 403 && status !== 429) return null;
  if (!fields.has('x-github-request-id')) return null;
  if (body !== null && secondary.test(body)) {
    return { kind: 'rate', waitMs: statedMs ?? secondaryPauseMs, meter: null };
  }
  const isSpent = count(fields.get('x-ratelimit-remaining')) === 0;
  if (!isSpent && statedMs === null) return null;
  return { kind: 'rate', waitMs: statedMs ?? exhaustedMs, meter: 'requests' };
}
