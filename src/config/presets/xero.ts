/** How Xero counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const xero: Preset = {
  title: 'Xero',
  source: 'https://developer.xero.com/faq/limits',
  counts: '60 calls per minute and 5,000 per day for each organisation, 5 at once.',
  missing: 'The 10,000 calls per minute that all organisations of an app share.',
  speaks: {
    windows: [
      { requests: 60, seconds: 60 },
      { requests: 5_000, seconds: 86_400 },
    ],
    fields: [
      { remaining: 'x-minlimit-remaining', window: 60 },
      { remaining: 'x-daylimit-remaining', window: 86_400 },
    ],
    permanentBy: [{ status: 429, field: 'x-rate-limit-problem', equals: 'day' }],
    bucketBy: ['credential', 'header:xero-tenant-id'],
    maxInFlight: 5,
  },
};
