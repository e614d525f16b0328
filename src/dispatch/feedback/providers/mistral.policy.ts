/** Mistral: tokens of the running minute. Its refusals are the common reading. */
import { count, reset } from '../reading.policy.ts';
import type { Provider, ReadsFields } from './provider.policy.ts';

/** `ratelimitbysize-*` of Mistral: tokens of the running minute; the reset is the minute's end. */
const readings: ReadsFields = (fields, at) => {
  const limit = count(fields.get('x-ratelimitbysize-limit-minute') ?? fields.get('ratelimitbysize-limit'));
  if (limit === null) return [];
  return [
    {
      dimension: 'tokens',
      meter: 'tokens',
      limit,
      remaining: count(
        fields.get('x-ratelimitbysize-remaining-minute') ?? fields.get('ratelimitbysize-remaining'),
      ),
      ...reset(fields.get('ratelimitbysize-reset'), at),
      resetMeans: 'window',
      remainingGrain: 1,
      statedWindowMs: 60_000,
    },
  ];
};

export const mistral: Provider = { fields: readings };
