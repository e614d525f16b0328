/**
 * What an answer teaches: the one entrance to the feedback policies.
 *
 * Owns: which dialect reads which answer. Refuses to own: every dialect. Invariant: total; any facts give a `Feedback`.
 */
import type { Feedback, UpstreamKind } from '../../call.ts';
import { believable } from './believable.policy.ts';
import { learnFromCommerceGraphql } from './commerce-graphql.policy.ts';
import { learnFromCommerceRest } from './commerce-rest.policy.ts';
import type { AnswerFacts } from './facts.policy.ts';
import { learnFromGeneric } from './generic.policy.ts';
import { learnFromModel } from './language-model.policy.ts';

export type { AnswerFacts };

/** Learns from one answer of an upstream of this kind. Never throws; an answer that tells nothing teaches nothing. */
export function learnFrom(kind: UpstreamKind, facts: AnswerFacts): Feedback {
  return believable(read(kind, facts));
}

function read(kind: UpstreamKind, facts: AnswerFacts): Feedback {
  switch (kind) {
    case 'language-model':
      return learnFromModel(facts);
    case 'commerce':
      return facts.callClass === 'graphql' ? learnFromCommerceGraphql(facts) : learnFromCommerceRest(facts);
    case 'generic':
      return learnFromGeneric(facts);
  }
}
