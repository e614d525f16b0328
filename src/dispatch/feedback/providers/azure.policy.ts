/**
 * Azure OpenAI: the code of every 429 is `"429"`, and which of its two limits refused is told by the sentence alone:
 * `… have exceeded token rate limit of your current … pricing tier`, or `call rate limit`. Both are per minute.
 */
import type { ReadsRefusal } from './provider.policy.ts';

const exceeded = /\bexceeded (token|call) rate limit\b/;

export const azure: ReadsRefusal = ({ message }) => {
  const which = exceeded.exec(message)?.[1];
  if (which === undefined) return null;
  const tokens = which === 'token';
  return {
    verdict: 'rate',
    message: { meter: tokens ? 'tokens' : 'requests', metric: tokens ? 'TPM' : 'RPM', windowMs: 60_000 },
  };
};
