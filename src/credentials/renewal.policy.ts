/**
 * When a token is renewed, how long it is sent, and when a renewal that failed is tried again. Pure: chance is an argument.
 * Durations are milliseconds.
 */

/** A token is renewed in the last quarter of its life, at most 5 minutes before its end. */
const leadShare = 0.25;
const maxLeadMs = 300_000;
/** The last part of a life in which a token is not sent any more: a call takes time to arrive. */
const guardShare = 0.05;
const maxGuardMs = 5_000;

/** Age at which a token of this life is renewed. Replicas and clients spread over a fifth of the lead either way. */
export function renewAtAgeMs(lifeMs: number, chance: number): number {
  const leadMs = Math.min(lifeMs * leadShare, maxLeadMs);
  return lifeMs - leadMs * (0.8 + 0.4 * chance);
}

/** Age from which a token of this life is not sent any more. */
export const sendableForMs = (lifeMs: number): number => lifeMs - Math.min(lifeMs * guardShare, maxGuardMs);

/** First and longest wait after a failure: of the way to the endpoint, and of a client that it does not accept. */
const backoffs = { passing: { min: 250, max: 60_000 }, refused: { min: 60_000, max: 900_000 } };
/** A named wait is believed up to an hour. */
const maxStatedMs = 3_600_000;

/**
 * Wait after the n-th failure in a row, at least 1; never less than the endpoint named.
 * @param statedMs what the endpoint named, or `null`
 */
export function retryAfterFailureMs(
  kind: keyof typeof backoffs,
  failures: number,
  { statedMs, chance }: { readonly statedMs: number | null; readonly chance: number },
): number {
  const { min, max } = backoffs[kind];
  const waitMs = Math.min(max, min * 2 ** Math.min(failures - 1, 20)) * (0.75 + 0.5 * chance);
  return Math.max(waitMs, Math.min(statedMs ?? 0, maxStatedMs));
}

/** Least time between renewals that only refusals of an upstream ask for, while they do not help. */
const refusalGapMs = { min: 1_000, max: 300_000 };

/**
 * How often an upstream's refusals may ask for a renewal: at once while renewing helps, else ever more rarely. An upstream also
 * refuses calls that the client has no right to, and no new token changes that.
 */
export class RefusalGap {
  #gapMs = refusalGapMs.min;
  #nextAt: number | null = null;

  /** True when a refusal at this time, monotonic milliseconds, may ask; the next one may after the gap. */
  mayRenew(now: number): boolean {
    if (this.#nextAt !== null && now < this.#nextAt) return false;
    this.#nextAt = now + this.#gapMs;
    this.#gapMs = Math.min(this.#gapMs * 2, refusalGapMs.max);
    return true;
  }

  /** The upstream accepted the present value: the next refusal may ask at once. */
  onAccepted(): void {
    this.#gapMs = refusalGapMs.min;
    this.#nextAt = null;
  }
}
