/**
 * A claim in Redis: which replica makes a call that may be repeated, and what became of the call. Owns: the claim's text. Pure.
 */

/**
 * `held`: the call waits or is under way · `unstored`: its replica keeps the response, and
 * Redis does not have it yet · `kept`: Redis has the response · `too_large`: it has run, and its response is not kept · `free`: it is
 * over, and what came of it is not kept · `left`: its client left it while it waited.
 */
export const claimStates = ['held', 'unstored', 'kept', 'too_large', 'free', 'left'] as const;
export type ClaimState = (typeof claimStates)[number];

/** States that end when the claiming replica is gone: only it makes the call, or has its response. Such claims are renewed. */
export const renewedStates: readonly ClaimState[] = ['held', 'unstored'];

export interface Claim {
  readonly fingerprint: string;
  /** One making of the call by one replica: `<opaque name of the replica>.<number>`. */
  readonly holder: string;
  readonly state: ClaimState;
}

export const claimText = ({ fingerprint, holder, state }: Claim): string =>
  `${fingerprint} ${holder} ${state}`;

/** `null`: no claim, or not the text of one. */
export function claimOf(text: unknown): Claim | null {
  if (typeof text !== 'string') return null;
  const [fingerprint, holder, word] = text.split(' ');
  const state = claimStates.find((each) => each === word);
  return fingerprint === undefined || holder === undefined || state === undefined
    ? null
    : { fingerprint, holder, state };
}
