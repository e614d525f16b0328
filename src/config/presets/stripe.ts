/** How Stripe counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const stripe: Preset = {
  title: 'Stripe',
  source: 'https://docs.stripe.com/rate-limits',
  counts: '100 calls per second for each account in live mode; no Retry-After.',
  missing: 'The 25 calls per second of one endpoint, and locks of single objects.',
  speaks: {
    windows: [{ requests: 100, seconds: 1 }],
    throttledBy: [{ status: 429, field: 'stripe-rate-limited-reason', waitSeconds: 1 }],
  },
};
