/**
 * Azure OpenAI: the code of every 429 is `"429"`, and which of its two limits refused is stated by the sentence alone:
 * `… have exceeded token rate limit of your current … pricing tier`, or `call rate limit`. Both are per minute.
 */
import type { Reading } from '../reading.policy.ts';
import type { Provider, ReadsRefusal } from './provider.policy.ts';

const exceeded = /\bexceeded (token|call) rate limit\b/;

const refusal: ReadsRefusal = ({ message }) => {
  const which = exceeded.exec(message)?.[1];
  if (which === undefined) return null;
  const tokens = which === 'token';
  return {
    verdict: 'rate',
    message: { meter: tokens ? 'tokens' : 'requests', metric: tokens ? 'TPM' : 'RPM', windowMs: 60_000 },
  };
};

export const azure: Provider = { refusal };

/**
 * The renewal period of a response that is Azure's trap, milliseconds; `null`: it is none. In the trap tokens are exhausted with a
 * reset of 0, `retry-after: 1` and `retry-after-ms: 0`, while the real wait is up to the renewal period.
 */
export function renewalTrapMs(readings: readonly Reading[]): number | null {
  let waitMs: number | null = null;
  for (const { remaining, resetInMs, resetMeans, statedWindowMs } of readings) {
    if (remaining === 0 && resetInMs === 0 && resetMeans === 'full' && statedWindowMs !== null) {
      waitMs = Math.max(waitMs ?? 0, statedWindowMs);
    }
  }
  return waitMs;
}
