/**
 * What a response teaches: the one entrance to the feedback policies.
 *
 * Owns: which dialect reads which response. Does not own: every dialect. Invariant: total; any facts give a `Feedback`.
 */
import type { Feedback, UpstreamKind } from '../../call.ts';
import type { Dialect } from '../../config/dialect.ts';
import { believable } from './believable.policy.ts';
import { learnFromCommerce } from './commerce.policy.ts';
import { learnFromDialect, unknownDialect } from './dialect.policy.ts';
import { githubThrottle } from './github.policy.ts';
import { learnFromModel } from './language-model.policy.ts';
import { ResponseReader, type ResponseFacts } from './response.policy.ts';

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
  if (dialect !== null) return believable(learnFromDialect(dialect, response));
  const reported = believable(read(kind, response));
  return (reported.errorStatus ?? facts.status) === refusedStatus
    ? { ...reported, refusesCredential: true }
    : reported;
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
