/** How QuickBooks Online counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const quickbooks: Preset = {
  title: 'QuickBooks Online',
  source: 'https://developer.intuit.com/app/developer/qbo/docs/learn/limits-and-throttles',
  counts: '10 calls per second and 500 per minute for each company; a minute’s wait after a refusal.',
  missing: 'The month’s quota of a Builder plan, which is a 429 as well.',
  speaks: {
    windows: [
      { requests: 10, seconds: 1 },
      { requests: 500, seconds: 60 },
    ],
    bucketBy: ['credential', 'path:/v3/company/{*}'],
    maxInFlight: 10,
    penaltySeconds: 60,
  },
};
