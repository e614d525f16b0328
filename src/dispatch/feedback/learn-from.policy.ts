/**
 * What a response teaches: the one entrance to the feedback policies.
 *
 * Owns: which dialect reads which response. Does not own: every dialect. Invariant: total; any facts give a `Feedback`.
 */
import type { Feedback, UpstreamKind } from '../../call.ts';
import type { Dialect } from '../../config/dialect.ts';
import { believable } from './believable.policy.ts';
import { learnFromCommerceGraphql } from './commerce-graphql.policy.ts';
import { learnFromCommerceRest } from './commerce-rest.policy.ts';
import type { ResponseFacts } from './facts.policy.ts';
import { learnFromDialect } from './dialect.policy.ts';
import { learnFromGeneric } from './generic.policy.ts';
import { learnFromModel } from './language-model.policy.ts';

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
  if (dialect !== null) return believable(learnFromDialect(dialect, facts));
  const reported = believable(read(kind, facts));
  return (reported.errorStatus ?? facts.status) === refusedStatus
    ? { ...reported, refusesCredential: true }
    : reported;
}

function read(kind: UpstreamKind, facts: ResponseFacts): Feedback {
  switch (kind) {
    case 'language-model':
      return learnFromModel(facts);
    case 'commerce':
      return facts.callClass === 'graphql' ? learnFromCommerceGraphql(facts) : learnFromCommerceRest(facts);
    case 'generic':
      return learnFromGeneric(facts);
  }
}
