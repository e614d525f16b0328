/**
 * How a call ended, in the words of `sluice_requests_total`. Owns the closed set and the one rule that maps an
 * upstream's response to it. Refusals map by the family in `errors.ts`.
 */

/**
 * `ok` the upstream answered below 400 · `upstream_error` it answered 400 or above, passed through · `throttled` its
 * throttle was passed through · `shed` refused by Sluice for lack of room or time · `rejected` refused because the
 * client must change something · `client_gone` the client left first · `failed` the upstream's side broke.
 */
export const outcomes = [
  'ok',
  'upstream_error',
  'throttled',
  'shed',
  'rejected',
  'client_gone',
  'failed',
] as const;

export type CallOutcome = (typeof outcomes)[number];

/** Outcome of an upstream response that is passed to the client. `throttle`: it was classified as one. */
export function outcomeOfResponse(status: number, throttle: boolean): CallOutcome {
  if (throttle || status === 429) return 'throttled';
  return status >= 400 ? 'upstream_error' : 'ok';
}
