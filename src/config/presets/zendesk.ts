/** How Zendesk counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const zendesk: Preset = {
  title: 'Zendesk',
  source:
    'https://developer.zendesk.com/documentation/api-basics/best-practices/best-practices-for-avoiding-rate-limiting/',
  counts: '200 to 2,500 calls per minute by plan, for each account.',
  missing: 'Quotas of single endpoints, and refusals of one object without a wait.',
  speaks: {
    fields: {
      limit: 'x-rate-limit',
      remaining: 'x-rate-limit-remaining',
      reset: { name: 'ratelimit-reset', as: 'seconds' },
      window: 60,
    },
  },
};
