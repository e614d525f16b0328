/**
 * Together: `credit_limit` is the type both of a spent balance and of a rate limit that a paid plan would raise. The sentence
 * distinguishes them, the rate limit by: `You have been rate limited. Your rate limit is 60 queries per minute.`
 */
import type { Provider, ReadsRefusal } from './provider.policy.ts';

const rate = /\bYour rate limit is (\d{1,9}) (queries|requests|tokens) per (second|minute)\b/;

const refusal: ReadsRefusal = ({ type, message }) => {
  if (type !== 'credit_limit') return null;
  const [, limit, what, window] = rate.exec(message) ?? [];
  if (limit === undefined) {
    return { verdict: /\brate limited\b/i.test(message) ? 'rate' : 'quota' };
  }
  const tokens = what === 'tokens';
  return {
    verdict: 'rate',
    message: {
      meter: tokens ? 'tokens' : 'requests',
      metric: tokens ? 'TPM' : 'RPM',
      windowMs: window === 'second' ? 1_000 : 60_000,
      limit: Number(limit),
    },
  };
};

export const together: Provider = { refusal };
