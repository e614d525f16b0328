/** How Linear counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const linear: Preset = {
  title: 'Linear',
  source: 'https://linear.app/developers/rate-limiting',
  counts: 'A quota of calls per hour that refills evenly; a refusal is a 400 with a code.',
  missing: 'The complexity of a query before its response.',
  speaks: {
    fields: {
      limit: 'x-ratelimit-requests-limit',
      remaining: 'x-ratelimit-requests-remaining',
      reset: { name: 'x-ratelimit-requests-reset', as: 'epoch-milliseconds' },
      window: 3_600,
    },
    throttledBy: [{ status: 400, body: 'RATELIMITED', waitSeconds: 30 }],
  },
};
