/**
 * GitHub's REST API refuses for want of quota with 403 as well as 429, its GraphQL API with 200 and an error. Primary limit:
 * `x-ratelimit-remaining: 0` and a reset. Secondary limits (points, content, concurrency): a sentence, with `Retry-After` or
 * none; then at least a minute.
 *
 * Owns: which of its 403s and 200s are a limiter's. Does not own: the fields, which it shares with others (`ietf.policy.ts`).
 */
import type { Throttle } from '../../call.ts';
import { unownedReadings } from './ietf.policy.ts';
import { isRecord, recordAt, stringAt } from './json.policy.ts';
import { count, exhaustedForMs } from './reading.policy.ts';
import type { ResponseReader } from './response.policy.ts';

/** What GitHub asks for where it names no time. Milliseconds. */
const secondaryPauseMs = 60_000;
const secondary = /\bsecondary rate limit\b|\babuse detection mechanism\b/i;

/** The throttle in a refusal of GitHub; `null`: the response is not GitHub's, or it refuses for another reason than quota. */
export function githubThrottle(response: ResponseReader): Throttle | null {
  const { status, fields, body } = response;
  if (!fields.has('x-github-request-id')) return null;
  if (status === 200) return inSuccess(response);
  if (status !== 403 && status !== 429) return null;
  if (body !== null && secondary.test(body)) return secondaryLimit(response);
  const isSpent = count(fields.get('x-ratelimit-remaining')) === 0;
  return isSpent || response.statedMs !== null ? primaryLimit(response) : null;
}

const secondaryLimit = ({ statedMs }: ResponseReader): Throttle => ({
  kind: 'rate',
  waitMs: statedMs ?? secondaryPauseMs,
  meter: null,
});

const primaryLimit = ({ statedMs, fields, at }: ResponseReader): Throttle => ({
  kind: 'rate',
  waitMs: statedMs ?? exhaustedForMs(unownedReadings(fields, at)),
  meter: 'requests',
});

/** True where a response with a status of success may be a refusal, so that its body has to be read. */
export const mayRefuseInside = (fields: ReadonlyMap<string, string>, method: string, path: string): boolean =>
  method === 'POST' && fields.has('x-github-request-id') && /\/graphql(?:\?|$)/.test(path);

/** The throttle among the errors of a response without data; beside data, an error refused only a part of a call that was executed. */
function inSuccess(response: ResponseReader): Throttle | null {
  const errors = isRecord(response.json) ? response.json['errors'] : undefined;
  if (!Array.isArray(errors) || recordAt(response.json, 'data') !== null) return null;
  if (errors.some((error) => secondary.test(stringAt(error, 'message') ?? '')))
    return secondaryLimit(response);
  const isRefused = errors.some((error) => /^RATE_LIMIT(?:ED)?$/.test(stringAt(error, 'type') ?? ''));
  return isRefused ? primaryLimit(response) : null;
}
