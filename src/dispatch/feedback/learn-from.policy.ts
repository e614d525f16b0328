/** What a response teaches: the one entrance to the feedback policies. Total; any facts give a `Feedback`. */
import type { Feedback, Throttle, UpstreamKind } from '../../call.ts';
import type { Dialect } from '../../config/settings.ts';
import { namedWaitMs } from '../stated-time.policy.ts';
import { learnFromCommerce } from './commerce.policy.ts';
import { describedThrottle, learnFromDialect, unknownDialect } from './dialect.policy.ts';
import { isRecord, recordAt, stringAt } from './json.policy.ts';
import { learnFromModel } from './language-model.policy.ts';
import { count, exhaustedForMs, unownedReadings } from './limits.policy.ts';
import { believable, type ResponseFacts, ResponseReader } from './response.policy.ts';

export type { ResponseFacts };

/** With this an upstream says that the credential is not valid, or not any more (RFC 9110 §15.5.2): it ran nothing. */
const refusedStatus = 401;

/**
 * Learns from one response of an upstream of this kind, or of this dialect where one is described. Never throws; a response that
 * states nothing teaches nothing.
 */
export function learnFrom(
  kind: UpstreamKind,
  facts: ResponseFacts,
  dialect: Dialect | null = null,
): Feedback {
  const response = new ResponseReader(facts);
  if (dialect !== null && kind === 'generic')
    return withConcurrency(believable(learnFromDialect(dialect, response)), response);
  const own = withWait(read(kind, response), response);
  const described = dialect === null ? null : describedThrottle(dialect, response, own.throttle);
  const reported = withConcurrency(
    believable(described === null ? own : { ...own, throttle: described }),
    response,
  );
  return (reported.errorStatus ?? facts.status) === refusedStatus
    ? { ...reported, refusesCredential: true }
    : reported;
}

/** A refusal in whose own fields its kind finds no time may state one as anybody could. */
function withWait(feedback: Feedback, response: ResponseReader): Feedback {
  const { throttle } = feedback;
  if (throttle === null || throttle.kind === 'permanent' || throttle.waitMs !== null) return feedback;
  const { fields, at, bodyMs } = response;
  const waitMs = bodyMs ?? exhaustedForMs(unownedReadings(fields, at)) ?? namedWaitMs(fields, at);
  return waitMs === null ? feedback : { ...feedback, throttle: { ...throttle, waitMs } };
}

function read(kind: UpstreamKind, response: ResponseReader): Feedback {
  switch (kind) {
    case 'language-model':
      return learnFromModel(response);
    case 'commerce':
      return learnFromCommerce(response);
    case 'generic': {
      const reported = learnFromDialect(unknownDialect, response);
      return { ...reported, throttle: githubThrottle(response) ?? reported.throttle };
    }
  }
}

// GitHub. Its REST API refuses for want of quota with 403 as well as 429, its GraphQL API with 200 and an error. Primary limit:
// `x-ratelimit-remaining: 0` and a reset. Secondary limits (points, content, concurrency): a sentence, with `Retry-After` or
// none; then at least a minute.

/** What GitHub asks for where it names no time. Milliseconds. */
const secondaryPauseMs = 60_000;
const secondary = /\bsecondary rate limit\b|\babuse detection mechanism\b/i;

/** The throttle in a refusal of GitHub; `null`: the response is not GitHub's, or it refuses for another reason than quota. */
function githubThrottle(response: ResponseReader): Throttle | null {
  const limit = response.fields.has('x-github-request-id') ? githubLimit(response) : null;
  if (limit === null) return null;
  const { statedMs, fields, at } = response;
  return limit === 'secondary'
    ? { kind: 'rate', waitMs: statedMs ?? secondaryPauseMs, meter: null }
    : { kind: 'rate', waitMs: statedMs ?? exhaustedForMs(unownedReadings(fields, at)), meter: 'requests' };
}

function githubLimit(response: ResponseReader): 'primary' | 'secondary' | null {
  const { status, fields, body } = response;
  if (status === 200) return limitInSuccess(response);
  if (status !== 403 && status !== 429) return null;
  if (secondary.test(body ?? '')) return 'secondary';
  return count(fields.get('x-ratelimit-remaining')) === 0 || response.statedMs !== null ? 'primary' : null;
}

/** True where a response with a status of success may be a refusal, so that its body has to be read. */
export const mayRefuseInside = (fields: ReadonlyMap<string, string>, method: string, path: string): boolean =>
  method === 'POST' && fields.has('x-github-request-id') && /\/graphql(?:\?|$)/.test(path);

/** The limit among the errors of a response without data; beside data, an error refused only a part of a call that was executed. */
function limitInSuccess({ json }: ResponseReader): 'primary' | 'secondary' | null {
  const errors = isRecord(json) ? json['errors'] : undefined;
  if (!Array.isArray(errors) || recordAt(json, 'data') !== null) return null;
  if (errors.some((error) => secondary.test(stringAt(error, 'message') ?? ''))) return 'secondary';
  const isRefused = errors.some((error) => /^RATE_LIMIT(?:ED)?$/.test(stringAt(error, 'type') ?? ''));
  return isRefused ? 'primary' : null;
}

// Refusals because too many calls are in flight at once: a word of many providers and no field of any

const words = /concurren|\bsimultaneous|\bmax(?:imum)? parallel\b|并发|並發/i;
/** The address of a page about limits says nothing of this refusal. */
const address = /\bhttps?:\S+/g;
/** How much of a body is looked at, characters. */
const maxText = 2_000;

/** Fields in which providers name the limit that refused a call. */
const reasons = ['x-rate-limit-problem', 'stripe-rate-limited-reason'];

/** Adds that a refusal for want of quota says so. No meter is at fault then. */
function withConcurrency(feedback: Feedback, { fields, body }: ResponseReader): Feedback {
  const { throttle } = feedback;
  if (throttle?.kind !== 'rate') return feedback;
  const named = reasons.some((field) => words.test(fields.get(field) ?? ''));
  if (!named && !words.test((body ?? '').slice(0, maxText).replaceAll(address, ''))) return feedback;
  return { ...feedback, throttle: { ...throttle, meter: null }, refusesConcurrency: true };
}
