/**
 * What a client gets of the final result of its call's attempts: the fields of the upstream's response, cleaned, or a refusal.
 * Owns: which refusal a broken exchange becomes. Does not own: the rest of the outcome (`attempts.ts`), resending, writing.
 */
import type { Call, Outcome, RateLimitState, ResponseHead, Route } from '../call.ts';
import type { AttemptResult } from '../dispatch/dispatcher.ts';
import { cookieScope, type Links, returningFields } from '../dispatch/response-fields.policy.ts';
import { failureWords, type TransportError } from '../dispatch/transport-error.ts';
import { Refusal, type RefusalCode } from '../errors.ts';
import { valuesOf } from '../field-lines.policy.ts';
import type { CeilingState } from '../limiter/policy/ceiling.policy.ts';
import type { RouteFinder } from '../target/route.ts';
import type { Prepared } from './prepare.ts';

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
    windowSeconds: 60,
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
  const links: Links =
    call.form === 'via'
      ? viaRewrite(call, route, routes)
      : { form: 'proxy', target: route.origin + route.pathAndQuery };
  const cookies = cookieScope(call, route.pathAndQuery, route.upstream.cookies);
  return returningFields({ rawFields, status, addsRateLimit, keyFields, cookies, links });
}

/** How links of the same upstream lead the client back to us. */
function viaRewrite(
  { rawFields }: Pick<Call, 'rawFields'>,
  { upstream, origin }: Route,
  routes: RouteFinder,
): Links {
  const own = ownOrigin(rawFields);
  const baseFor = (url: URL): string | null => {
    const prefix = routes.viaPrefix(upstream, url);
    return prefix === null ? null : own + prefix;
  };
  return { form: 'via', origin, baseFor };
}

/**
 * Origin under which the client reached us, for links that it will follow: many clients parse a link as an absolute
 * URL only. Empty when the client named no host (HTTP/1.0); a path is all we can say then. It comes from the client
 * and goes back to nobody else.
 */
function ownOrigin(rawFields: readonly string[]): string {
  const host =
    valuesOf(rawFields, 'host')
      .find((value) => value.trim() !== '')
      ?.trim() ?? '';
  // A chain of proxies appends; the first one saw the client.
  const isSecure = valuesOf(rawFields, 'x-forwarded-proto').some((value) =>
    /^\s*https\s*(?:,|$)/i.test(value),
  );
  return /^[a-z0-9.:[\]_-]+$/i.test(host) ? `${isSecure ? 'https' : 'http'}://${host}` : '';
}
