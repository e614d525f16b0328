/**
 * The structured fields (RFC 9651) that Sluice adds to answers.
 *
 * Owns: their exact spelling. Refuses to own: the numbers.
 * Invariant: every value is a non-negative integer, rounded so that nobody is told of more room than there is.
 */
import { serializeDictionary, serializeList } from 'structured-headers';
import type { AdmissionRecord, RateLimitState } from '../call.ts';

/** Largest integer a structured field may hold (RFC 9651 §3.3.1). */
const largestInteger = 999_999_999_999_999;

const whole = (value: number): number =>
  Number.isNaN(value) ? 0 : Math.min(largestInteger, Math.max(0, value));

/** `Sluice-Admission`: `waited=<ms>, attempts=<n>, absorbed=<n>`. */
export const admissionField = (record: AdmissionRecord): string =>
  serializeDictionary({
    waited: Math.round(whole(record.waitedMs)),
    attempts: Math.round(whole(record.attempts)),
    absorbed: Math.round(whole(record.absorbed)),
  });

/** `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers): `"workspace";q=500;w=60`. */
export const rateLimitPolicyField = (state: RateLimitState): string => {
  const parameters = new Map([
    ['q', Math.floor(whole(state.limit))],
    ['w', Math.ceil(whole(state.windowSeconds))],
  ]);
  return serializeList([['workspace', parameters]]);
};

/** `RateLimit` (same draft): `"workspace";r=412;t=1`. */
export const rateLimitField = (state: RateLimitState): string => {
  const parameters = new Map([
    ['r', Math.floor(whole(state.remaining))],
    ['t', Math.ceil(whole(state.resetSeconds))],
  ]);
  return serializeList([['workspace', parameters]]);
};

/** The fields a known ceiling and record add, name and value alternating. */
export const knownFields = (
  record: AdmissionRecord | null | undefined,
  rateLimit: RateLimitState | null | undefined,
): string[] => {
  const fields: string[] = [];
  if (record) fields.push('Sluice-Admission', admissionField(record));
  if (rateLimit) {
    fields.push('RateLimit-Policy', rateLimitPolicyField(rateLimit));
    fields.push('RateLimit', rateLimitField(rateLimit));
  }
  return fields;
};
