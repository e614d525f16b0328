/**
 * What a client gets of the final result of its call's attempts, the fields of the upstream's response, cleaned, or a refusal, and how
 * the call's end is reported to telemetry. Does not own: the rest of the outcome (`attempts.ts`), resending, writing.
 */
import { Buffer } from 'node:buffer';
import type { Call, Outcome, RateLimitState, ResponseHead } from '../call.ts';
import { cookieScope, returningFields } from '../dispatch/fields.policy.ts';
import { bodyError, failureReason, failureWords, type TransportError } from '../dispatch/transport-error.ts';
import { Refusal, refusals, type RefusalCode } from '../errors.ts';
import { valuesOf } from '../field-lines.policy.ts';
import type { CeilingState } from '../limiter/policy/ceiling.policy.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import { outcomeOfResponse } from '../telemetry/events.ts';
import type { Prepared } from './prepare.ts';

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
  const detail = failureWords(error);
  return new Refusal(failures[error.kind], {
    ...(detail === null ? {} : { detail }),
    ...(mayRepeat ? {} : { shouldRetry: false }),
  });
}

/** `RateLimit` of the workspace's ceiling; `null` when it has none. */
export function rateLimitOf(state: CeilingState | null): RateLimitState | null {
  if (state === null) return null;
  return {
    limit: state.limit,
    remaining: state.remaining,
    // Up to 61: the log's window is a little longer than what is promised, and the slot is free after the log's.
    resetSeconds: Math.ceil(state.nextSlotMs / 1000),
  };
}

/** The fields of an upstream's response in the form of this call. */
export function fieldsForClient(
  { call, route, egress }: Prepared,
  { rawFields, status }: ResponseHead,
  addsRateLimit: boolean,
): Outcome['fields'] {
  const { keyFields, routes } = egress;
  const { upstream, origin, pathAndQuery } = route;
  const cookies = cookieScope(call, pathAndQuery, upstream.cookies);
  /** Links of the same upstream lead the client back to us. */
  const baseFor = (url: URL): string | null => {
    const prefix = routes.viaPrefix(upstream, url);
    return prefix === null ? null : ownOrigin(call.rawFields) + prefix;
  };
  const links =
    call.form === 'via'
      ? ({ form: 'via', origin, baseFor } as const)
      : ({ form: 'proxy', target: origin + pathAndQuery } as const);
  return returningFields({ rawFields, status, addsRateLimit, keyFields, cookies, links });
}

/**
 * Origin under which the client reached us, for links that it will follow: many clients parse a link as an absolute
 * URL only. Empty when the client named no host (HTTP/1.0); a path is all we can say then. It comes from the client
 * and goes back to nobody else.
 */
function ownOrigin(rawFields: readonly string[]): string {
  const [host = ''] = valuesOf(rawFields, 'host')
    .map((value) => value.trim())
    .filter((value) => value !== '');
  // A chain of proxies appends; the first one saw the client.
  const isSecure = valuesOf(rawFields, 'x-forwarded-proto').some((value) =>
    /^\s*https\s*(?:,|$)/i.test(value),
  );
  return /^[a-z0-9.:[\]_-]+$/i.test(host) ? `${isSecure ? 'https' : 'http'}://${host}` : '';
}

/** The outcome, which reports its end when its response has ended. Each call ends once, with the first report. */
export const reportedAtItsEnd = (outcome: Outcome, callRecord: CallRecord): Outcome => ({
  ...outcome,
  onEnd: (how) => {
    outcome.onEnd(how);
    const { status, body, throttled, errorStatus, record: admission } = outcome;
    const ended = (as: Parameters<CallRecord['ended']>[0]['outcome']): void =>
      callRecord.ended({ outcome: as, status, code: null, admission });
    // A response that is whole and holds an error is no success, whatever its head said.
    if (how === 'complete') return ended(outcomeOfResponse(errorStatus?.() ?? status, throttled));
    if (how === 'client_gone') return ended(how);
    // It broke after its head had gone on: the attempt failed as well, and its body knows why.
    const error = body === null || Buffer.isBuffer(body) ? null : body.errored;
    if (error !== null) callRecord.attemptFailed('upstream_unreachable', failureReason(bodyError(error)));
    ended('failed');
  },
});

/** The call ended without a response of the upstream. */
export function reportFailure(call: Call, callRecord: CallRecord, failure: unknown): void {
  if (call.clientGone.aborted) {
    callRecord.ended({ outcome: 'client_gone', status: 0, code: null });
  } else if (failure instanceof Refusal) {
    const { code, status } = failure;
    const { heldBy, ticket } = failure.details;
    const outcome = refusals[code].family;
    const isReserved = ticket !== undefined;
    callRecord.ended({ outcome, status, code, isReserved, ...(heldBy === undefined ? {} : { heldBy }) });
  } else {
    callRecord.ended({ outcome: 'failed', status: 500, code: null });
  }
}
