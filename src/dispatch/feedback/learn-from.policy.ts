/** What a response teaches: the one entrance to the feedback policies. Total; any facts give a `Feedback`. */
import type { Feedback, UpstreamKind } from '../../call.ts';
import type { Dialect } from '../../config/settings.ts';
import { namedWaitMs } from '../stated-time.policy.ts';
import { learnFromCommerce } from './commerce.policy.ts';
import { describedThrottle, learnFromDialect, unknownDialect } from './dialect.policy.ts';
import { learnFromModel } from './language-model.policy.ts';
import { exhaustedForMs, unownedReadings } from './limits.policy.ts';
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
  const throttle =
    (dialect === null ? null : describedThrottle(dialect, response, own.throttle)) ?? own.throttle;
  const learned = withConcurrency(
    believable(throttle === own.throttle ? own : { ...own, throttle }),
    response,
  );
  const isRefused = (learned.errorStatus ?? facts.status) === refusedStatus;
  return isRefused ? { ...learned, refusesCredential: true } : learned;
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
  if (kind === 'language-model') return learnFromModel(response);
  return kind === 'commerce' ? learnFromCommerce(response) : learnFromDialect(unknownDialect, response);
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
  const said = [
    ...reasons.map((field) => fields.get(field)),
    body?.slice(0, maxText).replaceAll(address, ''),
  ];
  if (!words.test(said.join('\n'))) return feedback;
  return { ...feedback, throttle: { ...throttle, meter: null }, refusesConcurrency: true };
}
