/** How HubSpot counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const hubspot: Preset = {
  title: 'HubSpot',
  source: 'https://developers.hubspot.com/docs/api/usage-details',
  counts: '100 calls in 10 s, more by plan, for each app and account, and a day’s quota.',
  missing: 'When a day ends: at midnight in the account’s zone, which no response tells.',
  speaks: {
    windows: [{ requests: 100, seconds: 10 }],
    fields: [
      {
        limit: 'x-hubspot-ratelimit-max',
        remaining: 'x-hubspot-ratelimit-remaining',
        window: { name: 'x-hubspot-ratelimit-interval-milliseconds', as: 'milliseconds' },
      },
      {
        limit: 'x-hubspot-ratelimit-daily',
        remaining: 'x-hubspot-ratelimit-daily-remaining',
        window: 86_400,
      },
    ],
    permanentBy: [{ status: 429, body: 'DAILY' }],
  },
};
