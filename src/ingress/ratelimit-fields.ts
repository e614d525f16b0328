/**
 * The structured fields (RFC 9651) that Sluice adds to responses.
 *
 * Owns: their exact spelling, which is fixed but for its integers; the tests hold it against a general serializer.
 * Does not own: the numbers.
 * Invariant: every value is a non-negative integer, rounded so that never more room is stated than there is.
 */
import type { AdmissionRecord, RateLimitState } from '../call.ts';

/** Largest integer a structured field may hold (RFC 9651 §3.3.1). */
const maxInteger = 999_999_999_999_999;

const whole = (value: number): number => (Number.isNaN(value) ? 0 : Math.min(maxInteger, Math.max(0, value)));

/**
 * `Sluice-Admission`: `waited=<ms>, attempts=<n>, absorbed=<n>`; where something held the call, `held=(<cause>;ms=<n> …), ahead=<n>`; where
 * it was only observed, `would=send|wait|refuse, would-wait=<ms>`.
 */
export function admissionField({
  waitedMs,
  attempts,
  absorbed,
  held,
  ahead,
  would,
}: AdmissionRecord): string {
  let field = `waited=${Math.round(whole(waitedMs))}, attempts=${Math.round(whole(attempts))}, absorbed=${Math.round(whole(absorbed))}`;
  if (held.length > 0) {
    const causes = held.map(({ cause, ms }) => `${cause};ms=${Math.round(whole(ms))}`);
    field += `, held=(${causes.join(' ')})`;
  }
  if (ahead !== undefined) field += `, ahead=${Math.round(whole(ahead))}`;
  return would === undefined
    ? field
    : `${field}, would=${would.kind}, would-wait=${Math.round(whole(would.waitMs))}`;
}

/** `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers): `"workspace";q=500;w=60`. */
export const rateLimitPolicyField = ({ limit, windowSeconds }: RateLimitState): string =>
  `"workspace";q=${Math.floor(whole(limit))};w=${Math.ceil(whole(windowSeconds))}`;

/** `RateLimit` (same draft): `"workspace";r=412;t=1`. */
export const rateLimitField = ({ remaining, resetSeconds }: RateLimitState): string =>
  `"workspace";r=${Math.floor(whole(remaining))};t=${Math.ceil(whole(resetSeconds))}`;

/** The fields a known ceiling and record add, name and value alternating. */
export function knownFields(
  record: AdmissionRecord | null | undefined,
  rateLimit: RateLimitState | null | undefined,
): string[] {
  const fields: string[] = [];
  if (record) fields.push('Sluice-Admission', admissionField(record));
  if (rateLimit) {
    fields.push('RateLimit-Policy', rateLimitPolicyField(rateLimit));
    fields.push('RateLimit', rateLimitField(rateLimit));
  }
  return fields;
}
