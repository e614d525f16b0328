/**
 * Turns the final result of a call's attempts into what its client gets: the upstream's answer, cleaned, or a refusal.
 * Owns: which refusal a broken exchange becomes. Refuses to own: resending, writing.
 */
import type { AdmissionRecord, Outcome, RateLimitState, Route } from '../call.ts';
import type { AttemptResult } from '../dispatch/attempt.ts';
import { returningFields } from '../dispatch/returning.policy.ts';
import type { TransportError } from '../dispatch/transport-error.ts';
import { Refusal, type RefusalCode } from '../errors.ts';
import type { CeilingState } from '../limiter/ceilings.ts';

export type Answered = Extract<AttemptResult, { kind: 'answered' }>;

/** Codes of a call whose exchange broke. `reset` and `aborted` after sending: the upstream did not answer. */
const failures: Record<TransportError['kind'], RefusalCode> = {
  unreachable: 'upstream_unreachable',
  address_denied: 'target_address_denied',
  invalid: 'upstream_invalid',
  timeout: 'upstream_timeout',
  reset: 'upstream_unreachable',
  aborted: 'upstream_unreachable',
};

/** `mayRepeat`: false when repeating could run the call twice. */
export function failureRefusal(error: TransportError, mayRepeat: boolean): Refusal {
  return new Refusal(failures[error.kind], mayRepeat ? {} : { shouldRetry: false });
}

/** `RateLimit` of the workspace's ceiling; `null` when it has none. */
export function rateLimitOf(state: CeilingState | null): RateLimitState | null {
  if (state === null) return null;
  return {
    limit: state.limit,
    windowSeconds: 60,
    remaining: state.remaining,
    resetSeconds: Math.ceil(state.nextPlaceMs / 1000),
  };
}

export interface AnswerInput {
  readonly answered: Answered;
  readonly route: Route;
  readonly form: 'proxy' | 'via' | 'activity';
  readonly record: AdmissionRecord;
  readonly rateLimit: RateLimitState | null;
  readonly shouldRetry: boolean | null;
  /** `/via/…` form of an absolute URL of the same upstream, or `null`. */
  readonly viaPrefix: (url: URL) => string | null;
  readonly onEnd: Outcome['onEnd'];
}

export function answerOutcome(input: AnswerInput): Outcome {
  const { answered, route, form, record, rateLimit, shouldRetry, viaPrefix, onEnd } = input;
  const { status, rawFields } = answered.head;
  return {
    status,
    fields: returningFields({
      rawFields,
      status,
      addsRateLimit: rateLimit !== null,
      via: form === 'via' ? { origin: route.origin, baseFor: viaPrefix } : null,
    }),
    body: answered.body,
    record,
    rateLimit,
    shouldRetry,
    onEnd,
  };
}
