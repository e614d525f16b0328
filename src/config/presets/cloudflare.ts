/** How Cloudflare API counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const cloudflare: Preset = {
  title: 'Cloudflare API',
  source: 'https://developers.cloudflare.com/fundamentals/api/reference/limits/',
  counts: '1,200 calls in 5 minutes for each user; who goes beyond is blocked for 5 minutes.',
  missing: 'The 200 calls per second of an address.',
  speaks: {
    windows: [{ requests: 1200, seconds: 300 }],
    fields: { reset: { name: 'x-ratelimit-reset', as: 'date' } },
    penaltySeconds: 300,
  },
};
